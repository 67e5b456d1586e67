"""Memory of the engine against its estimate from config.json, for each method of quantisation and kind of KV cache.

    python -m tests.acceptance.quantisation.memory [--model FOLDER] [--only int4 ...]

`estimate_memory` counts weights, KV cache and the peak of the largest step; then these are built and measured. On a CPU
the packaged model is used: measured are the tensors that it keeps, and the allocations of a step that torch's profiler
records. On a GPU Llama-3.1-8B shapes with random weights are used: measured are `torch.cuda.memory_allocated` and its
peak, which leave out CUDA graphs. Fails if the sum is off by more than 3 %.
"""

import argparse
import gc
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from bakeoff.reference_engine.core.config import DeviceName, EngineConfig
from bakeoff.reference_engine.engine.executors import attention_of, max_rows_of, run_largest, storage_of
from bakeoff.reference_engine.engine.gpu_memory import largest_batch
from bakeoff.reference_engine.engine.memory_estimate import MemoryEstimate, estimate_memory
from bakeoff.reference_engine.engine.resolution import DTYPES, demand_of, resolve_config
from bakeoff.reference_engine.loading.checkpoint import Checkpoint, open_checkpoint
from bakeoff.reference_engine.models.decoder import Model
from bakeoff.reference_engine.models.execution import LocalExecutor
from bakeoff.reference_engine.models.offload import tensors_of
from bakeoff.reference_engine.models.registry import build_model
from bakeoff.reference_engine.quantization.methods import METHODS
from benchmarks.bars import Bars
from benchmarks.gpu.offline import LLAMA_8B

MAX_ERROR = 0.03
_MIB = 1 << 20
CACHES = ("int8", "fp8", "int4")
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
}
"""`quantization_config` by name of the format; checkpoints of these formats are random."""


def peak_bytes(step: Callable[[], None]) -> int:
    """Peak of the bytes that torch allocates on the CPU during a step, those within its operations included."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = profile.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(itertools.accumulate(change for _, change in changes), default=0)


class Measured:
    """Measured memory of a model, a KV cache and a step, which are built one after the other.

    Args:
        config: resolved by `resolve_config`.
        checkpoint: of the model.
        device: to build them on.
        libraries_bytes: allocated on it for libraries before.
    """

    def __init__(
        self, config: EngineConfig, checkpoint: Checkpoint, device: torch.device, libraries_bytes: int
    ) -> None:
        self._device = device
        demand = demand_of(config, checkpoint.config)
        before = self._allocated()
        model = build_model(
            checkpoint.config, checkpoint.weights, max_positions=demand.max_model_len, dtype=DTYPES[config.dtype],
            device=device, quantization=config.quantization,
        )  # fmt: skip
        gc.collect()
        self.weights = self._allocated() - before if device.type == "cuda" else held_bytes(model)
        storage = storage_of(config, demand, config.num_blocks or 1, device)
        self.kv_cache = storage.bytes
        executor = LocalExecutor(model, attention_of(config, storage), storage)
        batch, needed = largest_batch(demand, max_rows_of(config, demand))
        assert needed <= (config.num_blocks or 0), f"a step needs {needed} blocks"
        self.workspace = self._peak(lambda: run_largest(executor, batch)) + libraries_bytes

    @property
    def total(self) -> int:
        """All bytes."""
        return self.weights + self.kv_cache + self.workspace

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self._device) if self._device.type == "cuda" else 0

    def _peak(self, step: Callable[[], None]) -> int:
        if self._device.type != "cuda":
            step()  # the first use compiles
            return peak_bytes(step)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = self._allocated()
        step()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before


def held_bytes(model: Model) -> int:
    """Bytes of the tensors that a model keeps; tensors that share memory count once."""
    sizes: dict[int, int] = {}
    for tensor in tensors_of(model):
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        else:
            sizes[id(tensor)] = tensor.nbytes  # oneDNN's packed weights
    return sum(sizes.values())


def cases() -> dict[str, dict[str, Any]]:
    """Settings of the engine by name."""
    methods = {name: {"quantization": name} for name in ("none", *METHODS)}
    caches = {f"none, {kind} cache": {"quantization": "none", "kv_cache_dtype": kind} for kind in CACHES}
    return methods | caches | {f"{name} checkpoint": {"quantization": "stored", "format": name} for name in FORMATS}


def libraries_of(device: torch.device) -> int:
    """Bytes that torch allocates for cuBLAS at the first product."""
    if device.type != "cuda":
        return 0
    before = torch.cuda.memory_allocated(device)
    for dtype in (torch.bfloat16, torch.float32):
        square = torch.ones(64, 64, dtype=dtype, device=device)
        torch.mm(square, square)
    del square
    return torch.cuda.memory_allocated(device) - before


def folder_of(root: Path, model: Path | None, form: str | None) -> Path:
    """The model's own folder, or a new one with the config.json of a case with random weights."""
    if model is not None and form is None:
        return model
    raw = LLAMA_8B if model is None else json.loads((model / "config.json").read_text(encoding="utf-8"))
    raw = raw | ({} if form is None else {"quantization_config": {**FORMATS[form], **_fitting(form, raw)}})
    folder = root / (form or "plain")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return folder


def _fitting(form: str, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A group size that divides the widths of the model."""
    return {} if raw["hidden_size"] % FORMATS[form]["group_size"] == 0 else {"group_size": 64}


def row(name: str, estimate: MemoryEstimate, measured: Measured, seconds: float) -> tuple[str, float]:
    """A line of the table, and the error of the sum."""
    parts = ("weights", "kv_cache", "workspace", "total")
    pairs = [(getattr(estimate, part), getattr(measured, part)) for part in parts]
    error = estimate.total / measured.total - 1
    cells = "".join(f"{estimated / _MIB:>11,.1f}{actual / _MIB:>11,.1f}" for estimated, actual in pairs)
    return f"{name:<20}{cells}{error:>+9.2%}{seconds:>6.1f}", error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("BAKEOFF_TEST_MODEL")
    parser.add_argument("--model", type=Path, help="checkpoint folder; default: on a CPU the packaged one")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, help="of a step; default: the engine's")
    parser.add_argument("--only", nargs="+", choices=list(cases()), help="cases; default: all")
    options = parser.parse_args()
    has_cuda = options.device != "cpu" and torch.cuda.is_available()
    kind: DeviceName = "cuda" if has_cuda else "cpu"
    device = torch.device(kind)
    model = options.model or (None if has_cuda or default is None else Path(default))
    if model is None and not has_cuda:
        parser.error("--model: a CPU needs a checkpoint folder (make model)")
    torch.set_num_threads(1)  # several threads wait for each other on a busy machine
    libraries, bars = libraries_of(device), Bars()
    titles = "".join(f"{title:>22}" for title in ("weights", "KV cache", "workspace", "total"))
    print(f"MiB, estimated and measured, on {torch.cuda.get_device_name() if has_cuda else 'a CPU'}, {options.dtype}")
    print(f"{'':<20}{titles}{'error':>9}{'s':>6}", flush=True)
    with tempfile.TemporaryDirectory() as root:
        for name, settings in cases().items():
            if options.only and name not in options.only:
                continue
            began = time.monotonic()
            form = settings.pop("format", None)
            folder = folder_of(Path(root), model, form)
            is_dummy = form is not None or model is None
            config = EngineConfig(
                model=str(folder), load_format="dummy" if is_dummy else "auto", device=kind,
                dtype=options.dtype, max_model_len=4096 if has_cuda else 1024, num_blocks=1024 if has_cuda else 512,
                max_num_batched_tokens=options.tokens, **settings,
            )  # fmt: skip
            checkpoint = open_checkpoint(folder, config.load_format)
            config = resolve_config(config, checkpoint.config)
            estimate = estimate_memory(config, checkpoint, device)
            measured = Measured(config, checkpoint, device, libraries)
            line, error = row(name, estimate, measured, time.monotonic() - began)
            print(line, flush=True)
            bars.add(f"{name.replace(', ', '_').replace(' ', '_')}_error", abs(error), "<=", MAX_ERROR)
            gc.collect()
    bars.finish()


if __name__ == "__main__":
    main()
