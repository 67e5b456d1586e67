"""Measures the peak memory bandwidth and matrix products of this machine's processors and GPUs.

Imports torch, which is an extra: import this module only when a measurement is wanted.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from bakeoff.harness.host.environment import cpu_model
from bakeoff.results.machine.ceilings import COPY, READ, Ceilings

_ROUND_S = 0.02  # many calls together: a GPU runs behind its host, and waiting for it costs time
_DTYPES: Mapping[str, tuple[torch.dtype, ...]] = {
    "cpu": (torch.float32, torch.bfloat16),
    "cuda": (torch.float32, torch.float16, torch.bfloat16),
}
_FP8_CAPABILITY = (8, 9)  # the first with tensor cores for 8-bit floats


class Size(msgspec.Struct, frozen=True):
    """Size of a measurement: bytes of the tensor that is read, and rows of the square matrices."""

    memory_bytes: int
    rows: int


def measure_machine(seconds: float = 0.5) -> list[Ceilings]:
    """Measure the processor, then each GPU.

    Args:
        seconds: for each figure; a GPU needs several to heat up or to reach its power limit.
    """
    devices = [torch.device("cpu"), *(torch.device("cuda", index) for index in range(torch.cuda.device_count()))]
    return [measure(device, seconds) for device in devices]


def measure(device: torch.device, seconds: float, size: Size | None = None) -> Ceilings:
    """Measure one device.

    Args:
        device: a processor or a GPU.
        seconds: for each figure.
        size: None for a suitable one.
    """
    name, total = _described(device)
    is_cuda = device.type == "cuda"
    size = size or Size(min(total // 16, 4 << 30 if is_cuda else 512 << 20), 8192 if is_cuda else 1024)
    wait: Callable[[], object] = (lambda: torch.cuda.synchronize(device)) if is_cuda else (lambda: None)
    reads, copies = _memory(size.memory_bytes, device, wait, seconds)
    products = {str(dtype).removeprefix("torch."): _product(dtype, size.rows, device) for dtype in _DTYPES[device.type]}
    if is_cuda and torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY:
        products["float8_e4m3fn"] = _fp8_product(size.rows, device)
    sustained = {name: _sustained(call, wait, seconds) for name, call in products.items()}
    read_bytes, copied_bytes, flops = size.memory_bytes, 2 * size.memory_bytes, 2 * size.rows**3
    return Ceilings(
        device=str(device),
        name=name,
        memory_bytes=total,
        read_bytes_per_s=read_bytes * max(reads),
        copy_bytes_per_s=copied_bytes * max(copies),
        # Other processes slow down rounds on a CPU. On a GPU the fastest round may be one before the power limit.
        flops_per_s={
            name: flops * (statistics.median(rounds) if is_cuda else max(rounds)) for name, rounds in sustained.items()
        },
        spread={
            READ: _spread(reads, read_bytes),
            COPY: _spread(copies, copied_bytes),
            **{name: _spread(rounds, flops) for name, rounds in sustained.items()},
        },
        threads=None if is_cuda else torch.get_num_threads(),
    )


def _memory(
    size_bytes: int, device: torch.device, wait: Callable[[], object], seconds: float
) -> tuple[list[float], list[float]]:
    """Reads and copies per second of a tensor with so many bytes, in each round; frees the tensor afterwards."""
    source = torch.ones(size_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return rates(source.sum, wait, seconds), rates(lambda: target.copy_(source), wait, seconds)


def _spread(rounds: Sequence[float], amount: int) -> tuple[float, float]:
    """10th percentile and maximum of the rounds, in units of what a call moves or computes."""
    return amount * sorted(rounds)[len(rounds) // 10], amount * max(rounds)


def rates(
    call: Callable[[], object],
    wait: Callable[[], object],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Calls per second in consecutive rounds, after one call that is not counted.

    Args:
        call: the measured operation; may return before it is done.
        wait: returns when all calls are done.
        seconds: approximate total; at least one round is measured.
        clock: in seconds.
    """
    call()
    wait()
    began = last = clock()
    calls, rounds = 1, list[float]()
    while not rounds or last - began < seconds:
        for _ in range(calls):
            call()
        wait()
        now = clock()
        rounds.append(calls / max(now - last, 1e-9))
        calls = max(1, round(rounds[-1] * _ROUND_S))
        last = now
    return rounds


def _sustained(call: Callable[[], object], wait: Callable[[], object], seconds: float) -> list[float]:
    """Calls per second in the second half of the rounds: a GPU is faster before it meets its power limit."""
    rounds = rates(call, wait, seconds)
    return rounds[len(rounds) // 2 :]


def _product(dtype: torch.dtype, rows: int, device: torch.device) -> Callable[[], object]:
    """Make a product of random numbers, because a product of zeros takes less power."""
    matrix = torch.randn(rows, rows, device=device).to(dtype)
    result = torch.empty_like(matrix)
    return lambda: torch.mm(matrix, matrix, out=result)


def _fp8_product(rows: int, device: torch.device) -> Callable[[], object]:
    matrix = torch.randn(rows, rows, device=device).to(torch.float8_e4m3fn)
    unit_scale = torch.ones((), device=device)
    # cuBLAS requires the second matrix in column order.
    multiply: Any = torch._scaled_mm  # noqa: SLF001  # pyright: ignore[reportPrivateImportUsage]  (no public name)
    return lambda: multiply(matrix, matrix.t(), unit_scale, unit_scale, out_dtype=torch.bfloat16)


def _described(device: torch.device) -> tuple[str, int]:
    """Name of the device, and bytes of its memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device), torch.cuda.mem_get_info(device)[1]
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{cpu_model() or platform.machine()}, {torch.get_num_threads()} threads", total
