"""Which exit code a gate of equal and of slower engines ends with. Simulated requests, fixed seeds.

    python -m benchmarks.statistics.outcomes [--gates 200]

Each trial draws its requests: log-normal times with a Pareto tail, failures, and noise that is shared by all metrics of
a trial. Whole gates run through :func:`bakeoff.results.compare.gate.judge`, with the interim analyses of ``bakeoff
gate`` where both sides are measured now. ``stored_5`` is a baseline of five stored runs. The table gives the shares of
the exit codes; the nightly run takes 2,000 gates a cell.
"""

import argparse
import dataclasses
import itertools
import math
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import msgspec
import numpy as np

from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.gate import Outcome, judge
from bakeoff.results.compare.sides import Side, side_of, together
from bakeoff.results.errors import NoEvidence
from bakeoff.results.export.benchmark_json import StoredRun, StoredTrial
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import invalid
from bakeoff.results.log.run_log import Manifest
from bakeoff.results.metrics import CATALOGUE, Absence, Value, absent
from bakeoff.results.records import Load, RunStatus, Slo, TrialPlan, TrialRecord, Verdict, Window
from bakeoff.results.run.work import Work
from bakeoff.results.statistics.comparison import ALPHA, DETECT
from bakeoff.results.statistics.sequential import analysis_schedule, nominal_levels
from benchmarks.bars import Bars

LOADS = [Load(concurrency=8), Load(concurrency=32)]
ABSENT = {name: absent("not simulated") for name in CATALOGUE}
TAILS = tuple(f"{family}_p{q}_s" for family in ("ttft", "tpot", "itl", "e2e") for q in (90, 95, 99))
P99S = tuple(f"{family}_p99_s" for family in ("ttft", "tpot", "itl", "e2e"))
DEFAULT = ("ttft_p50_s", "tpot_p50_s", "output_tokens_per_s", "requests_per_s", "failures", "attainment")
EXITS = {Outcome.NO_REGRESSION: 0, Outcome.REGRESSION: 1, Outcome.CANNOT_TELL: 2}
TTFT_SLO_S = 0.35


@dataclasses.dataclass(frozen=True)
class World:
    """Both engines, and the gate that compares them."""

    stored: int = 0
    """Runs of the baseline; 0 if both sides are measured now."""
    repeats: int = 8
    loads: int = 1
    requests: int = 1_000
    between: float = 0.0
    within: float = 0.02
    slower: float = 0.0
    """Share by which the candidate's times are longer."""
    failing: float = 0.0
    burst: int = 1
    """Requests that fail together."""
    limit: float = 1.0
    """Share of failed requests that makes a trial INVALID."""
    hiccups: float = 0.0
    """Share of the trials in which a tenth of the requests wait for half a second more."""
    has_slo: bool = False
    dead: int = 0
    """Trials in which the candidate dies."""
    metrics: tuple[str, ...] | None = None
    has_independent_tails: bool = False


def percentile(name: str, values: np.ndarray, q: float) -> Value:
    """Type 7 among times of which failed requests have infinity."""
    at = q * (len(values) - 1)
    low, high = np.partition(values, [math.floor(at), math.ceil(at)])[[math.floor(at), math.ceil(at)]].tolist()
    if math.isinf(high):
        return absent(f"{name} lies among the failed", Absence.AMONG_FAILURES)
    return Value(low + (at - math.floor(at)) * (high - low))


def failures(rng: np.random.Generator, world: World) -> np.ndarray:
    """Which requests fail, shape (requests,)."""
    begins = rng.random(math.ceil(world.requests / world.burst)) < world.failing
    return np.repeat(begins, world.burst)[: world.requests]


def times(rng: np.random.Generator, count: int, median: float) -> np.ndarray:
    """Log-normal, with a Pareto tail in one of fifty, shape (count,)."""
    tail = np.where(rng.random(count) < 0.02, 1 + rng.pareto(3, count), 1.0)
    return median * rng.lognormal(0, 0.4, count) * tail


def metrics_of(rng: np.random.Generator, world: World, factor: float) -> dict[str, Value]:
    """Metrics of one trial whose times are ``factor`` as long as the engine's."""
    failed = failures(rng, world)
    ttft, tpot = times(rng, world.requests, 0.1) * factor, times(rng, world.requests, 0.01) * factor
    if rng.random() < world.hiccups:
        ttft[: world.requests // 10] += 0.5
    e2e = ttft + 100 * tpot
    lasted_s = float(e2e.sum()) / 8
    ok = int((~failed).sum())
    metrics = dict(ABSENT)
    for family, values in (("ttft", ttft), ("tpot", tpot), ("itl", tpot), ("e2e", e2e)):
        of_all = np.where(failed, math.inf, values)
        for q in (50, 90, 95, 99):
            if world.has_independent_tails and q > 50:
                of_all = np.where(failures(rng, world), math.inf, times(rng, world.requests, 0.1) * factor)
            metrics[f"{family}_p{q}_s"] = percentile(f"p{q}", of_all, q / 100)
    metrics["output_tokens_per_s"] = Value(100 * ok / lasted_s)
    metrics["requests_per_s"] = Value(ok / lasted_s)
    metrics["failures"] = Value(float(failed.sum()))
    metrics["peak_host_bytes"] = Value(2e9 * math.exp(rng.normal(0, 0.05)))
    if world.has_slo:
        met = int((~failed & (ttft <= TTFT_SLO_S)).sum())
        metrics["attainment"] = Value(met / world.requests)
        metrics["goodput_per_s"] = Value(met / lasted_s)
    return metrics


def trial(rng: np.random.Generator, world: World, plan: TrialPlan, log: float) -> StoredTrial:
    """One trial; ``log`` is the noise of its times."""
    is_candidate = plan.engine == "b"
    metrics = metrics_of(rng, world, math.exp(log) * (1 + world.slower * is_candidate))
    failed = round(metrics["failures"].value or 0.0)
    findings = []
    if is_candidate and plan.repeat < world.dead:
        findings = [invalid(FindingCode.ENGINE_DIED, detail="killed by signal 9")]
    elif failed > world.limit * world.requests:
        counts = {"failed_requests": failed, "measured_requests": world.requests, "outcome_requests": failed}
        findings = [invalid(FindingCode.FAILED_REQUESTS, outcome="http_error", error="500", **counts)]
    record = TrialRecord(
        plan.id, plan.engine, plan.workload, plan.load, plan.repeat, order=0, started_ns=0, ended_ns=0,
        issue_start_ns=0, issue_end_ns=0, window=Window(0, 1), planned_requests=world.requests, workload_sha256="w",
        verdict=Verdict.INVALID if findings else Verdict.VALID, findings=findings,
    )  # fmt: skip
    ok = world.requests - failed
    return StoredTrial(
        record, metrics, work=Work(world.requests, ok, 100 * ok, 100 * ok, [1.0, 1.0, 1.0], {"length": ok})
    )


def run(rng: np.random.Generator, world: World, number: int, engines: str) -> StoredRun:
    """One run: its engines share the noise of the run, the metrics of a trial that of the trial."""
    loads = LOADS[: world.loads]
    plans = [
        TrialPlan(f"r{repeat}-{load.label}-{engine}", engine, "w", load, repeat)
        for repeat, load, engine in itertools.product(range(world.repeats), loads, engines)
    ]
    of_run = rng.normal(0, world.between)
    manifest = Manifest(
        run_id=f"run-{number:03}", name="gate", status=RunStatus.COMPLETE,
        created_utc=f"2026-11-{1 + number // 24:02}T{number % 24:02}:00:00+00:00", host="", bakeoff_version="",
        git_commit=None, experiment={}, environment={}, trials=plans, slo=Slo(ttft_s=TTFT_SLO_S),
    )  # fmt: skip
    return StoredRun("", manifest, [trial(rng, world, plan, of_run + rng.normal(0, world.within)) for plan in plans])


def up_to(measured: StoredRun, repeats: int) -> StoredRun:
    """The run after its first repeats."""
    return msgspec.structs.replace(measured, finished=[one for one in measured.finished if one.record.repeat < repeats])


def exit_code(rng: np.random.Generator, world: World) -> int:
    """Exit code of one gate."""
    config = ComparisonConfig(metrics=world.metrics, alpha=ALPHA, detect=DETECT)
    if world.stored:
        a = together([side_of(run(rng, world, number, "a"), "a") for number in range(world.stored)])
        b = side_of(run(rng, world, 99, "b"), "b")
        return judged(a, b, config)
    measured = run(rng, world, 0, "ab")
    looks = analysis_schedule(world.repeats)
    code = 3
    for repeats, alpha in zip(looks, nominal_levels(ALPHA, looks), strict=True):
        until = up_to(measured, repeats)
        try:
            sides = side_of(until, "a"), side_of(until, "b")
        except NoEvidence:
            continue
        code = judged(*sides, msgspec.structs.replace(config, alpha=alpha))
        if code < 2:
            return code
    return code


def judged(a: Side, b: Side, config: ComparisonConfig) -> int:
    """Exit code of one analysis."""
    try:
        return EXITS[judge(a, b, config).outcome]
    except NoEvidence:
        return 3


STORED = [
    (1, 0.01, 3),
    (2, 0.01, 8),
    (3, 0.0, 3),
    (3, 0.01, 3),
    (3, 0.03, 8),
    (5, 0.01, 3),
    (10, 0.01, 8),
    (10, 0.03, 8),
]
"""Runs of the baseline, noise between runs, repeats."""
EQUAL = {
    **{f"default_{repeats}": World(repeats=repeats) for repeats in (3, 5, 8)},
    **{f"default_two_loads_{n}": World(repeats=n, loads=2, requests=300) for n in (3, 8)},
    **{f"p99s_two_loads_{n}": World(repeats=n, loads=2, metrics=(*DEFAULT[:5], *P99S)) for n in (3, 8)},
    **{f"failing_02_percent_{n}": World(repeats=n, loads=2, failing=0.002) for n in (3, 8)},
    **{f"failing_02_percent_in_fives_{n}": World(repeats=n, loads=2, failing=0.002, burst=5) for n in (3, 8)},
    **{f"attainment_99_{n}": World(repeats=n, loads=2, has_slo=True) for n in (3, 8)},
    **{f"hiccups_{n}": World(repeats=n, loads=2, hiccups=0.15) for n in (3, 8)},
    **{f"failing_1_percent_limit_1_{n}": World(repeats=n, failing=0.01, limit=0.01) for n in (3, 5, 8)},
    **{f"failing_1_percent_limit_1_two_loads_{n}": World(repeats=n, loads=2, failing=0.01, limit=0.01) for n in (3, 8)},
    **{
        f"failing_{share:.0%}_p99s_{loads}_loads_{n}": World(
            repeats=n, loads=loads, failing=share, metrics=(*DEFAULT[:5], *P99S)
        )
        for share, loads, n in ((0.01, 1, 3), (0.01, 2, 3), (0.01, 2, 8), (0.05, 2, 3), (0.05, 2, 8))
    },
    **{
        f"failing_{share:.0%}_12_tails_{n}": World(repeats=n, failing=share, metrics=TAILS, has_independent_tails=True)
        for share, n in ((0.01, 3), (0.05, 3), (0.05, 8))
    },
    **{
        f"stored_{runs}_between_{between:.0%}_{n}": World(stored=runs, repeats=n, between=between)
        for runs, between, n in STORED
    },
}
"""Equal engines, as in the tables of the audit."""
ANSWERED = {
    "two_percent_8": (World(), 0.90),
    "two_percent_8_two_loads": (World(loads=2), 0.90),
    "stored_5_between_1_percent_8": (World(stored=5, between=0.01), 0.85),
}
"""Equal engines, and how often the gate must say so."""
SLOWER = {
    "slower_10_percent_8": World(slower=0.1),
    "slower_10_percent_8_two_loads": World(slower=0.1, loads=2),
}
CERTAIN = {
    "dies_in_1_of_8": World(dead=1),
    "dies_in_1_of_3": World(dead=1, repeats=3),
    "dies_in_1_of_3_stored_5": World(dead=1, repeats=3, stored=5),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """Gates of one kind."""

    world: World
    gates: int
    seed: int

    def shares(self) -> list[float]:
        """Shares of exit 0, 1, 2 and 3."""
        rng = np.random.default_rng(self.seed)
        codes = Counter(exit_code(rng, self.world) for _ in range(self.gates))
        return [codes[code] / self.gates for code in range(4)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=200, help="of each kind (default: %(default)s)")
    parser.add_argument("--only", default="", help="only kinds whose names contain this text")
    options = parser.parse_args()
    gates = options.gates
    worlds = EQUAL | {name: world for name, (world, _) in ANSWERED.items()} | SLOWER | CERTAIN
    cells = {
        name: Cell(world, gates, seed) for seed, (name, world) in enumerate(worlds.items()) if options.only in name
    }
    with ProcessPoolExecutor() as pool:
        shares = dict(zip(cells, pool.map(Cell.shares, cells.values()), strict=True))

    print(f"shares of the exit codes in %, {gates} gates a kind")
    print(f"{'':<44}" + "".join(f"{f'exit {code}':>9}" for code in (1, 0, 2, 3)))
    for name, of_kind in shares.items():
        print(f"{name:<44}" + "".join(f"{100 * of_kind[code]:>9.2f}" for code in (1, 0, 2, 3)))
    bars = Bars()
    limit = ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / gates)
    for name, of_kind in shares.items():
        if name in EQUAL or name in ANSWERED:
            bars.add(f"false_alarms_{name}", of_kind[1], "<=", limit)
        if name in ANSWERED:
            bars.add(f"no_regression_{name}", of_kind[0], ">=", ANSWERED[name][1])
        if name in SLOWER:
            bars.add(f"missed_{name}", of_kind[0], "<=", limit)
            bars.add(f"found_{name}", of_kind[1], ">=", 0.90)
        if name in CERTAIN:
            bars.add(f"found_{name}", of_kind[1], "==", 1.0)
    bars.finish()


if __name__ == "__main__":
    main()
