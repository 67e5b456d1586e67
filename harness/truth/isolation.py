"""Keeps other work from delaying the server's process between a due time and its write."""

import gc

from bakeoff import system
from bakeoff.harness.errors import TruthFailed
from bakeoff.harness.host.realtime import claim_core, raise_priority


def disable_gc() -> None:
    """Switch garbage collection off: a collection takes milliseconds, and the server creates no reference cycles."""
    gc.collect()
    gc.freeze()
    gc.disable()


def pin_to_core(core: int) -> None:
    """Pin this process to ``core``, at real-time priority where that is allowed.

    Raises:
        TruthFailed: this process may not use that core.
    """
    if not system.CAN_BIND:
        raise TruthFailed("this system binds no process to a core; leave the core out")
    try:
        claim_core(core)
    except (OSError, ValueError, OverflowError) as error:
        cores = ", ".join(map(str, system.usable_cores()))
        raise TruthFailed(f"core {core} cannot be used; this process may use {cores}") from error
    raise_priority()
