"""The cache gap that a run stores, against a second run without its cause."""

import json
from pathlib import Path
from typing import Any

import pytest

from bakeoff.harness.virtual import Fixed, PerToken, VirtualEngine, virtual_experiment, virtual_run
from bakeoff.results.records import CacheCause, CacheGaps
from bakeoff.results.run.cache import cache_gaps_of, largest_cause


def session(name: str) -> dict[str, Any]:
    """Six calls, each 128 tokens longer than the one before."""
    ids = [100 * int(name[1:]) + k for k in range(1, 13)]
    requests = [
        {"t": 2.0 * k, "type": "n", "in": 128 * (k + 1), "out": 4, "hash_ids": ids[: 2 * (k + 1)], "api_time": 0.2}
        for k in range(6)
    ]
    return {"id": name, "block_size": 64, "requests": requests}


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "sessions.jsonl"
    path.write_text("".join(json.dumps(session(f"s{number}")) + "\n" for number in range(8)))
    return str(path)


def gaps_of(trace: str, root: Path, engine: VirtualEngine) -> CacheGaps:
    experiment = virtual_experiment(
        ["a"],
        [{"concurrency": 4}],
        workload={"name": "trace", "options": {"path": trace, "format": "claude-code"}},
        trial={"warm_up_s": 0.0},
        rules="mlperf-endpoints",
        repeats=1,
    )
    (found,) = cache_gaps_of(virtual_run(experiment, {"a": engine}, root))
    return found.gaps


def engine(cache_tokens: int | None, block_tokens: int | None = 16) -> VirtualEngine:
    service = PerToken(Fixed(0.1), Fixed(0.02))
    return VirtualEngine(service=service, cache_block_tokens=block_tokens, cache_tokens=cache_tokens)


def test_what_a_small_cache_evicts_is_what_a_large_one_finds(trace: str, tmp_path: Path):
    small = gaps_of(trace, tmp_path / "small", engine(1200)).whole
    large = gaps_of(trace, tmp_path / "large", engine(None)).whole
    assert large.observed is not None
    assert small.observed is not None
    assert large.observed > small.observed + 0.2
    assert small.parts[CacheCause.EVICTION] == pytest.approx(large.observed - small.observed, abs=0.02)
    assert largest_cause(small) is CacheCause.EVICTION
    assert small.unexplained == pytest.approx(0, abs=0.02)
    assert CacheCause.EVICTION not in large.parts


def steady_gaps_of(workload: dict[str, Any], trial: dict[str, Any], root: Path) -> CacheGaps:
    trial = {"warm_up_s": 0.0, "ramp_s": 1.0, "duration_s": 3.0, "min_requests": 8} | trial
    experiment = virtual_experiment(["a"], [{"concurrency": 4}], workload=workload, trial=trial, repeats=1)
    (found,) = cache_gaps_of(virtual_run(experiment, {"a": engine(None)}, root))
    return found.gaps


def test_histories_of_sessions_in_progress_can_be_found(trace: str, tmp_path: Path):
    """Each window holds one or two calls of a session, whose prefixes were sent before the load."""
    options = {"path": trace, "format": "claude-code", "repeat": True, "salt": True}
    whole = steady_gaps_of({"name": "trace", "options": options}, {}, tmp_path).whole
    assert whole.observed is not None
    assert whole.observed > 0.5
    assert whole.unexplained == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("cache", ["primed", "warm"])
def test_what_fills_the_cache_before_the_load_can_be_found(cache: str, tmp_path: Path):
    """With ``primed`` the system prompt, with ``warm`` all of every prompt."""
    workload = {"name": "structured-output", "options": {"scale": 2.0}}
    whole = steady_gaps_of(workload, {"cache": cache}, tmp_path).whole
    assert whole.observed is not None
    assert (whole.observed > 0.9) == (cache == "warm")
    assert whole.unexplained == pytest.approx(0, abs=0.02)


def test_a_cache_that_is_off_is_named(trace: str, tmp_path: Path):
    gaps = gaps_of(trace, tmp_path, engine(None, None))
    assert largest_cause(gaps.whole) is CacheCause.OFF
    assert (gaps.whole.observed, gaps.is_assumed) == (None, True)
