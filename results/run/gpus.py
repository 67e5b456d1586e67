"""The number of GPUs that an engine uses, from the memory that its starts took."""

from bakeoff.results.records import FaultAction, Startup
from bakeoff.results.run.run import Run

_IN_USE_BYTES = 1 << 30
"""A GPU belongs to the engine if its memory in use grew by more than this during the engine's start."""


def gpus_used(run: Run, engine: str) -> int | None:
    """The most GPUs that a start of the engine took.

    None if no start showed one, or if a replica was started under load: its GPUs were not looked at.
    """
    records = [trial.record for trial in run.finished if trial.record.engine == engine]
    if any(fault.action is FaultAction.START for record in records for fault in record.faults):
        return None
    starts = [record.startup for record in records]
    return max((_grown(start) for start in starts if start), default=0) or None


def _grown(start: Startup) -> int:
    pairs = zip(start.gpu_used_before_bytes, start.gpu_used_ready_bytes, strict=False)
    return sum(ready - before > _IN_USE_BYTES for before, ready in pairs)
