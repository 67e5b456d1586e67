"""How late this process's event loop is: the error that a busy client adds to every stamp."""

import asyncio
import contextlib
from collections.abc import Generator

import numpy as np

from results.records import TelemetryRecord

_TICK_S = 0.02


class LoopLag:
    """Lateness of a 20 ms heartbeat."""

    def __init__(self) -> None:
        self.late_ns: list[int] = []

    def summary(self, t_ns: int) -> TelemetryRecord:
        """Percentiles as one ``client_loop`` record; null with a reason when the loop ran too short to tell."""
        names = ("loop_lag_p50_s", "loop_lag_p99_s", "loop_lag_max_s")
        if not self.late_ns:
            reason = "the load was on for less than one heartbeat"
            return TelemetryRecord(t_ns, "client_loop", dict.fromkeys(names), dict.fromkeys(names, reason))
        values = np.quantile(np.asarray(self.late_ns) / 1e9, [0.5, 0.99, 1.0])
        return TelemetryRecord(t_ns, "client_loop", {n: float(v) for n, v in zip(names, values, strict=True)})


@contextlib.contextmanager
def measured_loop_lag() -> Generator[LoopLag]:
    """Measure while the block runs on the running loop; plain callbacks, because the heart beats beside the load."""
    loop, lag = asyncio.get_running_loop(), LoopLag()

    def beat(due_s: float) -> None:
        nonlocal handle
        now_s = loop.time()
        lag.late_ns.append(max(0, round((now_s - due_s) * 1e9)))
        handle = loop.call_later(_TICK_S, beat, now_s + _TICK_S)

    handle = loop.call_later(_TICK_S, beat, loop.time() + _TICK_S)
    try:
        yield lag
    finally:
        handle.cancel()
