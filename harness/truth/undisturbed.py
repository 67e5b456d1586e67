"""What a process does so that nothing comes between a due time and its write."""

import gc
import os

from harness.errors import TruthFailed
from harness.host.realtime import claim_core, go_first


def without_collections() -> None:
    """Switch the collector off: a collection takes milliseconds, and the server leaves no cycles behind."""
    gc.collect()
    gc.freeze()
    gc.disable()


def stay_on(core: int) -> None:
    """Keep to ``core``, at real-time priority where that is allowed.

    Raises:
        TruthFailed: this process may not use that core.
    """
    try:
        claim_core(core)
    except (OSError, ValueError, OverflowError) as error:
        cores = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        raise TruthFailed(f"core {core} cannot be used; this process may use {cores}") from error
    go_first()
