"""Weights in host memory (`--cpu-offload-gb`) on a GPU: equal tokens, memory, speed beside the bandwidth of the bus.

    python -m benchmarks.gpu.offload

First a short model with all its layers offloaded, in bfloat16, quantised, with and without CUDA graphs: greedy tokens
must equal those of the same engine without offload, and the KV cache must grow by the freed memory. Then Llama-3.1-8B
shapes with random weights in bfloat16 at several sizes: decode steps of 1, 8 and 64 sequences, whose tokens must be
equal, too. The floor of a step is the offloaded bytes over the bandwidth of copies from pinned memory, which is
measured first, or the step without offload if that takes longer. Takes two minutes.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.engine.beam_engine import BeamSearchEngine
from bakeoff.reference_engine.models.decoder import Decoder
from bakeoff.reference_engine.models.execution import LocalExecutor
from bakeoff.reference_engine.offline import load_engine
from benchmarks.bars import Bars
from benchmarks.gpu.offline import LLAMA_8B, Cell

BATCHES = (1, 8, 64)
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 16
SHORT_LAYERS, SHORT_BATCH = 4, 8
SHORT_CASES: dict[str, dict[str, Any]] = {
    "bfloat16": {}, "bfloat16, no graphs": {"cuda_graphs": False}, "int4": {"quantization": "int4"},
    "fp8": {"quantization": "fp8"}, "nf4": {"quantization": "nf4"},
}  # fmt: skip
ALL_GIB = 4.0
"""More than all layers of the short model: everything is offloaded."""
MIN_SHARE_OF_FLOOR = 0.9
_GIB = 1 << 30


class Decoded(NamedTuple):
    """Tokens of each prompt, and the median time of a decode step."""

    tokens: list[list[int]]
    step_s: float


class LoadedEngine:
    """A loaded engine, and the memory it holds.

    Args:
        folder: with a config.json; all engines have the same random weights.
        offload_gib: of weights in host memory.
        settings: others of `EngineConfig`.

    Attributes:
        load_s: seconds until the engine was ready.
        device_bytes: allocated on the GPU.
        host_bytes: of weights in host memory.
        buffer_bytes: of the buffers on the GPU for these weights.
        cache_bytes: of the KV cache.
    """

    def __init__(self, folder: Path, offload_gib: float, **settings: Any) -> None:  # noqa: ANN401  (fields of EngineConfig)
        began, before = time.perf_counter(), torch.cuda.memory_allocated()
        defaults = {"num_blocks": 1024, "max_num_seqs": max(BATCHES), "max_model_len": 1024}
        self.engine = load_engine(
            EngineConfig(
                model=str(folder), load_format="dummy", dtype="bfloat16", device="cuda", cpu_offload_gb=offload_gib,
                enable_prefix_caching=False, **(defaults | settings),
            )
        )  # fmt: skip
        gc.collect()
        self.load_s = time.perf_counter() - began
        self.device_bytes = torch.cuda.memory_allocated() - before
        executor = self.engine.core._runner._executor  # noqa: SLF001 (not part of any interface)
        assert isinstance(executor, LocalExecutor)
        model = executor._model  # noqa: SLF001
        assert isinstance(model, Decoder)
        offload = model._offload  # noqa: SLF001
        self.host_bytes, self.buffer_bytes = (offload.host_bytes, offload.buffer_bytes) if offload else (0, 0)
        self.cache_bytes = executor.storage.bytes

    def decode(self, batch: int, output: int = OUTPUT_TOKENS) -> Decoded:
        """Greedy tokens of random prompts, all queued at once."""
        return decoded(self.engine, Cell(batch, PROMPT_TOKENS, output).prompts(0, LLAMA_8B["vocab_size"]), output)


@torch.inference_mode()
def decoded(engine: BeamSearchEngine, prompts: Sequence[list[int]], output: int) -> Decoded:
    params = SamplingParams(max_tokens=output, temperature=0.0)
    tokens: list[list[int]] = [[] for _ in prompts]
    steps_s: list[float] = []
    for number, prompt in enumerate(prompts):
        engine.add(Request(str(number), prompt, params))
    last = time.perf_counter()
    while engine.has_work:
        report = engine.step()
        now = time.perf_counter()
        for token_output in report.outputs:
            tokens[int(token_output.request_id)].append(token_output.token.token_id)
        if report.outputs and report.computed_tokens == len(report.outputs):  # no prompt in it
            steps_s.append(now - last)
        last = now
    return Decoded(tokens, statistics.median(steps_s))


def bus_bytes_per_s(size: int = _GIB) -> float:
    """Bandwidth of copies from pinned memory to the GPU, the best of five."""
    source, target = torch.zeros(size, dtype=torch.uint8, pin_memory=True), torch.empty(size, dtype=torch.uint8).cuda()
    seconds: list[float] = []
    for _ in range(6):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        target.copy_(source, non_blocking=True)
        ended.record()
        torch.cuda.synchronize()
        seconds.append(began.elapsed_time(ended) / 1e3)
    return size / min(seconds)


def check_short(folder: Path, bars: Bars) -> None:
    """Check that offloading changes no token of a short model, and that the freed memory goes to the KV cache."""
    for name, settings in SHORT_CASES.items():
        resident = LoadedEngine(folder, 0, **settings)
        expected = resident.decode(SHORT_BATCH).tokens
        free(resident)
        offloaded = LoadedEngine(folder, ALL_GIB, **settings)
        differing = sum(a != b for a, b in zip(expected, offloaded.decode(SHORT_BATCH).tokens, strict=True))
        print(f"{SHORT_LAYERS} layers, {name}: {differing} of {SHORT_BATCH} answers differ", flush=True)
        bars.add(f"short_{name.replace(', ', '_').replace(' ', '_')}_answers_that_differ", differing, "==", 0)
        free(offloaded)
    caches: list[int] = []
    for size in (0, ALL_GIB):
        loaded = LoadedEngine(folder, size, num_blocks=None, gpu_memory_utilization=0.25)
        caches.append(loaded.cache_bytes)
        freed = loaded.host_bytes - loaded.buffer_bytes
        free(loaded)
    print(f"KV cache {caches[0] / _GIB:.2f} -> {caches[1] / _GIB:.2f} GiB, weights {freed / _GIB:.2f} GiB less")
    bars.add("kv_cache_growth_over_freed_weights", (caches[1] - caches[0]) / freed, ">=", 0.9)


def free(loaded: LoadedEngine) -> None:
    """Free the engine's memory before the next engine is loaded."""
    loaded.engine.close()
    del loaded.engine
    gc.collect()
    torch.cuda.empty_cache()


def measure(folder: Path, sizes: Sequence[float], bus: float, bars: Bars) -> None:
    """Time decode steps at each offloaded size; prints the table."""
    print(f"\nLlama-8B shapes, bfloat16; GiB offloaded, tokens/s and their share of the floor at {bus / 1e9:.1f} GB/s")
    titles = "".join(f"{f'batch {batch}':>20}" for batch in BATCHES)
    print(f"{'size':>6}{'host':>7}{'buffers':>9}{'on GPU':>8}{'floor ms':>10}{titles}{'load s':>8}", flush=True)
    baselines: dict[int, Decoded] = {}
    resident_bytes = 0
    for size in sizes:
        loaded = LoadedEngine(folder, size)
        loaded.decode(1, 4)  # compiles the remaining kernels
        floor_s, cells = loaded.host_bytes / bus, ""
        if not size:
            resident_bytes = loaded.device_bytes
        for batch in BATCHES:
            result = loaded.decode(batch)
            baseline = baselines.setdefault(batch, result)
            floor = max(floor_s, baseline.step_s)
            cells += f"{batch / result.step_s:>13,.1f} {floor / result.step_s:6.1%}"
            if size:
                differing = sum(a != b for a, b in zip(baseline.tokens, result.tokens, strict=True))
                bars.add(f"answers_that_differ_at_{size:g}_gib_batch_{batch}", differing, "==", 0)
                bars.add(f"of_floor_at_{size:g}_gib_batch_{batch}", floor / result.step_s, ">=", MIN_SHARE_OF_FLOOR)
        parts = (loaded.host_bytes, loaded.buffer_bytes, loaded.device_bytes)
        widths = (7, 9, 8)
        shown = "".join(f"{part / _GIB:>{width}.2f}" for part, width in zip(parts, widths, strict=True))
        print(f"{size:>6g}{shown}{floor_s * 1e3:>10.1f}{cells}{loaded.load_s:>8.1f}", flush=True)
        if size:
            freed = (resident_bytes - loaded.device_bytes) / (loaded.host_bytes - loaded.buffer_bytes)
            bars.add(f"freed_over_stated_at_{size:g}_gib", freed, ">=", 0.99)
        free(loaded)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=float, nargs="+", default=[4.0, 8.0, 12.0], help="GiB to offload")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.gpu.offload: torch finds no CUDA device here")
    bars, bus = Bars(), bus_bytes_per_s()
    print(f"{torch.cuda.get_device_name()}: {bus / 1e9:.1f} GB/s from pinned memory", flush=True)
    with tempfile.TemporaryDirectory() as name:
        short_model, full_model = Path(name, "short"), Path(name, "full")
        for folder, layers in ((short_model, SHORT_LAYERS), (full_model, LLAMA_8B["num_hidden_layers"])):
            folder.mkdir()
            config = LLAMA_8B | {"num_hidden_layers": layers}
            (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        check_short(short_model, bars)
        measure(full_model, [0.0, *options.sizes], bus, bars)
    bars.finish()


if __name__ == "__main__":
    main()
