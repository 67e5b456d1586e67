"""Durations of decode steps by their rows, measured when the engine starts."""

import time

import torch

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.models.execution import Batch, Executor
from bakeoff.reference_engine.speculation.draft_lengths import StepCosts

_REPEATS = 5


def measure_step_costs(executor: Executor, max_rows: int) -> StepCosts:
    """The shortest of several steps of 1, 2, 4, … and `max_rows` rows, without a context to attend to."""
    rows = [1 << power for power in range(max_rows.bit_length()) if 1 << power < max_rows] + [max_rows]
    return StepCosts(rows, [min(_duration_s(executor, count) for _ in range(_REPEATS)) for count in rows])


@torch.inference_mode()
def _duration_s(executor: Executor, rows: int) -> float:
    storage = executor.storage
    span = Span([[block] for block in storage.padding_blocks], 0, 1)
    batch = Batch(BlockCopies(), [span] * rows, [0] * rows, [0] * rows, list(range(rows)))
    _wait(storage.device)
    began = time.perf_counter()
    executor.execute(batch)
    _wait(storage.device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.cuda.synchronize(device)
