"""State of a capacity search, folded from the run's log: the same log gives the same answers and the same next level.

A level is judged by one trial at a time. Percentiles and attainment are shares of requests: once some level has met the
objectives and some has not, the counts of all trials are pooled (:mod:`bakeoff.results.statistics.exceedance`), which
estimates the load at which the long run just meets them. For other objectives, and until then,
:mod:`bakeoff.results.statistics.bisection` keeps a posterior over all trials. Levels that cannot be judged are skipped:
those with too few requests, and those above the logarithmic middle between the highest level that met the objectives
and one, higher than all that were judged, at which two trials in a row were no evidence.

Tiers are searched one after the other, and each counts the trials of all. A level is chosen from earlier outcomes, and
given its level a trial does not depend on them. So the likelihood of a tier's threshold is the product over all trials,
for whichever tier a level was chosen (a partial likelihood: Cox, Biometrika 62, 1975).
"""

import math

import msgspec

from bakeoff.results.log.run_log import Event, LevelJudged, LevelsSkipped, RunLog, TrialFinished, TrialPlanned
from bakeoff.results.log.search import Attempt, Ended, EngineSearch, Over, SearchConfig, SearchRecord, Skip
from bakeoff.results.statistics.bisection import Bisection
from bakeoff.results.statistics.exceedance import Counted, Threshold, threshold
from bakeoff.results.units import NS_PER_S

_SKIP_AFTER, _END_AFTER = 2, 6
"""Trials in a row without evidence after which the search continues below them, and after which it ends."""
_PLACES, _REACH = (0.0, -0.5, 0.5), 0.16
"""Where to try in turn: at the estimate, and halfway to either end of its interval, as far as it reaches: different
loads inform about the slope."""
_MIN_NEAR = 6
"""Trials near the threshold before a pooled estimate is final."""
_STEPS = 5
"""Steps of log load per resolution."""


class EngineState:
    """The search of one engine for one tier.

    Args:
        config: of the search.
        engine: its label.
        tier: its name.
    """

    def __init__(self, config: SearchConfig, engine: str, tier: str) -> None:
        self._config = config
        guess = config.guesses.get(engine) if tier == next(iter(config.objectives)) else None
        self._bisection = Bisection(
            config.levels, resolution=config.resolution, alpha=config.alpha, start=config.start,
            guess=guess,
        )  # fmt: skip
        self._search = EngineSearch(engine, tier=tier)
        self._own = 0
        self._without_evidence = 0
        self._is_settled = False
        self._pooled: Threshold | None = None
        self._turn: int | None = None
        self._lasted: list[tuple[float, int]] = []

    @property
    def spent_ns(self) -> int:
        """From the choice of each of its own trials to its end, starts of the engine included."""
        return sum(lasted_ns for _, lasted_ns in self._lasted)

    def spend(self, level: float, lasted_ns: int) -> None:
        """Add the duration of one of its own trials."""
        self._lasted.append((level, lasted_ns))

    @property
    def next_level(self) -> float | None:
        """The level to try next; None if the search has ended."""
        return self._candidate if self._ended is None else None

    @property
    def _candidate(self) -> float | None:
        """The level that tells most; None if none is left."""
        if self._pooled is None or not self._bisection.levels:
            return self._bisection.next_level()
        place = _PLACES[len(self._search.judged) % len(_PLACES)]
        middle = self._pooled.middle
        end = self._pooled.low if place < 0 else self._pooled.high
        return self._bisection.level_near(middle + place * min(_REACH, abs(end - middle)))

    @property
    def search(self) -> EngineSearch:
        """The present results."""
        if not self._search.judged:
            return msgspec.structs.replace(self._search, ended=self._ended)
        bracket = self._bisection.bracket
        if self._pooled is not None:
            bracket = self._bisection.bracket_of(self._pooled.low, self._pooled.middle, self._pooled.high)
        return msgspec.structs.replace(self._search, ended=self._ended, **msgspec.structs.asdict(bracket))

    def skip_up_to(self, skip: Skip) -> None:
        """Skip levels that have too few requests."""
        assert skip.up_to is not None
        self._bisection.drop_up_to(skip.up_to)
        self._search = msgspec.structs.replace(self._search, skip=skip)

    def judge(self, attempt: Attempt, turn: int | None, *, own: bool = True) -> None:
        """Add the result of one more trial.

        Args:
            attempt: the result.
            turn: trials of the same turn share a start of the engine.
            own: whether it was chosen for this tier; of another tier's, only evidence is added, and too few requests
                are too few for this one, too.
        """
        self._own += own
        if attempt.met is None and not own:
            if attempt.had_too_few:
                self.skip_up_to(Skip(up_to=attempt.level, attempt=attempt))
            return
        if turn is not None and turn != self._turn:
            self._turn = turn
            self._bisection.begin_start()
        self._search = msgspec.structs.replace(self._search, attempts=[*self._search.attempts, attempt])
        if attempt.met is not None:
            self._bisection.observe(attempt.level, met=attempt.met, margin=attempt.margin)
        self._pooled = self._pool()
        self._is_settled = attempt.met is not None and self._is_known
        if attempt.had_too_few:
            self.skip_up_to(Skip(up_to=attempt.level, attempt=attempt))
        is_evidence = attempt.met is not None or attempt.had_too_few
        self._without_evidence = 0 if is_evidence else self._without_evidence + 1
        if self._without_evidence and self._without_evidence % _SKIP_AFTER == 0:
            self._skip_above(attempt)

    def _pool(self) -> Threshold | None:
        """The threshold of the objective that binds first; None where counts cannot tell."""
        judged = self._search.judged
        if not self._bisection.is_bracketed or not all(attempt.exceeded for attempt in judged):
            return None
        low, high = self._bisection.log_range
        found = [
            threshold(
                [
                    Counted(attempt.level, each.late, each.total, each.clustered)
                    for attempt in judged
                    for each in [attempt.exceeded[number]]
                ],
                allowed=judged[0].exceeded[number].allowed,
                low=low, high=high, step=self._config.resolution / _STEPS, alpha=self._config.alpha,
            )
            for number in range(len(judged[0].exceeded))
        ]  # fmt: skip
        return min(found, key=lambda entry: entry.middle)

    @property
    def _is_known(self) -> bool:
        if self._pooled is None:
            return self._bisection.is_settled
        bracket = self.search
        is_narrow = self._pooled.high - self._pooled.low <= 2 * math.log1p(self._config.resolution)
        return self._pooled.near >= _MIN_NEAR and (is_narrow or bracket.low == bracket.high)

    def lose(self, reason: str) -> None:
        """End the search: the engine will not be started again."""
        if self._ended is None:
            self._search = msgspec.structs.replace(self._search, ended=Ended.ENGINE, lost=reason)

    @property
    def _ended(self) -> Ended | None:
        if self._search.ended is not None:
            return self._search.ended
        if self._without_evidence >= _END_AFTER:
            return Ended.NO_EVIDENCE
        if self._is_settled:
            return Ended.KNOWN
        if self._own >= self._config.trials:
            return Ended.TRIALS
        if not self._bisection.levels:
            return Ended.NO_EVIDENCE
        return Ended.MINUTES if self._is_late else None

    @property
    def _is_late(self) -> bool:
        """Whether the next trial would exceed the allowed time, if it lasted as long as the nearest one so far.

        A saturated server needs twice as long to answer each of twice as many sessions, and half as many sessions may
        need twice as long for as many requests.
        """
        if self._config.minutes is None or not self._lasted or (level := self._candidate) is None:
            return False
        nearest, expected_ns = min(self._lasted, key=lambda trial: abs(math.log(trial[0] / level)))
        factor = max(level / nearest, nearest / level) if self._config.over is Over.CONCURRENCY else 1.0
        return self.spent_ns + factor * expected_ns > self._config.minutes * 60 * NS_PER_S

    def _skip_above(self, attempt: Attempt) -> None:
        if any(attempt.level <= other.level for other in self._search.judged):
            return  # as high a load was judged: a bad moment spoilt these trials, and not the load
        highest = max((earlier.level for earlier in self._search.attempts if earlier.met), default=attempt.level / 4)
        cut = math.sqrt(highest * attempt.level)
        self._bisection.drop_from(cut)
        self._search = msgspec.structs.replace(self._search, skip=Skip(above=float(f"{cut:.3g}"), attempt=attempt))


class SearchFold:
    """The searches of all engines, folded from a log that only grows.

    Args:
        config: of the search.

    Attributes:
        states: by tier and label of the engine.
    """

    def __init__(self, config: SearchConfig) -> None:
        tiers = config.objectives
        self.states: dict[tuple[str, str], EngineState] = {
            (tier, engine): EngineState(config, engine, tier) for tier in tiers for engine in config.engines
        }
        self._over = config.over
        self._planned: dict[str, TrialPlanned] = {}
        self._events = 0

    def next_of(self, engine: str) -> tuple[str, float] | None:
        """The tier that an engine is searched for and the level to try next; None if all its searches have ended."""
        states = ((tier, state) for (tier, label), state in self.states.items() if label == engine)
        return next(((tier, level) for tier, state in states if (level := state.next_level) is not None), None)

    def advance(self, log: RunLog) -> None:
        """Apply the events that were appended since the last call; events of other engines are ignored."""
        for event in log.events[self._events :]:
            self._apply(event)
        self._events = len(log.events)
        given_up = {lost.engine: lost.reason for lost in reversed(log.lost) if lost.given_up}
        for (_, engine), state in self.states.items():
            if engine in given_up:
                state.lose(given_up[engine])

    def _apply(self, event: Event) -> None:
        match event:
            case TrialPlanned():
                self._planned[event.plan.id] = event
            case TrialFinished(record=record) if record.reused_from is None:
                planned = self._planned.get(record.id)
                if planned is not None and (state := self.states.get((planned.tier, record.engine))) is not None:
                    level = record.load.rate_per_s if self._over is Over.RATE else record.load.concurrency
                    state.spend(level or 1.0, event.t_ns - planned.t_ns)
            case LevelJudged() if (event.tier, event.engine) in self.states:
                planned = self._planned.get(event.attempt.trial)
                self.states[event.tier, event.engine].judge(
                    event.attempt, planned.turn if planned else None, own=planned is None or planned.tier == event.tier
                )
            case LevelsSkipped() if (event.tier, event.engine) in self.states:
                self.states[event.tier, event.engine].skip_up_to(
                    Skip(
                        up_to=event.up_to, planned_requests=event.planned_requests,
                        needed_requests=event.needed_requests,
                    )
                )  # fmt: skip
            case _:
                pass


def search_record(log: RunLog) -> SearchRecord | None:
    """Configuration and present results of a search; None if the run is no search."""
    if log.search is None:
        return None
    fold = SearchFold(log.search)
    fold.advance(log)
    return SearchRecord(log.search, [state.search for state in fold.states.values()])
