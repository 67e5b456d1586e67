"""How often `bakeoff gate` fails without a regression, and how often it misses one. Simulated runs.

    python -m benchmarks.statistics.gate [--gates 2000]

Whole gates run through :func:`bakeoff.results.compare.gate.judge`, the layer below the command line, on runs in memory
with 8 trials of 1,000 requests, the default metrics and terms. A trial is log-normal around its run, a run around its
engine. Metrics vary independently, which is the worst case for false alarms. The baseline "now" is one run with
interleaved trials; a number is that many stored runs against one run of the candidate; "floor" is one stored run with a
noise floor from six A/A runs. An alarm is exit code 1.
"""

import argparse
import dataclasses
import math
from concurrent.futures import ProcessPoolExecutor

import msgspec
import numpy as np

from bakeoff.results.compare.aa_runs import floors_of
from bakeoff.results.compare.floor import FloorCell
from bakeoff.results.compare.gate import Outcome, judge
from bakeoff.results.compare.sides import Side, side_of, together
from bakeoff.results.export.benchmark_json import StoredRun, StoredTrial
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import invalid
from bakeoff.results.log.run_log import Manifest
from bakeoff.results.metrics import CATALOGUE, HEADLINE, Better, Value, absent
from bakeoff.results.records import Load, RunStatus, Slo, TrialPlan, TrialRecord, Verdict, Window
from bakeoff.results.run.work import Work
from benchmarks.bars import Bars

ALPHA, TRIALS, REQUESTS = 0.01, 8, 1_000
LOAD = Load(concurrency=8)
TIMED = [name for name in (*HEADLINE, "goodput_per_s") if name != "failures"]
ABSENT = {name: absent("not simulated") for name in CATALOGUE}
PLANS = [TrialPlan(f"r{repeat}-{engine}", engine, "w", LOAD, repeat) for engine in "ab" for repeat in range(TRIALS)]


@dataclasses.dataclass(frozen=True)
class World:
    """The candidate's true difference, and the noise of runs and trials."""

    between: float = 0.01
    within: float = 0.02
    rho: float = 0.0
    """Correlation of neighbouring trials."""
    slower: float = 0.0
    """Share by which the candidate's times are longer and its rates lower."""
    attainment: float = 0.999
    goodput: float = 1.0
    output: float = 1.0
    """Share of the tokens asked for that the candidate delivers."""
    deaths: int = 0


def noise(rng: np.random.Generator, world: World, count: int) -> np.ndarray:
    """[trials in time, metrics]: a stationary AR(1) series of each metric."""
    steps = rng.normal(0, world.within * math.sqrt(1 - world.rho**2), (count, len(TIMED)))
    steps[0] = rng.normal(0, world.within, len(TIMED))
    for index in range(1, count):
        steps[index] += world.rho * steps[index - 1]
    return steps


def trial(rng: np.random.Generator, world: World, plan: TrialPlan, logs: np.ndarray) -> StoredTrial:
    """One trial of the baseline's engine, ``a``, or of the candidate's."""
    is_candidate = plan.engine == "b"
    metrics = dict(ABSENT)
    for name, log in zip(TIMED, logs.tolist(), strict=True):
        worse = math.log1p(world.slower) * is_candidate * (1 if CATALOGUE[name].better is Better.LOWER else -1)
        metrics[name] = Value(
            math.exp(log + worse) * (world.goodput if is_candidate and name == "goodput_per_s" else 1.0)
        )
    met = rng.binomial(REQUESTS, world.attainment if is_candidate else 0.999)
    metrics["attainment"], metrics["failures"] = Value(met / REQUESTS), Value(0.0)
    is_dead = is_candidate and plan.repeat < world.deaths
    record = TrialRecord(
        plan.id, plan.engine, plan.workload, plan.load, plan.repeat, order=0, started_ns=0, ended_ns=0,
        issue_start_ns=0, issue_end_ns=0, window=Window(0, 1), planned_requests=REQUESTS, workload_sha256="w",
        verdict=Verdict.INVALID if is_dead else Verdict.VALID,
        findings=[invalid(FindingCode.ENGINE_DIED, detail="killed by signal 9")] if is_dead else [],
    )  # fmt: skip
    share = world.output if is_candidate else 1.0
    work = Work(REQUESTS, REQUESTS, round(100 * REQUESTS * share), 100 * REQUESTS, [share] * 3, {"length": REQUESTS})
    return StoredTrial(record, metrics, work=work)


def run(rng: np.random.Generator, world: World, number: int, engines: str) -> StoredRun:
    """One run: its engines share the noise of the run; the trials of two engines alternate, A B, B A."""
    plans = [plan for plan in PLANS if plan.engine in engines]
    in_time = sorted(plans, key=lambda plan: (plan.repeat, (plan.engine == "b") == (plan.repeat % 2 == 0)))
    logs = rng.normal(0, world.between, len(TIMED)) + noise(rng, world, len(in_time))
    created = f"2026-11-{1 + number // 24:02}T{number % 24:02}:00:00+00:00"
    manifest = Manifest(
        run_id=f"run-{number:03}", name="gate", status=RunStatus.COMPLETE, created_utc=created, host="",
        bakeoff_version="", git_commit=None, experiment={}, environment={}, trials=plans, slo=Slo(ttft_s=1.0),
    )  # fmt: skip
    return StoredRun("", manifest, [trial(rng, world, plan, log) for plan, log in zip(in_time, logs, strict=True)])


def sides(rng: np.random.Generator, world: World, baseline: str) -> tuple[Side, Side]:
    """The two sides of one gate."""
    if baseline == "now":
        shared_run = run(rng, world, 0, "ab")
        return side_of(shared_run, "a"), side_of(shared_run, "b")
    floors: list[FloorCell] = []
    if baseline == "floor":
        floors = floors_of([side_of(run(rng, world, number, "a"), "a") for number in range(6)])
    count = 1 if baseline == "floor" else int(baseline)
    a = together([side_of(run(rng, world, number, "a"), "a") for number in range(count)])
    b = side_of(run(rng, world, 99, "b"), "b")
    return msgspec.structs.replace(a, floors=floors), msgspec.structs.replace(b, floors=floors)


@dataclasses.dataclass(frozen=True)
class Cell:
    """Gates of one kind."""

    world: World
    baseline: str
    gates: int
    seed: int

    def alarms(self) -> float:
        """The share of gates that end in exit code 1."""
        rng = np.random.default_rng(self.seed)
        outcomes = [judge(*sides(rng, self.world, self.baseline)).outcome for _ in range(self.gates)]
        return outcomes.count(Outcome.REGRESSION) / self.gates


BASELINES = ("now", "1", "floor", "3", "5", "10")
NOISES = [World(between, within) for between in (0.0, 0.01, 0.02, 0.03) for within in (0.01, 0.02)]
CERTAIN = {
    "crash": (World(deaths=3), ("now", "1", "5")),
    "goodput_0": (World(goodput=0.0), ("now", "1", "5")),
    "attainment_975": (World(attainment=0.975), ("now", "floor", "5")),  # one stored run cannot tell it from noise
    "half_answers": (World(output=0.5), ("now", "1", "5")),
}


def cells(gates: int) -> dict[str, Cell]:
    """Everything that is simulated, by name."""
    kinds = {
        f"false_alarms_{baseline}_{world.between:.0%}_{world.within:.0%}": (world, baseline)
        for world in NOISES
        for baseline in BASELINES
    }
    kinds |= {f"false_alarms_rho_07_{baseline}": (World(rho=0.7), baseline) for baseline in ("now", "3", "5", "10")}
    kinds |= {
        f"found_10_percent_5_runs_noise_{within:.0%}": (World(0.01, within, slower=0.1), "5") for within in (0.01, 0.02)
    }
    kinds |= {
        f"{name}_{baseline}": (world, baseline)
        for name, (world, baselines) in CERTAIN.items()
        for baseline in baselines
    }
    return {name: Cell(*kind, gates, seed) for seed, (name, kind) in enumerate(kinds.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=2_000, help="of each kind (default: %(default)s)")
    gates = parser.parse_args().gates
    by_name = cells(gates)
    with ProcessPoolExecutor() as pool:
        alarm_shares = dict(zip(by_name, pool.map(Cell.alarms, by_name.values()), strict=True))

    bars = Bars()
    limit = ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / gates)
    print(f"false alarms, {gates} gates a cell; noise between runs and between trials, and the runs of the baseline")
    print(" " * 16 + "".join(f"{baseline:>8}" for baseline in BASELINES))
    for world in NOISES:
        noise_of = f"{world.between:.0%}_{world.within:.0%}"
        shares = [alarm_shares[f"false_alarms_{baseline}_{noise_of}"] for baseline in BASELINES]
        print(f"{world.between:>8.0%}{world.within:>8.0%}" + "".join(f"{share:>8.2%}" for share in shares))
    for baseline in BASELINES:
        worst = max(share for name, share in alarm_shares.items() if name.startswith(f"false_alarms_{baseline}_"))
        bars.add(f"false_alarms_{baseline}_worst", worst, "<=", limit)
    for name, share in alarm_shares.items():
        if name.startswith("false_alarms_rho"):
            bars.add(name, share, "<=", 2 * ALPHA)
        elif name.startswith("found"):
            bars.add(name, share, ">=", 0.90)
        elif not name.startswith("false"):
            bars.add(name, share, "==", 1.0)
    bars.finish()


if __name__ == "__main__":
    main()
