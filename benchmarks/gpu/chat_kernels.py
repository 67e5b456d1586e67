"""What chat costs the reference engine and vLLM on one GPU, without HTTP: tokens/s, joules a token, and kernels.

Both load one checkpoint of Llama-3.1-8B shapes with random weights, one after the other, in processes of their own. A
fixed number of users sends prompts, each the next one once its answer has ended, with the lengths of `CASES`; greedy,
exact lengths, prefix caching off, and each engine's own limit of tokens a step. Each case is measured for
``--seconds``, then torch's profiler records the kernels of `PROFILED_STEPS` steps. Kernels are counted as matrix
products, attention or others by their names. Ours start before their inputs are ready and count that wait, so that
their sums may exceed the time of the steps.
"""

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from benchmarks.gpu.offline import LLAMA_8B, energy_meter
from benchmarks.gpu.parts.checkpoint import write_checkpoint


class Case(NamedTuple):
    """Users, and the median tokens and spread (of the logarithm) of their prompts and answers."""

    users: int
    prompt: int
    output: int
    spread: float = 0.0


CASES = (
    Case(32, 16, 192), Case(32, 250, 192), Case(32, 800, 192), Case(32, 2000, 192), Case(32, 750, 170, 0.8),
    Case(64, 750, 170, 0.8),
)  # fmt: skip
MAX_TOKENS = 4000
PROFILED_STEPS, NAMED_KERNELS = 100, 30
WARM_UP_S = 3.0
KINDS = {
    "attention": ("flash", "attend", "fmha", "attention", "combine", "sdpa"),
    "products": ("gemm", "nvjet", "cutlass", "_multiply", "matmul", "splitk", "_add_up"),
}


class Steps(Protocol):
    """An engine whose steps the caller makes."""

    def add(self, number: int, prompt: list[int], output: int) -> None:
        """Sends a request."""
        ...

    def step(self) -> tuple[int, int]:
        """Makes one step; returns new tokens and ended answers."""
        ...


class _Ours:
    def __init__(self, folder: Path) -> None:
        from bakeoff.reference_engine.core.config import EngineConfig  # noqa: PLC0415  (in the side's process only)
        from bakeoff.reference_engine.core.request import Request, SamplingParams  # noqa: PLC0415
        from bakeoff.reference_engine.offline import load_engine  # noqa: PLC0415

        self._request, self._params = Request, SamplingParams
        self._engine = load_engine(
            EngineConfig(
                model=str(folder), dtype="bfloat16", device="cuda", max_model_len=8192, max_num_seqs=256,
                gpu_memory_utilization=0.6, enable_prefix_caching=False,
            )
        )  # fmt: skip

    def add(self, number: int, prompt: list[int], output: int) -> None:
        self._engine.add(self._request(str(number), prompt, self._params(max_tokens=output, temperature=0.0)))

    def step(self) -> tuple[int, int]:
        outputs = self._engine.step().outputs
        return len(outputs), sum(output.finish_reason is not None for output in outputs)


class _Vllm:
    def __init__(self, folder: Path) -> None:
        # Steps are made, and profiled, in this process.
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
        from vllm import LLM, SamplingParams  # noqa: PLC0415  (after the environment)
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        self._params, self._kind = SamplingParams, RequestOutputKind.DELTA
        self._engine = LLM(
            model=str(folder), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=8192, max_num_seqs=256,
            gpu_memory_utilization=0.6, enable_prefix_caching=False,
        ).llm_engine  # fmt: skip

    def add(self, number: int, prompt: list[int], output: int) -> None:
        params = self._params(
            max_tokens=output, min_tokens=output, ignore_eos=True, temperature=0.0, detokenize=False,
            output_kind=self._kind,
        )  # fmt: skip
        self._engine.add_request(str(number), {"prompt_token_ids": prompt}, params)

    def step(self) -> tuple[int, int]:
        outputs = self._engine.step()
        return sum(len(each.outputs[0].token_ids) for each in outputs), sum(each.finished for each in outputs)


SIDES: dict[str, Callable[[Path], Steps]] = {"ours": _Ours, "vllm": _Vllm}


class _Users:
    """Keeps requests of a case in flight; the same ones, in the same order, for every engine."""

    def __init__(self, engine: Steps, case: Case, first_number: int) -> None:
        self._engine, self._case, self._number = engine, case, first_number
        self._rng = random.Random(str(case))
        self.in_flight, self.ended = 0, 0
        for _ in range(case.users):
            self._send(self._rng.random())  # answers in progress, so that users do not end together

    def _send(self, share: float = 1.0) -> None:
        case, rng = self._case, self._rng
        prompt, output = (
            min(MAX_TOKENS, max(1, round(median * rng.lognormvariate(0, case.spread))))
            for median in (case.prompt, case.output)
        )
        self._engine.add(self._number, [rng.randrange(128_000) for _ in range(prompt)], max(1, round(share * output)))
        self._number += 1
        self.in_flight += 1

    def step(self) -> int:
        tokens, ended = self._engine.step()
        self.in_flight -= ended
        self.ended += ended
        for _ in range(ended):
            self._send()
        return tokens

    def drain(self) -> int:
        """Ends all answers; returns the next request's number."""
        while self.in_flight:
            self.in_flight -= self._engine.step()[1]
        return self._number


def measure(engine: Steps, case: Case, first_number: int, seconds: float) -> tuple[dict[str, Any], int]:
    """Figures of one case, and the next request's number."""
    import torch  # noqa: PLC0415  (vLLM reads its environment first)
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    joules, users = energy_meter(), _Users(engine, case, first_number)
    warm_until = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < warm_until:
        users.step()
    began, before_j, ended, steps, tokens = time.perf_counter(), joules() or 0.0, users.ended, 0, 0
    while (elapsed := time.perf_counter() - began) < seconds:
        tokens += users.step()
        steps += 1
    used_j, answers = (joules() or 0.0) - before_j, users.ended - ended
    kernels: dict[str, float] = collections.defaultdict(float)
    profiled_tokens = 0
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as recorded:
        for _ in range(PROFILED_STEPS):
            profiled_tokens += users.step()
        torch.cuda.synchronize()
    for event in recorded.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernels[event.name[:120]] += event.time_range.elapsed_us()
    longest = sorted(kernels.items(), key=lambda item: -item[1])[:NAMED_KERNELS]
    return {
        "case": list(case), "tokens_per_s": tokens / elapsed, "answers_per_s": answers / elapsed,
        "step_ms": elapsed / steps * 1e3, "watts": used_j / elapsed, "mj_per_token": used_j / tokens * 1e3,
        "kernel_us_per_token": {kind: us / profiled_tokens for kind, us in by_kind(kernels).items()},
        "kernels": {name: us / profiled_tokens for name, us in longest},
    }, users.drain()  # fmt: skip


def by_kind(kernels: dict[str, float]) -> dict[str, float]:
    """Microseconds of each of `KINDS`, and of others."""
    sums = dict.fromkeys([*KINDS, "others"], 0.0)
    for name, us in kernels.items():
        folded = name.lower()
        sums[next((kind for kind, words in KINDS.items() if any(word in folded for word in words)), "others")] += us
    return sums


def side(name: str, folder: Path, out: Path, seconds: float, repeats: int) -> None:
    """One engine's process."""
    import torch  # noqa: PLC0415

    began = time.perf_counter()
    engine, number = SIDES[name](folder), 0
    print(f"{name} started in {time.perf_counter() - began:.0f} s", flush=True)
    with torch.inference_mode(), out.open("a", encoding="utf-8") as file:
        for _ in range(repeats):
            for case in CASES:
                figures, number = measure(engine, case, number, seconds)
                file.write(json.dumps({"engine": name, **figures}) + "\n")
                file.flush()
                print(name, *case, f"{figures['tokens_per_s']:.0f} tok/s", figures["kernel_us_per_token"], flush=True)


def table(records: list[dict[str, Any]]) -> Iterator[str]:
    """Both sides' fastest repeat of each case, and ours over vLLM's."""
    kinds = [*KINDS, "others"]
    yield (
        f"{'users, prompt, output, spread':<30}{'':>6}"
        + "".join(f"{name:>12}" for name in ("tok/s", "W", "mJ/tok", *kinds))
        + "  (kernels in us/tok)"
    )
    for case in CASES:
        sides: list[list[float]] = []
        for name in SIDES:
            own = [r for r in records if r["engine"] == name and r["case"] == list(case)]
            if not own:
                continue
            best = max(own, key=lambda r: r["tokens_per_s"])
            figures = [best[name] for name in ("tokens_per_s", "watts", "mj_per_token")]
            sides.append(figures + [best["kernel_us_per_token"][kind] for kind in kinds])
            yield f"{', '.join(map(str, case)):<30}{name:>6}" + "".join(f"{value:>12,.1f}" for value in sides[-1])
        if len(sides) == len(SIDES):
            ratios = [ours / theirs if theirs else float("nan") for ours, theirs in zip(*sides, strict=True)]
            yield " " * 30 + " ratio" + "".join(f"{ratio:>12.3f}" for ratio in ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", choices=tuple(SIDES), default=list(SIDES))
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir(), "bakeoff-chat-kernels.jsonl"))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "bakeoff-llama-8b"))
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--side", choices=tuple(SIDES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side(options.side, options.folder, options.out, options.seconds, options.repeats)
        return
    write_checkpoint(options.folder, LLAMA_8B, None, "cuda")
    for name in options.engine:
        subprocess.run([sys.executable, "-m", "benchmarks.gpu.chat_kernels", *sys.argv[1:], "--side", name], check=True)
    records = [json.loads(line) for line in options.out.read_text(encoding="utf-8").splitlines()]
    print(*table(records), sep="\n", flush=True)


if __name__ == "__main__":
    main()
