"""The parts of the cache gap against runs in which their causes are removed: ``python -m benchmarks.agents.cache_gap``.

Each case is a trace of random sessions that share prefixes, played in virtual time by an engine with a prefix cache:
from the first call, or as a load in its long run, which begins with sessions in progress. The run is repeated with its
causes removed one after the other: a cache without limit, no salt, blocks of one token. A part of the first run should
be the rise of the engine's own hit share from one run to the next. Loads in their long run have no salt: their phases
have other words without it as well.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.harness.virtual import Fixed, PerToken, VirtualEngine, virtual_experiment, virtual_run
from bakeoff.results.records import CacheCause, CacheGap
from benchmarks.bars import Bars

_MAX_ERROR, _MIN_NAMED, _NEAR_TIE = 0.02, 0.95, 0.01


class Case(msgspec.Struct, frozen=True):
    """A case.

    Attributes:
        cache_tokens: size of the cache; None without limit.
        block_tokens: of the cache.
        is_salted: whether plays of a session have words of their own.
        concurrency: sessions at once.
        is_steady: whether the load is in its long run.
    """

    cache_tokens: int | None
    block_tokens: int
    is_salted: bool
    concurrency: int
    is_steady: bool = False


def trace(rng: random.Random) -> list[dict[str, Any]]:
    """Sessions that grow from call to call behind one of a few system prompts."""
    sessions: list[dict[str, Any]] = []
    for number in range(rng.randint(4, 8)):
        system = rng.randrange(3)
        blocks = [1000 * system + k for k in range(1, rng.randint(1, 4) + 1)]
        requests: list[dict[str, Any]] = []
        at_s = 0.0
        for _ in range(rng.randint(2, 8)):
            blocks = [*blocks, *(rng.randrange(10**6, 10**9) for _ in range(rng.randint(1, 4)))]
            rest = rng.randrange(64)
            tokens, hash_ids = 64 * len(blocks) + rest, list(blocks)
            requests.append(
                {"t": at_s, "type": "n", "in": tokens, "out": 5, "hash_ids": hash_ids, "api_time": 0.2}
            )  # fmt: skip
            at_s += rng.uniform(0.3, 3)
        sessions.append({"id": f"s{number}", "block_size": 64, "hash_id_scope": "global", "requests": requests})
    return sessions


def case_of(rng: random.Random, tokens: int) -> Case:
    """A random case for a trace with so many prompt tokens."""
    size = rng.choice([None, rng.uniform(0.05, 0.4)])
    capacity = None if size is None else max(1024, round(size * tokens))
    case = Case(capacity, rng.choice([16, 32, 64]), rng.random() < 0.5, rng.randint(2, 6))
    return msgspec.structs.replace(case, is_steady=not case.is_salted and rng.random() < 0.5)


def measured(case: Case, path: Path, sessions: int, root: Path) -> CacheGap:
    """The cache gap of a run."""
    options = {"path": str(path), "format": "claude-code", "repeat": True, "salt": case.is_salted}
    steady = {"warm_up_s": 0.0, "ramp_s": 2.0, "duration_s": 10.0, "min_requests": 20}
    experiment = virtual_experiment(
        ["engine"],
        [{"concurrency": case.concurrency}],
        workload={"name": "trace", "options": options},
        trial=steady if case.is_steady else {"warm_up_s": 0.0, "max_requests": 2 * sessions},
        rules="steady" if case.is_steady else "mlperf-endpoints",
        repeats=1,
    )
    engine = VirtualEngine(
        service=PerToken(Fixed(0.1), Fixed(0.02)), cache_block_tokens=case.block_tokens, cache_tokens=case.cache_tokens
    )
    gaps = virtual_run(experiment, {"engine": engine}, root).finished[0].record.cache_gaps
    assert gaps is not None
    return gaps.whole


def steps(case: Case) -> list[tuple[CacheCause, Case]]:
    """The causes of a case in their order, each with the case in which it and those before are removed."""
    removed: list[tuple[CacheCause, dict[str, Any]]] = []
    if case.cache_tokens is not None:
        removed.append((CacheCause.EVICTION, {"cache_tokens": None}))
    if case.is_salted:
        removed.append((CacheCause.SALT, {"is_salted": False}))
    removed.append((CacheCause.ROUNDING, {"block_tokens": 1}))
    result: list[tuple[CacheCause, Case]] = []
    for cause, changes in removed:
        case = msgspec.structs.replace(case, **changes)
        result.append((cause, case))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    cases = parser.parse_args().cases
    errors: dict[CacheCause, list[float]] = {}
    named: list[bool] = []
    unexplained: list[float] = []
    for seed in range(cases):
        rng = random.Random(seed)
        sessions = trace(rng)
        case = case_of(rng, sum(request["in"] for session in sessions for request in session["requests"]))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.jsonl"
            path.write_text("".join(json.dumps(session) + "\n" for session in sessions))
            gap = measured(case, path, len(sessions), Path(folder) / "runs")
            true: dict[CacheCause, float] = {}
            before = gap.observed
            for cause, changed in steps(case):
                after = measured(changed, path, len(sessions), Path(folder) / cause).observed
                assert before is not None
                assert after is not None
                true[cause], before = after - before, after
        for cause, part in true.items():
            errors.setdefault(cause, []).append(gap.parts[cause] - part)
        unexplained.append(gap.unexplained or 0.0)
        first, *others = sorted(true.values(), reverse=True)
        if not others or first - others[0] > _NEAR_TIE:
            named.append(max(true, key=lambda cause: gap.parts[cause]) is max(true, key=lambda cause: true[cause]))
        sys.stderr.write(f"\r{seed + 1} of {cases}")
    print("\ncause      cases  mean error  largest error (points)")
    for cause, values in errors.items():
        print(
            f"{cause:10} {len(values):5}  {100 * statistics.fmean(values):10.3f}  {100 * max(map(abs, values)):13.3f}"
        )
    largest = max(map(abs, unexplained))
    print(f"unexplained: mean {100 * statistics.fmean(unexplained):.3f}, largest {100 * largest:.3f}")
    worst = max(abs(error) for values in errors.values() for error in values)
    share = statistics.fmean(named)
    print(f"largest cause named right in {sum(named)} of {len(named)} cases without a near tie")
    bars = Bars()
    bars.add("part_error", worst, "<=", _MAX_ERROR)
    bars.add("largest_cause_named", share, ">=", _MIN_NAMED)
    bars.finish()


if __name__ == "__main__":
    main()
