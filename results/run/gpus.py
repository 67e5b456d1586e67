"""The number of GPUs that an engine uses, from the memory that its starts took."""

from bakeoff.results.records import Startup
from bakeoff.results.run.run import Run

_IN_USE_BYTES = 1 << 30
"""A GPU belongs to the engine if its memory in use grew by more than this during the engine's start."""


def gpus_used(run: Run, engine: str) -> int | None:
    """The most GPUs that a start of the engine took; None if no start showed one."""
    starts = [trial.record.startup for trial in run.finished if trial.record.engine == engine]
    return max((_grown(start) for start in starts if start), default=0) or None


def _grown(start: Startup) -> int:
    pairs = zip(start.gpu_used_before_bytes, start.gpu_used_ready_bytes, strict=False)
    return sum(ready - before > _IN_USE_BYTES for before, ready in pairs)
