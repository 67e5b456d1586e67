"""The search of one engine: which load is tried next, what its trial says, and when it is enough."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from harness.conduct.progress import Observer
from harness.conduct.world import World
from harness.experiment.config import Experiment
from harness.stage import Planned
from harness.traffic.planner import TrafficPlanner
from results.findings import Cause, FindingCode, is_against_engine
from results.metrics import Absence, Value, trial_metrics
from results.metrics.catalogue import QUANTILES
from results.metrics.percentiles import required_count
from results.objectives import Objective, least_margin, missed
from results.records import Load, TrialPlan, TrialRecord
from results.report.search_lines import attempt_why, level_text
from results.search import Attempt, Ended, EngineSearch, Over, SearchRecord
from results.statistics.bisection import Bisection
from results.store import RunFolder
from results.units import NS_PER_S

_CONSEQUENCES = {FindingCode.WINDOW_TOO_SHORT, FindingCode.CLIENT_ERROR}
"""An engine that fails may cause these too; alone they say nothing about it."""
TRIALS_OF_TURN = 4
"""On one start, before the other engines have theirs: a start of vLLM takes as long as four trials."""
_IN_VAIN, _MOST_IN_VAIN = 2, 6
"""After so many trials without evidence in a row the search goes on below them; after so many it ends."""


class Watcher(Observer, Protocol):
    """Hears of a search's progress."""

    def judged(self, search: SearchRecord, engine: str, attempt: Attempt) -> None:
        """A trial has been judged."""
        ...


def attempt_of(record: TrialRecord, level: float, wanted: Sequence[Objective], metrics: Mapping[str, Value]) -> Attempt:
    """What a trial says of its level.

    A trial that is INVALID because of its engine does not keep the objectives, nor one whose percentile lies among
    failed requests. One that is INVALID for another reason, or has too few requests for a percentile, is no evidence.
    """
    if found := record.invalidating:
        others = {finding.code for finding in found if finding.code.cause is not Cause.ENGINE}
        failed = is_against_engine(found) and others <= _CONSEQUENCES
        return Attempt(record.id, level, kept=False if failed else None, margin=None, findings=found)
    misses = missed(wanted, metrics)
    unseen = [miss for miss in misses if miss.value.absence not in {None, Absence.AMONG_FAILURES}]
    if len(misses) > len(unseen):
        margin = None if unseen else least_margin(wanted, metrics)
        return Attempt(record.id, level, kept=False, margin=margin, misses=[m for m in misses if m not in unseen])
    if unseen:
        return Attempt(record.id, level, kept=None, margin=None, misses=unseen)
    return Attempt(record.id, level, kept=True, margin=least_margin(wanted, metrics))


def quantile_of(metric: str) -> float | None:
    """Of ``ttft_p99_s``: 0.99; None where the metric is no percentile."""
    return next((q for label, q in QUANTILES if metric.endswith(f"_{label}_s")), None)


def requests_needed(wanted: Sequence[Objective]) -> int:
    """The fewest requests of which every percentile over requests can be told; at least 1."""
    of_requests = [one.metric for one in wanted if not one.metric.startswith(("itl_", "chunk_gap_"))]
    return max([1, *(required_count(q) for metric in of_requests if (q := quantile_of(metric)))])


def _is_too_few(one: Objective, metrics: Mapping[str, Value]) -> bool:
    return metrics[one.metric].absence is Absence.TOO_FEW


class Notebook:
    """``search.json``, replaced whenever something is known that was not before."""

    def __init__(self, run: RunFolder, record: SearchRecord) -> None:
        self.run = run
        self.record = record
        run.write_search(record)

    def put(self, found: EngineSearch) -> None:
        """Replace what is known of an engine."""
        others = [one for one in self.record.engines if one.engine != found.engine]
        self.record = msgspec.structs.replace(self.record, engines=[*others, found])
        self.run.write_search(self.record)


class Seeker:
    """Decides which load an engine is put under next; an :class:`~harness.stage.Agenda`.

    Args:
        label: the engine's, and an attribute.
        bisection: what is known of the threshold.
        wanted: the objectives.
        load_at: the load of a level.
        experiment: workload, limits and SLO.
        planner: of the traffic.
        notebook: where it is stored.
        watcher: who is told.
        world: where it takes place.
    """

    def __init__(
        self,
        label: str,
        bisection: Bisection,
        wanted: Sequence[Objective],
        load_at: Callable[[float], Load],
        *,
        experiment: Experiment,
        planner: TrafficPlanner,
        notebook: Notebook,
        watcher: Watcher,
        world: World,
    ) -> None:
        self.label = label
        self._bisection = bisection
        self._wanted = wanted
        self._load_at = load_at
        self._experiment = experiment
        self._planner = planner
        self._notebook = notebook
        self._watcher = watcher
        self._world = world
        self._spent_ns = 0
        self._since_ns = 0
        self._left_of_turn = 0
        self._level = 0.0
        self._in_vain = 0
        self._found = EngineSearch(label)
        self.plans: list[TrialPlan] = []
        """Trials so far."""
        notebook.put(self._found)

    @property
    def has_ended(self) -> bool:
        """Whether the search has."""
        return self._found.ended is not None

    @property
    def is_over(self) -> bool:
        """Whether this turn is."""
        return self.has_ended or self._left_of_turn == 0

    def begin_turn(self) -> None:
        """Begin a turn: :data:`TRIALS_OF_TURN` trials at most, on a fresh start."""
        self._left_of_turn = TRIALS_OF_TURN
        self._since_ns = self._world.now_ns()

    async def next(self) -> Planned | None:
        """The trial at the next level that can be judged; it joins the run's plan."""
        while not self.is_over:
            level = self._bisection.next_level()
            if level is None:
                self._end(Ended.NO_EVIDENCE)
            elif few := await self._too_few(level):
                self._bisection.drop_up_to(level)
                self._remark(f"up to {self._text(level)}: {few}")
            else:
                self._level = level
                return self._planned(self._plan(level))
        return None

    def done(self, record: TrialRecord) -> None:
        """Judge the trial, learn from it, and store what is known now."""
        self._left_of_turn -= 1
        now_ns = self._world.now_ns()
        self._spent_ns, self._since_ns = self._spent_ns + now_ns - self._since_ns, now_ns
        folder = self._notebook.run.trial(record.id)
        metrics = trial_metrics(record, folder.read_requests(), folder.read_telemetry().records, self._experiment.slo)
        attempt = attempt_of(record, self._level, self._wanted, metrics)
        if attempt.kept is not None:
            self._bisection.tell(attempt.level, kept=attempt.kept, margin=attempt.margin)
        too_few = (
            attempt.kept is None and not record.invalidating and any(_is_too_few(o, metrics) for o in self._wanted)
        )
        if too_few:
            self._bisection.drop_up_to(attempt.level)
            self._remark(f"up to {self._text(attempt.level)}: {attempt_why(attempt)}")
        self._in_vain = 0 if attempt.kept is not None or too_few else self._in_vain + 1
        if self._in_vain and self._in_vain % _IN_VAIN == 0:
            self._give_up_above(attempt)
        self._store(attempt)
        self._end_where_enough(attempt)
        self._watcher.judged(self._notebook.record, self.label, attempt)

    def lost(self, why: str) -> None:
        """The engine is not started any more."""
        if not self.has_ended:
            self._remark(why)
            self._end(Ended.ENGINE)

    def _end_where_enough(self, attempt: Attempt) -> None:
        budget = self._notebook.record
        minutes = self._spent_ns / NS_PER_S / 60
        if self._in_vain >= _MOST_IN_VAIN:
            self._end(Ended.NO_EVIDENCE)
        elif attempt.kept is not None and self._bisection.settled:
            self._end(Ended.KNOWN)
        elif len(self._found.attempts) >= budget.trials:
            self._end(Ended.TRIALS)
        elif budget.minutes is not None and minutes >= budget.minutes:
            self._end(Ended.MINUTES)

    def _end(self, ended: Ended) -> None:
        self._found = msgspec.structs.replace(self._found, ended=ended)
        self._notebook.put(self._found)

    def _store(self, attempt: Attempt) -> None:
        attempts = [*self._found.attempts, attempt]
        found = msgspec.structs.replace(self._found, attempts=attempts)
        if found.judged:
            bracket = msgspec.structs.asdict(self._bisection.bracket)
            found = msgspec.structs.replace(found, **bracket)
        self._found = found
        self._notebook.put(found)

    async def _too_few(self, level: float) -> str | None:
        """Why an open loop of this rate cannot be judged: it plans fewer requests than a percentile needs."""
        if self._notebook.record.over is Over.CONCURRENCY:
            return None  # how many there will be is up to the engine
        need, limits = requests_needed(self._wanted), self._experiment.trial
        plan = self._plan(level)
        planned = 0
        if max(level * limits.duration_s, limits.min_requests) >= 1:
            traffic = await self._world.in_thread(self._planner.traffic, plan.load, plan.repeat, self.label)
            planned = traffic.record.requests
        return None if planned >= need else f"{planned} requests are planned, {need} are needed"

    def _give_up_above(self, attempt: Attempt) -> None:
        """Leave out half of what lies between the highest level that was kept and one that cannot be judged."""
        kept = max((one.level for one in self._found.attempts if one.kept), default=attempt.level / 4)
        cut = math.sqrt(kept * attempt.level)
        self._bisection.drop_from(cut)
        self._remark(f"not above {self._text(float(f'{cut:.3g}'))}: {attempt_why(attempt)}")

    def _remark(self, why: str) -> None:
        """Note why levels are left out."""
        self._found = msgspec.structs.replace(self._found, note=why)

    def _text(self, level: float) -> str:
        return level_text(self._notebook.record.over, level)

    def _plan(self, level: float) -> TrialPlan:
        load = self._load_at(level)
        repeat = 1 + sum(plan.load == load for plan in self.plans)
        trial = f"r{repeat}-{self.label}-{level:g}"
        return TrialPlan(trial, self.label, self._experiment.workload.name, load, repeat)

    def _planned(self, plan: TrialPlan) -> Planned:
        """Put a trial on the run's plan."""
        run = self._notebook.run
        manifest = run.read_manifest()
        run.write_manifest(msgspec.structs.replace(manifest, trials=[*manifest.trials, plan]))
        self.plans.append(plan)
        return len(manifest.trials) + 1, plan
