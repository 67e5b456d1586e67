"""Verdicts of runs that were interrupted and resumed, and of runs whose trials a machine spoils at random.

Two virtual engines, one of which takes 1.3 times as long for each token, five repeats. The log of a whole run is cut
at a random byte, as a kill would leave it, and the run is resumed: the verdict must be for the faster engine as often
as that of whole runs. Then the policy alone, in whose world each attempt at a trial is spoilt with a given probability:
whether every repeat of both engines becomes whole, and in how many trials.
"""

import argparse
import random
import statistics
import tempfile
from pathlib import Path

from bakeoff.harness.conduct.policies.fixed_plan import FixedPlan
from bakeoff.harness.virtual import VirtualEngine, VirtualWorld, run_in, virtual_experiment
from bakeoff.harness.virtual.draws import Exponential, Fixed, PerToken
from bakeoff.results import Run
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, Severity
from bakeoff.results.log.run_log import RunLog, TrialFinished, TrialPlanned
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import TrialPlan, TrialRecord, Verdict, Window
from bakeoff.results.report.verdict import verdict
from benchmarks.bars import Bars

TRIAL = {"duration_s": 2.0, "ramp_s": 0.2, "warm_up_s": 0.0}
EXPERIMENT = virtual_experiment(["a", "b"], [{"concurrency": 4}], repeats=5, trial=TRIAL)
ENGINES = {
    label: VirtualEngine(service=PerToken(Exponential(0.05), Fixed(itl_s)), start_noise=0.01)
    for label, itl_s in (("a", 0.013), ("b", 0.010))
}
CAUSES = (FindingCode.FOREIGN_LOAD, FindingCode.CLIENT_STALLED, FindingCode.CLIENT_PAUSED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instants", type=int, default=200)
    parser.add_argument("--spoilt", type=float, default=0.3)
    options = parser.parse_args()
    bars, rng = Bars(), random.Random(1)
    with tempfile.TemporaryDirectory(prefix="bakeoff-") as scratch:
        found = [interrupted(Path(scratch), seed, rng) for seed in range(options.instants)]
    whole, resumed = (sum(each) for each in zip(*found, strict=True))
    print(f"verdicts for b of {options.instants}: {whole} of whole runs, {resumed} of the same interrupted and resumed")
    bars.add("resumed_over_whole", resumed / whole, ">=", 0.95)
    worlds = [spoilt_run(options.spoilt, rng) for _ in range(2_000)]
    whole = statistics.fmean(is_whole for is_whole, _ in worlds)
    factor = statistics.median(factor for _, factor in worlds)
    print(f"{100 * options.spoilt:.0f} % of trials spoilt: {100 * whole:.1f} % whole, in {factor:.2f} times the trials")
    bars.add("whole_though_spoilt", whole, ">=", 0.95)
    bars.add("trials_over_plan_median", factor, "<=", 1.6)
    bars.finish()


def interrupted(scratch: Path, seed: int, rng: random.Random) -> tuple[bool, bool]:
    """Whether b wins in a run, and in the same run cut at a random byte and resumed."""
    whole = run_in(VirtualWorld(ENGINES, seed=seed), EXPERIMENT, scratch / f"{seed}")
    is_right, size = b_wins(whole), whole.folder.log_path.stat().st_size
    with whole.folder.log_path.open("r+b") as log:
        log.truncate(rng.randrange(size // 50, size))
    earlier = RunFolder.open(whole.path)
    again = run_in(VirtualWorld(ENGINES, seed=-seed - 1), EXPERIMENT, scratch / f"{seed}-again", earlier=earlier)
    return is_right, b_wins(again)


def b_wins(run: Run) -> bool:
    """Whether the verdict is for the faster engine."""
    line = verdict(run)
    return line.decided and ", b delivered" in line.sentence


def spoilt_run(probability: float, rng: random.Random) -> tuple[bool, float]:
    """Whether all repeats become whole, and measured trials over planned ones."""
    plan, log = EXPERIMENT.plan(), RunLog()
    policy = FixedPlan(plan)
    while isinstance(decision := policy.next(log), TrialPlanned):
        cause = rng.choice(CAUSES) if rng.random() < probability else None
        log.add(TrialFinished(record=_record(decision.plan, cause)))
    valid = [record for record in log.finished.values() if record.verdict is Verdict.VALID]
    return len(valid) == len(plan), len(log.finished) / len(plan)


def _record(plan: TrialPlan, cause: FindingCode | None) -> TrialRecord:
    return TrialRecord(
        id=plan.id, engine=plan.engine, workload=plan.workload, load=plan.load, repeat=plan.repeat, order=1,
        started_ns=0, ended_ns=1, issue_start_ns=0, issue_end_ns=1, window=Window(0, 1), planned_requests=0,
        workload_sha256="", verdict=Verdict.VALID if cause is None else Verdict.INVALID, replaces=plan.replaces,
        attempt=plan.attempt, findings=[] if cause is None else [Finding(cause, Severity.INVALID, {})],
    )  # fmt: skip


if __name__ == "__main__":
    main()
