"""Observes the server from outside: its memory over time, and the requests and blocks that it holds at the end."""

import asyncio
import statistics
import time
from collections.abc import Sequence

import psutil

from tests.acceptance.engine.soaking.client import Client

HELD = ("vllm:num_requests_running", "vllm:num_requests_waiting", "reference_engine_kv_cache_used_blocks")
SAMPLE_S = 1.0


async def memory_bytes(pid: int) -> list[tuple[int, int]]:
    """Resident bytes of a process and of its children, sampled every second until cancelled or until it ends."""
    samples: list[tuple[int, int]] = []
    try:
        process = psutil.Process(pid)
        while True:
            children = sum(child.memory_info().rss for child in process.children(recursive=True))
            samples.append((process.memory_info().rss, children))
            await asyncio.sleep(SAMPLE_S)
    except (asyncio.CancelledError, psutil.NoSuchProcess):
        return samples


def drift(samples: Sequence[int]) -> float:
    """Relative increase from the median of the second fifth to that of the last; NaN for fewer than ten samples."""
    fifth = len(samples) // 5
    if fifth < 2:
        return float("nan")
    return statistics.median(samples[-fifth:]) / statistics.median(samples[fifth : 2 * fifth]) - 1


async def left_over(client: Client, limit_s: float) -> dict[str, float]:
    """The `HELD` metrics of the server, once all are 0 or after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        _, page = await client.ask("GET", "/metrics")
        lines = [line.rpartition(" ") for line in page.decode().splitlines() if not line.startswith("#")]
        values = {series.partition("{")[0]: float(value) for series, _, value in lines}
        held = {name: values[name] for name in HELD}
        if not any(held.values()) or time.monotonic() > deadline:
            return held
        await asyncio.sleep(0.2)
