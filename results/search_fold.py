"""State of a capacity search, folded from the run's log: the same log gives the same answers and the same next level.

A level is judged by one trial at a time, and :mod:`results.statistics.bisection` keeps the posterior over all of them.
Levels that cannot be judged are skipped: those with too few requests, and those above the logarithmic middle between
the highest level that met the objectives and one at which two trials in a row were no evidence.
"""

import math

import msgspec

from results.run_log import LevelJudged, LevelsSkipped, RunLog, TrialFinished, TrialPlanned
from results.search import Attempt, Ended, EngineSearch, SearchConfig, SearchRecord, Skip
from results.statistics.bisection import Bisection
from results.units import NS_PER_S

_SKIP_AFTER, _END_AFTER = 2, 6
"""Trials in a row without evidence after which the search continues below them, and after which it ends."""


class EngineState:
    """The search of one engine.

    Args:
        config: of the search.
        engine: its label.

    Attributes:
        spent_ns: from the choice of each trial to its end, starts of the engine included.
    """

    def __init__(self, config: SearchConfig, engine: str) -> None:
        self._config = config
        self._bisection = Bisection(
            config.levels, resolution=config.resolution, alpha=config.alpha, start=config.start,
            guess=config.guesses.get(engine),
        )  # fmt: skip
        self._search = EngineSearch(engine)
        self._without_evidence = 0
        self._is_settled = False
        self.spent_ns = 0

    @property
    def next_level(self) -> float | None:
        """The level to try next; None if the search has ended."""
        return None if self._ended is not None else self._bisection.next_level()

    @property
    def search(self) -> EngineSearch:
        """The present results."""
        bracket = msgspec.structs.asdict(self._bisection.bracket) if self._search.judged else {}
        return msgspec.structs.replace(self._search, ended=self._ended, **bracket)

    def skip_up_to(self, skip: Skip) -> None:
        """Skip levels that have too few requests."""
        assert skip.up_to is not None
        self._bisection.drop_up_to(skip.up_to)
        self._search = msgspec.structs.replace(self._search, skip=skip)

    def judge(self, attempt: Attempt) -> None:
        """Add the result of one more trial."""
        self._search = msgspec.structs.replace(self._search, attempts=[*self._search.attempts, attempt])
        if attempt.met is not None:
            self._bisection.observe(attempt.level, met=attempt.met, margin=attempt.margin)
        self._is_settled = attempt.met is not None and self._bisection.is_settled
        if attempt.had_too_few:
            self.skip_up_to(Skip(up_to=attempt.level, attempt=attempt))
        is_evidence = attempt.met is not None or attempt.had_too_few
        self._without_evidence = 0 if is_evidence else self._without_evidence + 1
        if self._without_evidence and self._without_evidence % _SKIP_AFTER == 0:
            self._skip_above(attempt)

    def lose(self, reason: str) -> None:
        """End the search: the engine will not be started again."""
        if self._ended is None:
            self._search = msgspec.structs.replace(self._search, ended=Ended.ENGINE, lost=reason)

    @property
    def _ended(self) -> Ended | None:
        minutes = self._config.minutes
        if self._search.ended is not None:
            return self._search.ended
        if self._without_evidence >= _END_AFTER:
            return Ended.NO_EVIDENCE
        if self._is_settled:
            return Ended.KNOWN
        if len(self._search.attempts) >= self._config.trials:
            return Ended.TRIALS
        if minutes is not None and self._search.attempts and self.spent_ns >= minutes * 60 * NS_PER_S:
            return Ended.MINUTES
        return None if self._bisection.levels else Ended.NO_EVIDENCE

    def _skip_above(self, attempt: Attempt) -> None:
        highest = max((earlier.level for earlier in self._search.attempts if earlier.met), default=attempt.level / 4)
        cut = math.sqrt(highest * attempt.level)
        self._bisection.drop_from(cut)
        self._search = msgspec.structs.replace(self._search, skip=Skip(above=float(f"{cut:.3g}"), attempt=attempt))


def engine_states(config: SearchConfig, log: RunLog) -> dict[str, EngineState]:
    """State of the search for each engine, by label; events of other engines are ignored."""
    states = {engine: EngineState(config, engine) for engine in config.engines}
    chosen_ns: dict[str, int] = {}
    for event in log.events:
        match event:
            case TrialPlanned():
                chosen_ns[event.plan.id] = event.t_ns
            case TrialFinished(record=record) if record.engine in states and record.reused_from is None:
                states[record.engine].spent_ns += event.t_ns - chosen_ns.get(record.id, event.t_ns)
            case LevelJudged() if event.engine in states:
                states[event.engine].judge(event.attempt)
            case LevelsSkipped() if event.engine in states:
                states[event.engine].skip_up_to(
                    Skip(
                        up_to=event.up_to, planned_requests=event.planned_requests,
                        needed_requests=event.needed_requests,
                    )
                )  # fmt: skip
            case _:
                pass
    for lost in log.lost:
        if lost.given_up and lost.engine in states:
            states[lost.engine].lose(lost.reason)
    return states


def search_record(log: RunLog) -> SearchRecord | None:
    """Configuration and present results of a search; None if the run is no search."""
    if log.search is None:
        return None
    return SearchRecord(log.search, [state.search for state in engine_states(log.search, log).values()])
