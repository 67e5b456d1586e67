"""The policy of a capacity search: finds the highest load at which each engine meets its objectives.

Engines take turns of a few trials, each on a fresh start, so that machine drift affects all of them equally and the
intervals include the spread between starts.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from bakeoff.harness.conduct.policies import Decision, Done
from bakeoff.harness.conduct.preparation import Preparation
from bakeoff.results.finding_codes import Cause, FindingCode
from bakeoff.results.findings import is_against_engine
from bakeoff.results.log.run_log import LevelJudged, LevelsSkipped, RunLog, TrialPlanned
from bakeoff.results.log.search import Attempt, Exceeded, Over, SearchConfig
from bakeoff.results.log.store import RunFolder
from bakeoff.results.metrics import Absence, Value, trial_metrics
from bakeoff.results.metrics.catalogue import CATALOGUE, LATENCIES
from bakeoff.results.metrics.declaration import QUANTILES, Latency, TrialData
from bakeoff.results.metrics.interactivity import INTERACTIVITY
from bakeoff.results.metrics.objectives import Objective, least_margin, violated
from bakeoff.results.metrics.percentiles import required_count
from bakeoff.results.metrics.throughput import meets, share_inside
from bakeoff.results.records import RequestRecord, Slo, TrialPlan, TrialRecord, Window
from bakeoff.results.requests import Flags, Requests
from bakeoff.results.run.search_fold import SearchFold
from bakeoff.results.statistics.steps import autocorrelation_time
from bakeoff.results.units import NS_PER_S

_CONSEQUENCES = {FindingCode.WINDOW_TOO_SHORT, FindingCode.WINDOW_EMPTY, FindingCode.CLIENT_ERROR}
"""Findings that a failing engine can cause too; without another finding they are not held against it."""
_ANSWERED = {FindingCode.BECAME_SLOWER}
"""Findings against an engine whose trial has the late requests of that load; with others, all count as late."""
_UNREACHED = FindingCode.HELD_BACK
"""A level that cannot be offered under the cap of the load is above the highest one, whatever the engine could do."""
_ENOUGH = 0.5
"""Part of the requests that a percentile needs whose counts are evidence: those of all trials are pooled, and a slow
server has time for more trials of fewer requests."""
TRIALS_PER_TURN = 4
"""Trials on one start; a start of vLLM takes about as long as four trials."""


def attempt_of(
    record: TrialRecord,
    level: float,
    objectives: Sequence[Objective],
    metrics: Mapping[str, Value],
    exceeded: Sequence[Exceeded] = (),
) -> Attempt:
    """Judge a trial at its level.

    A trial violates the objectives if it is INVALID because of its engine, or of a cap that holds ever more requests
    back, or if a percentile lies among failed requests. It is no evidence if it is INVALID for another reason, or has
    far too few requests for a percentile; of nearly enough, the share of late ones decides.

    Args:
        record: of the trial.
        level: its load.
        objectives: what it should meet.
        metrics: its values; those of a saturated trial are of its answered requests.
        exceeded: how many requests exceeded each objective.
    """
    violations = violated(objectives, metrics)
    unknown = [entry for entry in violations if entry.value.absence not in {None, Absence.AMONG_FAILURES}]
    definite = [entry for entry in violations if entry not in unknown]
    if invalidating := record.invalidating:
        codes = {finding.code for finding in invalidating}
        others = {code for code in codes - {_UNREACHED} if code.cause is not Cause.ENGINE}
        if not (is_against_engine(invalidating) or _UNREACHED in codes) or not others <= _CONSEQUENCES:
            return Attempt(record.id, level, met=None, margin=None, findings=invalidating)
        counts = exceeded if codes <= _ANSWERED | _CONSEQUENCES else map(_all_late, exceeded)
        return Attempt(record.id, level, met=False, margin=None, findings=invalidating, exceeded=list(counts))
    if unknown and not definite:
        if all(entry.value.absence is Absence.TOO_FEW for entry in unknown) and _tell_enough(objectives, exceeded):
            met = all(entry.late <= entry.allowed * entry.total for entry in exceeded)
            violations = [] if met else unknown
            return Attempt(record.id, level, met=met, margin=None, violations=violations, exceeded=list(exceeded))
        return Attempt(record.id, level, met=None, margin=None, violations=unknown)
    margin = None if unknown else least_margin(objectives, metrics)
    return Attempt(
        record.id, level, met=not definite, margin=margin, violations=definite, exceeded=list(exceeded)
    )  # fmt: skip


def _all_late(entry: Exceeded) -> Exceeded:
    total = max(1, entry.total)
    return msgspec.structs.replace(entry, late=total, total=total)


def _tell_enough(objectives: Sequence[Objective], exceeded: Sequence[Exceeded]) -> bool:
    """Whether counts are evidence, though a percentile needs more requests: those of all trials are pooled."""
    needed = requests_needed(objectives)
    return bool(exceeded) and all(entry.total >= needed for entry in exceeded)


def exceeded_by(requests: Requests, window: Window, slo: Slo, required: Sequence[Objective]) -> list[Exceeded]:
    """Count what exceeded each objective; empty if one of them bounds no share of requests or tokens.

    A failure exceeds every bound, and so does a request that was given up after it had waited for longer.

    Args:
        requests: all under load.
        window: of the trial.
        slo: of the experiment, for attainment.
        required: the objectives.
    """
    counts = [_exceeded(requests, window, slo, objective) for objective in required]
    known = [count for count in counts if count is not None and count.total]
    return known if len(known) == len(counts) else []


def _exceeded(requests: Requests, window: Window, slo: Slo, objective: Objective) -> Exceeded | None:
    inside = requests.planned_inside(window)
    if objective.metric == "attainment":
        missed = ~meets(inside, slo)
        if objective.bound == 1:
            return None
        return Exceeded(objective.text, 1 - objective.bound, int(missed.sum()), len(inside), _clustered(missed))
    quantile = quantile_of(objective.metric)
    if quantile is None:
        return None
    is_rate = objective.metric in INTERACTIVITY  # above a bound where the time per token is below its reciprocal
    bound_s = 1 / objective.bound if is_rate else objective.bound
    latency = LATENCIES["normalized_latency" if is_rate else CATALOGUE[objective.metric].family]
    seen = latency.observe(TrialData(requests, window, slo, share_inside, planned=inside))
    given_up = inside.take(inside.is_cancelled) if latency.is_of_requests else ()
    waited = sum(_waited_s(request, latency) > bound_s for request in given_up)
    slow = [not objective.holds(1 / value if is_rate else value) for value in seen.values_s.tolist()]
    late = seen.failures + waited + sum(slow)
    return Exceeded(objective.text, 1 - quantile, late, seen.count + waited, _clustered(np.array(slow, dtype=bool)))


def _clustered(late: Flags) -> float:
    """How many times as much the number of late ones varies as if each came by itself; 1 if too few show it."""
    if not 0 < late.sum() < len(late):
        return 1.0
    return autocorrelation_time(late - late.mean())


def _waited_s(request: RequestRecord, latency: Latency) -> float:
    """Seconds until a request was given up; of normalised latency, for each token that had arrived."""
    whole_s = (request.ended_ns - request.planned_ns) / NS_PER_S
    return whole_s / max(1, request.total_chunk_tokens) if latency.key == "normalized_latency" else whole_s


def quantile_of(metric: str) -> float | None:
    """The quantile of a percentile metric, such as 0.99 for ``ttft_p99_s``; None for other metrics."""
    found = next((q for label, q in QUANTILES if metric.endswith(f"_{label}_s")), None)
    return INTERACTIVITY.get(metric, found)


def requests_needed(objectives: Sequence[Objective]) -> int:
    """Requests that a trial needs to be evidence for every percentile in the objectives; at least 1.

    Where every objective bounds a share of requests or tokens, counts are pooled over trials, and fewer are enough.
    """
    quantiles = [quantile_of(objective.metric) for objective in objectives]
    are_counted = all(
        quantile is not None or (objective.metric == "attainment" and objective.bound < 1)
        for quantile, objective in zip(quantiles, objectives, strict=True)
    )
    whole = max([1, *(required_count(quantile) for quantile in quantiles if quantile is not None)])
    return pooled_count(whole) if are_counted else whole


def pooled_count(whole: int) -> int:
    """Requests of a trial that are evidence for a percentile which needs ``whole`` by itself."""
    return max(min(whole, required_count(0.5)), math.ceil(_ENOUGH * whole))


class CapacitySearch:
    """Chooses each trial's load from the results of earlier ones.

    Args:
        config: range, objectives and budget.
        preparation: has workload, limits and traffic.
        run: folder of the finished trials.
    """

    def __init__(self, config: SearchConfig, preparation: Preparation, run: RunFolder) -> None:
        self._config = config
        self._fold = SearchFold(config)
        self._objectives = config.objectives
        self._attempts: tuple[str, dict[str, Attempt]] = ("", {})
        self._experiment = preparation.experiment
        self._planner = preparation.planner
        self._run = run

    def check(self) -> None:
        """Plan the traffic of the highest level, so that mistakes show before an engine starts.

        Raises:
            WorkloadError: the workload cannot be planned at this level.
        """
        highest = self._config.load_at(self._config.levels[-1])
        self._planner.traffic(highest, 1, self._config.engines[0])

    def next(self, log: RunLog) -> Decision:
        """Judge a finished trial; else choose the next one, or skip levels that plan too few requests."""
        if not log.planned:
            self.check()
        levels = {event.plan.id: self._level_of(event.plan) for event in log.planned}
        judged = {(event.attempt.trial, event.tier) for event in log.events if isinstance(event, LevelJudged)}
        for trial, record in log.finished.items():
            for tier in self._objectives:
                if (trial, tier) not in judged:
                    attempt = self._attempts_of(record, levels[trial])[tier]
                    return LevelJudged(engine=record.engine, attempt=attempt, tier=tier)
        last = log.planned[-1] if log.planned else None
        if last and last.plan.id not in log.finished and last.plan.engine not in log.given_up:
            return last  # the engine was lost before this trial began: repeat the decision, so that it is restarted
        self._fold.advance(log)
        choices = {engine: choice for engine in self._config.engines if (choice := self._fold.next_of(engine))}
        turn = self._turn(list(choices), log)
        if turn is None:
            return Done("; ".join(lost.reason for lost in log.lost if lost.given_up) or None)
        engine, number = turn
        tier, level = choices[engine]
        plan, needed = self._plan(engine, level, log), requests_needed(self._objectives[tier])
        if (planned := self._planned_requests(plan, level)) is not None and planned < needed:
            return LevelsSkipped(
                engine=engine, up_to=level, planned_requests=planned, needed_requests=needed, tier=tier
            )  # fmt: skip
        is_last = _trials_in(log, engine, number) + 1 == TRIALS_PER_TURN
        return TrialPlanned(plan=plan, turn=number, ends_turn=is_last, tier=tier)

    def _turn(self, searching: Sequence[str], log: RunLog) -> tuple[str, int] | None:
        """The engine to measure and the number of its turn; None if all searches have ended.

        Even turns reverse the order of engines.

        Args:
            searching: engines whose searches have not ended.
            log: so far.
        """
        if not searching or not log.planned:
            return (searching[0], 1) if searching else None
        engine, number = log.planned[-1].plan.engine, log.planned[-1].turn
        if engine in searching and _trials_in(log, engine, number) < TRIALS_PER_TURN:
            return engine, number
        order = self._config.engines if number % 2 else self._config.engines[::-1]
        later = [label for label in order[order.index(engine) + 1 :] if label in searching]
        if later:
            return later[0], number
        return (searching[0] if number % 2 == 0 else searching[-1]), number + 1

    def _attempts_of(self, record: TrialRecord, level: float) -> dict[str, Attempt]:
        """A trial judged by each tier."""
        if self._attempts[0] == record.id:
            return self._attempts[1]
        folder = self._run.trial_of(record)
        requests, telemetry = folder.read_requests(), folder.read_telemetry().records
        slo = self._experiment.slo
        metrics = trial_metrics(record, requests, telemetry, slo)
        load = requests.under_load
        judged = {
            tier: attempt_of(record, level, required, metrics, exceeded_by(load, record.window, slo, required))
            for tier, required in self._objectives.items()
        }
        self._attempts = record.id, judged
        return judged

    def _planned_requests(self, plan: TrialPlan, level: float) -> int | None:
        """Requests that an open loop at this rate plans; None for a closed loop, where it depends on the engine."""
        if self._config.over is Over.CONCURRENCY:
            return None
        limits = self._experiment.trial
        if max(level * limits.duration_s, limits.min_requests) < 1:
            return 0
        return self._planner.traffic(plan.load, plan.repeat, plan.engine).record.requests

    def _plan(self, engine: str, level: float, log: RunLog) -> TrialPlan:
        load = self._config.load_at(level)
        earlier = {event.plan.id for event in log.planned if (event.plan.engine, event.plan.load) == (engine, load)}
        repeat = 1 + len(earlier)
        return TrialPlan(f"r{repeat}-{engine}-{level:g}", engine, self._experiment.workload.name, load, repeat)

    def _level_of(self, plan: TrialPlan) -> float:
        level = plan.load.rate_per_s if self._config.over is Over.RATE else plan.load.concurrency
        assert level is not None
        return float(level)


def _trials_in(log: RunLog, engine: str, turn: int) -> int:
    return len({event.plan.id for event in log.planned if (event.plan.engine, event.turn) == (engine, turn)})
