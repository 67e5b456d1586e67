"""Speed-up by speculation on a GPU at known acceptance. Run by ``make bench-gpu`` on a machine with an H200.

Llama-3.1-8B shapes, drafted by 135M shapes. The weights are random, so that no draft is ever right; verification is
replaced by one that accepts each draft with probability a. At batch 1 the speed-up by drafts of k tokens is compared
with Leviathan et al. (arXiv 2211.17192): (1 - a^(k+1)) / ((1 - a) (k c + v)), where c is the time of a step of the
draft model and v that of a step of k + 1 rows, both relative to a step of one row and measured here. At batch 32 draft
lengths adapt, and must cost nothing at a low acceptance.

``--vllm`` measures real vLLM with the same two models at batch 1; its "synthetic" rejection accepts drafts at random,
too.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from bakeoff.reference_engine.core.config import DeviceName, EngineConfig
from bakeoff.reference_engine.core.outputs import SampledToken
from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.engine import runner
from bakeoff.reference_engine.engine.beam_engine import BeamSearchEngine
from bakeoff.reference_engine.offline import generate, load_engine
from bakeoff.reference_engine.speculation.step_costs import measure_step_costs
from benchmarks.bars import Bars
from benchmarks.gpu.offline import LLAMA_8B, options_of, parse
from benchmarks.gpu.sides.side import Side

DRAFT_135M: dict[str, Any] = LLAMA_8B | {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip
NUM_TOKENS = 4
ACCEPTANCE, ACCEPTANCE_OF_BATCH = (0.6, 0.7, 0.8, 0.9), (0.0, 0.3, 0.6, 0.8)
BATCH, PROMPT = 32, 128
REPEATS = 3
VLLM_LIMIT_S = 400.0
"""For one start of vLLM and its runs."""


def inject(acceptance: float) -> None:
    """Accept each draft with this probability, whatever was sampled."""
    rng = random.Random(1)

    def accepted(tokens: list[int], drafts: list[list[int]]) -> list[tuple[SampledToken, ...]]:
        results: list[tuple[SampledToken, ...]] = []
        start = 0
        for guesses in drafts:
            count = next((place for place in range(len(guesses)) if rng.random() >= acceptance), len(guesses))
            results.append(tuple(map(SampledToken, tokens[start : start + count + 1])))
            start += len(guesses) + 1
        return results

    runner.accepted = accepted


def seconds(engine: BeamSearchEngine, batch: int, num_tokens: int) -> float:
    """The shortest of some runs, less the time of the prompts."""
    prompts = [[7 + number] * PROMPT for number in range(batch)]
    times: list[float] = []
    for length in (num_tokens, 1) * REPEATS:
        params = SamplingParams(max_tokens=length, temperature=0.0)
        began = time.perf_counter()
        generate(engine, prompts, [params] * batch)
        times.append(time.perf_counter() - began)
    return min(times[::2]) - min(times[1::2])


def vllm_seconds(folder: Path, num_tokens: int, acceptance: float | None) -> float:
    """As `seconds` at batch 1, for vLLM; without drafts if `acceptance` is None."""
    engine: dict[str, Any] = {"max_model_len": 2048}
    if acceptance is not None:
        rates = [acceptance**place for place in range(1, NUM_TOKENS + 1)]  # that all drafts up to a place are accepted
        engine["speculative_config"] = {
            "method": "draft_model", "model": str(folder / "draft"), "num_speculative_tokens": NUM_TOKENS,
            "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates,
        }  # fmt: skip
    options = options_of("vllm", parse(["--seats", "64", "--vllm-options", json.dumps(engine)]))
    with Side("vllm", folder / "model", options, folder / "vllm.log", time.monotonic() + VLLM_LIMIT_S) as side:
        answers = [side.ask([[7] * PROMPT], length) for length in (num_tokens, 1) * (REPEATS + 1)][2:]
        if error := next((answer["error"] for answer in answers if "error" in answer), None):
            raise SystemExit(error)
        return min(answer["seconds"] for answer in answers[::2]) - min(answer["seconds"] for answer in answers[1::2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--config", type=Path, help="config.json instead of Llama 3.1 8B")
    parser.add_argument("--draft-config", type=Path, help="config.json of the draft model")
    parser.add_argument("--vllm", type=float, nargs="*", metavar="ACCEPTANCE", help="only vLLM, at these; default 0.8")
    options = parser.parse_args()
    bars = Bars()
    with tempfile.TemporaryDirectory() as name:
        for folder, config_file, default in (
            ("model", options.config, LLAMA_8B),
            ("draft", options.draft_config, DRAFT_135M),
        ):
            Path(name, folder).mkdir()
            text = config_file.read_text(encoding="utf-8") if config_file else json.dumps(default)
            Path(name, folder, "config.json").write_text(text, encoding="utf-8")

        if options.vllm is not None:
            plain_s = vllm_seconds(Path(name), options.tokens, None)
            print(f"vLLM, one sequence: {options.tokens / plain_s:.0f} tok/s", flush=True)
            for a in options.vllm or [0.8]:
                drafted_s = vllm_seconds(Path(name), options.tokens, a)
                print(f"vLLM, acceptance {a}: {plain_s / drafted_s:.2f}, {options.tokens / drafted_s:.0f} tok/s")
            return

        def engine(device: DeviceName = options.device, **settings: Any) -> BeamSearchEngine:  # noqa: ANN401 (fields of EngineConfig)
            return load_engine(
                EngineConfig(
                    model=f"{name}/model",
                    load_format="dummy",
                    dtype="bfloat16",
                    device=device,
                    max_model_len=2048,
                    max_num_seqs=64,
                    num_blocks=64 * 40,
                    enable_prefix_caching=False,
                    **settings,
                )
            )

        method = f"draft:{NUM_TOKENS}:{name}/draft"
        plain = engine()
        base = {batch: seconds(plain, batch, options.tokens) for batch in (1, BATCH)}
        del plain
        fixed = engine(speculation=method, adaptive_speculation=False)
        core = fixed.core._runner  # noqa: SLF001
        costs = measure_step_costs(core._executor, NUM_TOKENS + 1)  # noqa: SLF001
        draft_costs = measure_step_costs(core._draft_model.executor, 1)  # noqa: SLF001
        one_row_s, c = costs.seconds[0], draft_costs.seconds[0] / costs.seconds[0]
        v = costs.seconds[-1] / one_row_s
        print(f"a step of one row {one_row_s * 1e3:.2f} ms, c = {c:.3f}, v = {v:.3f}", flush=True)
        for a in ACCEPTANCE:
            inject(a)
            speed_up = base[1] / seconds(fixed, 1, options.tokens)
            expected = (1 - a ** (NUM_TOKENS + 1)) / ((1 - a) * (NUM_TOKENS * c + v))
            rate = speed_up * options.tokens / base[1]
            print(f"batch 1, acceptance {a}: {speed_up:.2f}, expected {expected:.2f}; {rate:.0f} tok/s", flush=True)
            bars.add(f"speed_up_over_expected_at_{a}", speed_up / expected, ">=", 0.85)
            if a == 0.8:
                bars.add("speed_up_at_0.8", speed_up, ">=", 2.0)
        del fixed, core
        for a in ACCEPTANCE_OF_BATCH:
            inject(a)
            ratio = base[BATCH] / seconds(engine(speculation=method), BATCH, options.tokens)
            print(f"batch {BATCH}, acceptance {a}, adaptive: {ratio:.2f}", flush=True)
            bars.add(f"batch_{BATCH}_adaptive_at_{a}", ratio, ">=", 0.98)
    bars.finish()


if __name__ == "__main__":
    main()
