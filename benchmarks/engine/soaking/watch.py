"""What the soak sees of the server from outside: its memory over time, and what it still holds at the end."""

import asyncio
import statistics
import time
from collections.abc import Sequence

import psutil

from benchmarks.engine.soaking.client import Client

HELD = ("vllm:num_requests_running", "vllm:num_requests_waiting", "reference_engine_kv_cache_used_blocks")
SAMPLE_S = 1.0


async def memory_bytes(pid: int) -> list[tuple[int, int]]:
    """Resident bytes of a process, and of its children, each second until cancelled or until it is gone."""
    samples: list[tuple[int, int]] = []
    try:
        process = psutil.Process(pid)
        while True:
            children = sum(one.memory_info().rss for one in process.children(recursive=True))
            samples.append((process.memory_info().rss, children))
            await asyncio.sleep(SAMPLE_S)
    except (asyncio.CancelledError, psutil.NoSuchProcess):
        return samples


def drift(samples: Sequence[int]) -> float:
    """Share by which the median of the last fifth is above that of the second fifth; NaN for fewer than ten samples."""
    fifth = len(samples) // 5
    if fifth < 2:
        return float("nan")
    return statistics.median(samples[-fifth:]) / statistics.median(samples[fifth : 2 * fifth]) - 1


async def left_over(client: Client, limit_s: float) -> dict[str, float]:
    """What the server says that it still holds, when that is nothing or the limit has passed."""
    deadline = time.monotonic() + limit_s
    while True:
        _, page = await client.ask("GET", "/metrics")
        lines = [line.rpartition(" ") for line in page.decode().splitlines() if not line.startswith("#")]
        values = {series.partition("{")[0]: float(value) for series, _, value in lines}
        held = {name: values[name] for name in HELD}
        if not any(held.values()) or time.monotonic() > deadline:
            return held
        await asyncio.sleep(0.2)
