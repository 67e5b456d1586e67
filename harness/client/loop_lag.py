"""How late this process's event loop is: the error that a busy client adds to every stamp."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

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


@contextlib.asynccontextmanager
async def measured_loop_lag() -> AsyncGenerator[LoopLag]:
    """Measure while the block runs."""
    lag = LoopLag()
    task = asyncio.create_task(_beat(lag))
    try:
        yield lag
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _beat(lag: LoopLag) -> None:
    while True:
        due_ns = time.monotonic_ns() + int(_TICK_S * 1e9)
        await asyncio.sleep(_TICK_S)
        lag.late_ns.append(max(0, time.monotonic_ns() - due_ns))
