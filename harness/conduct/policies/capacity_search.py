"""Capacity search: the highest load at which each engine meets its objectives.

Engines take turns of a few trials, each on a fresh start, so that a drift of the machine falls on all of them alike and
the spread between starts shows in the answers.
"""

from collections.abc import Mapping, Sequence

from harness.conduct.policies import Decision, Done
from harness.conduct.preparation import Preparation
from results.findings import Cause, FindingCode, is_against_engine
from results.metrics import Absence, Value, trial_metrics
from results.metrics.catalogue import QUANTILES
from results.metrics.percentiles import required_count
from results.objectives import Objective, least_margin, violated
from results.records import TrialPlan, TrialRecord
from results.run_log import LevelJudged, LevelsSkipped, RunLog, TrialPlanned
from results.search import Attempt, Over, SearchConfig
from results.search_fold import EngineState, engine_states
from results.store import RunFolder

_CONSEQUENCES = {FindingCode.WINDOW_TOO_SHORT, FindingCode.CLIENT_ERROR}
"""An engine that fails may cause these too; alone they say nothing about it."""
TRIALS_OF_TURN = 4
"""On one start, before the other engines have theirs: a start of vLLM takes as long as four trials."""


def attempt_of(record: TrialRecord, level: float, wanted: Sequence[Objective], metrics: Mapping[str, Value]) -> Attempt:
    """What a trial says of its level.

    A trial that is INVALID because of its engine does not meet the objectives, nor one whose percentile lies among
    failed requests. One that is INVALID for another reason, or has too few requests for a percentile, is no evidence.
    """
    if found := record.invalidating:
        others = {finding.code for finding in found if finding.code.cause is not Cause.ENGINE}
        failed = is_against_engine(found) and others <= _CONSEQUENCES
        return Attempt(record.id, level, met=False if failed else None, margin=None, findings=found)
    violations = violated(wanted, metrics)
    unseen = [violation for violation in violations if violation.value.absence not in {None, Absence.AMONG_FAILURES}]
    seen = [violation for violation in violations if violation not in unseen]
    if seen:
        margin = None if unseen else least_margin(wanted, metrics)
        return Attempt(
            record.id, level, met=False, margin=margin, violations=[v for v in violations if v not in unseen]
        )
    if unseen:
        return Attempt(record.id, level, met=None, margin=None, violations=unseen)
    return Attempt(record.id, level, met=True, margin=least_margin(wanted, metrics))


def quantile_of(metric: str) -> float | None:
    """Of ``ttft_p99_s``: 0.99; None where the metric is no percentile."""
    return next((q for label, q in QUANTILES if metric.endswith(f"_{label}_s")), None)


def requests_needed(wanted: Sequence[Objective]) -> int:
    """The fewest requests of which every percentile over requests can be told; at least 1."""
    of_requests = [one.metric for one in wanted if not one.metric.startswith(("itl_", "chunk_gap_"))]
    return max([1, *(required_count(q) for metric in of_requests if (q := quantile_of(metric)))])


class CapacitySearch:
    """Chooses the load of each trial by what earlier ones said; a :class:`~harness.conduct.policies.Policy`.

    Args:
        config: what is searched for.
        preparation: workload, limits and traffic.
        run: where finished trials are read.
    """

    def __init__(self, config: SearchConfig, preparation: Preparation, run: RunFolder) -> None:
        self._config = config
        self._objectives = config.objectives
        self._experiment = preparation.experiment
        self._planner = preparation.planner
        self._run = run

    def check(self) -> None:
        """Plan the traffic of the highest level: what is wrong with it shows before an engine starts.

        Raises:
            WorkloadError: the workload cannot make it.
        """
        highest = self._config.load_at(self._config.levels[-1])
        self._planner.traffic(highest, 1, self._config.engines[0])

    def next(self, log: RunLog) -> Decision:
        """Judge the trial that has finished; else choose the next one, or leave out levels with too few requests."""
        if not log.planned:
            self.check()
        levels = {event.plan.id: self._level_of(event.plan) for event in log.planned}
        judged = {event.attempt.trial for event in log.events if isinstance(event, LevelJudged)}
        for trial, record in log.finished.items():
            if trial not in judged:
                return LevelJudged(engine=record.engine, attempt=self._attempt(record, levels[trial]))
        last = log.planned[-1] if log.planned else None
        if last and last.plan.id not in log.finished and last.plan.engine not in log.given_up:
            return last  # its engine was lost before the trial could begin, and is started again
        states = engine_states(self._config, log)
        turn = self._turn(states, log)
        if turn is None:
            return Done("; ".join(lost.reason for lost in log.lost if lost.given_up) or None)
        engine, number = turn
        level = states[engine].next_level
        assert level is not None
        plan = self._plan(engine, level, log)
        if (planned := self._planned_requests(plan, level)) is not None and planned < self._needed:
            return LevelsSkipped(engine=engine, up_to=level, planned_requests=planned, needed_requests=self._needed)
        is_last = _trials_in(log, engine, number) + 1 == TRIALS_OF_TURN
        return TrialPlanned(plan=plan, turn=number, ends_turn=is_last)

    def _turn(self, states: Mapping[str, EngineState], log: RunLog) -> tuple[str, int] | None:
        """Whose turn it is, and its number; None where every search has ended. Even turns go in reverse order."""
        searching = [engine for engine in self._config.engines if states[engine].next_level is not None]
        if not searching or not log.planned:
            return (searching[0], 1) if searching else None
        engine, number = log.planned[-1].plan.engine, log.planned[-1].turn
        if engine in searching and _trials_in(log, engine, number) < TRIALS_OF_TURN:
            return engine, number
        order = self._config.engines if number % 2 else self._config.engines[::-1]
        later = [label for label in order[order.index(engine) + 1 :] if label in searching]
        if later:
            return later[0], number
        return (searching[0] if number % 2 == 0 else searching[-1]), number + 1

    def _attempt(self, record: TrialRecord, level: float) -> Attempt:
        folder = self._run.trial(record.id)
        metrics = trial_metrics(record, folder.read_requests(), folder.read_telemetry().records, self._experiment.slo)
        return attempt_of(record, level, self._objectives, metrics)

    @property
    def _needed(self) -> int:
        return requests_needed(self._objectives)

    def _planned_requests(self, plan: TrialPlan, level: float) -> int | None:
        """Requests that an open loop of this rate plans; None for a closed loop, where that is up to the engine."""
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
