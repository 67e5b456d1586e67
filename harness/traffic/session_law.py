"""The long run of a steady load: which sessions are in progress at any one time, and which requests it sends.

At a random instant of a load that has run for long, a session is met in proportion to its duration, at a uniform point
of it (renewal theory; Cox, Renewal Theory, 1962, ch. 5: the age and the rest of the interval around a random instant
have the mean E[S²] / 2 E[S]). An open loop of ``rate`` sessions per second has ``rate`` × the mean duration in progress
(Little's law), a closed loop one on each slot. So a load that begins with such sessions is in its long run at once,
where one that begins with first turns gets there only after the longest session has ended.

A duration consists of the plan's pauses, which are known, and of answer times, which depend on the engine
(:class:`Pace`).
"""

from collections.abc import Callable, Iterable
from itertools import pairwise

import msgspec
import numpy as np

from bakeoff.results.records import Pace
from bakeoff.workloads import SessionShape

_MAX_ERROR, _PACE_NOISE, _SIGMAS = 0.005, 0.06, 2.0
"""A load may begin with an assumed pace that changes the mean duration of a session by this part of the duration plus
this part of its answer times, or so many standard errors of their mean; by the latter, two measurements of one pace
differ."""


class BegunCall(msgspec.Struct, frozen=True):
    """A call of a session in progress that waits for no answer: it is in a pause, or being answered.

    Attributes:
        turn: position in the session.
        delay_s: rest of the pause.
        part: of the answer that remains and is requested, above 0; 1 for all of it.
    """

    turn: int
    delay_s: float
    part: float = 1.0


class Begun(msgspec.Struct, frozen=True):
    """A session in progress when a load begins.

    Attributes:
        number: of the session in the workload.
        calls: those that wait for no answer, at least one; a conversation has exactly one.
        ended: positions of the calls that have been answered.
        ages_s: seconds since each of these was answered; empty if that is unknown.
    """

    number: int
    calls: tuple[BegunCall, ...]
    ended: tuple[int, ...] = ()
    ages_s: tuple[float, ...] = ()


class SessionLaw:
    """The law of a workload's sessions, from a sample of them.

    Args:
        shapes: the sample, at least one; session ``i`` is number ``i`` of the workload.

    Attributes:
        turns: mean number of requests in a session.
        mean_turn: mean position of a request in its session, from 0.
        think_s: mean pause before a request, which is 0 before the first of a conversation.
        output_tokens: mean requested length of an answer.
        output_tokens_sd: its standard deviation.
    """

    def __init__(self, shapes: Iterable[SessionShape]) -> None:
        sample = list(shapes)
        counts = np.array([len(shape.output_tokens) for shape in sample])
        self._turn = np.concatenate([np.arange(count) for count in counts])
        self._tokens = np.concatenate([np.array(shape.output_tokens, dtype=np.float64) for shape in sample])
        pauses = np.concatenate([np.array(shape.think_s, dtype=np.float64) for shape in sample])
        self._pause_s = np.where(self._turn > 0, pauses, 0.0)
        self._counts = counts
        self._firsts = np.cumsum(counts) - counts
        self._graphs = {number: shape.graph for number, shape in enumerate(sample) if shape.graph is not None}
        for number, graph in self._graphs.items():
            self._pause_s[self._rows(number)] = graph.pauses_s
        self.turns: float = float(counts.mean())
        self.mean_turn: float = float(self._turn.mean())
        self.think_s: float = float(self._pause_s.mean())
        self.output_tokens: float = float(self._tokens.mean())
        self.output_tokens_sd: float = float(self._tokens.std())

    @classmethod
    def of(cls, shapes: Iterable[SessionShape]) -> "SessionLaw | None":
        """The law of these sessions; None if there is none."""
        sample = [shape for shape in shapes if shape.output_tokens]
        return cls(sample) if sample else None

    def answer_s(self, pace: Pace) -> float:
        """Mean seconds from a request to the end of its answer."""
        return float(self._answers_s(pace).mean())

    def session_s(self, pace: Pace) -> float:
        """Mean seconds from the start of a session to the end of its last answer."""
        return self._session_s(self._answers_s(pace))

    def answered_share(self, pace: Pace) -> float:
        """Mean requests in flight for each session in progress; above 1 if its agents work at the same time."""
        session_s = self.session_s(pace)
        return self.turns * self.answer_s(pace) / session_s if session_s else 1.0

    def turnover_s(self, request_s: float) -> float:
        """Mean seconds from one request of a slot to its next, if each takes ``request_s``."""
        return self._session_s(np.full_like(self._tokens, request_s)) / self.turns

    def is_off(self, assumed: Pace, measured: Pace, *, closed: bool, error: float = 0.0) -> bool:
        """Whether sessions in progress that were drawn at an assumed pace are unlike those at the measured one.

        Only sessions of several turns can be: others pass in one answer, so the ramp replaces them. In a closed loop
        without pauses the pace scales all parts of a session about alike.

        Args:
            assumed: the pace at which they were drawn.
            measured: that of the ramp.
            closed: whether the load is a closed loop.
            error: relative standard error of the mean answer time in the ramp.
        """
        if self.turns <= 1 or (closed and not self.think_s):
            return False
        before_s, after_s = self.session_s(assumed), self.session_s(measured)
        answers_s = self.turns * max(self.answer_s(assumed), self.answer_s(measured))
        noise = max(_PACE_NOISE, _SIGMAS * error)
        return abs(after_s - before_s) > _MAX_ERROR * max(before_s, after_s) + noise * answers_s

    def in_progress(self, count: int, pace: Pace, uniform: Callable[[], float]) -> list[Begun]:
        """Sessions in progress at one instant.

        The durations of all sessions of the sample are laid end to end and divided into ``count`` strata of equal
        length, with a random point in each (Cochran, Sampling Techniques, 1977, ch. 5): it meets a session in
        proportion to its duration, at a uniform point of it, and the points spread over turns more evenly than
        independent draws. Equidistant points would not do: where sessions are alike, all could meet the same instant
        of a session, and send their next requests at once.

        Args:
            count: number of sessions; one that is longer than a stratum may appear more than once.
            pace: of the engine.
            uniform: draws from [0, 1).
        """
        answers_s = self._answers_s(pace)
        starts_s, ends_s = self._times_s(answers_s)
        lengths_s = np.maximum.reduceat(ends_s, self._firsts)
        bounds_s = np.cumsum(lengths_s)
        if not bounds_s[-1]:  # sessions without pauses that are answered at once: none is in progress for any time
            return [self._begun(number % len(lengths_s), -1.0, starts_s, ends_s, pace) for number in range(count)]
        points_s = self._points_s(count, bounds_s, uniform)
        numbers = np.minimum(np.searchsorted(bounds_s, points_s, side="right"), len(bounds_s) - 1)
        passed_s = points_s - (bounds_s - lengths_s)[numbers]
        passed_s = np.clip(passed_s, 0.0, np.nextafter(lengths_s[numbers], -1.0))
        return [
            self._begun(number, at_s, starts_s, ends_s, pace)
            for number, at_s in zip(numbers.tolist(), passed_s.tolist(), strict=True)
        ]

    def _points_s(self, count: int, ends_s: np.ndarray, uniform: Callable[[], float]) -> np.ndarray:
        """A random point in each of ``count`` equal strata of the row of sessions, which end at ``ends_s``.

        Two engines differ in pace, so their rows do. So that most of their points still meet the same turns, and their
        requests can be compared, a session has random numbers of its own: each draws an exponential time divided by
        its duration, the earliest in a stratum is met (with a probability in proportion to its duration), and its
        second number is the place in it. Consistent weighted sampling: Manasse, McSherry, Talwar, MSR-TR-2010-73.
        """
        draws = np.array([(uniform(), uniform()) for _ in range(len(ends_s))])
        starts_s = np.concatenate([[0.0], ends_s[:-1]])
        bounds_s = np.linspace(0.0, float(ends_s[-1]), count + 1)
        points_s: list[float] = []
        for low_s, high_s in pairwise(bounds_s):
            first, last = np.searchsorted(ends_s, low_s, side="right"), np.searchsorted(ends_s, high_s)
            inside = slice(first, last + 1)
            from_s = np.maximum(starts_s[inside], low_s)
            lengths_s = np.maximum(np.minimum(ends_s[inside], high_s) - from_s, 1e-12)
            numbers = draws[inside].copy()
            for edge in {0, len(numbers) - 1}:  # sessions that other strata may meet, too
                numbers[edge] = uniform(), uniform()
            met = np.argmin(-np.log1p(-numbers[:, 0]) / lengths_s)
            points_s.append(float(from_s[met] + numbers[met, 1] * lengths_s[met]))
        return np.array(points_s)

    def _begun(self, number: int, at_s: float, starts_s: np.ndarray, ends_s: np.ndarray, pace: Pace) -> Begun:
        """A session ``at_s`` seconds after its start; a negative time is just before it.

        ``starts_s`` and ``ends_s`` are those of each call's answer in its session.
        """
        rows = self._rows(number)
        starts, ends, tokens = starts_s[rows].tolist(), ends_s[rows].tolist(), self._tokens[rows].tolist()
        ended = {turn for turn, end_s in enumerate(ends) if end_s <= at_s}
        graph = self._graphs.get(number)
        if graph is None:
            frontier = [len(ended)]
        else:
            frontier = [
                turn for turn, parents in enumerate(graph.parents) if turn not in ended and ended.issuperset(parents)
            ]
        calls: list[BegunCall] = []
        for turn in frontier:
            if at_s <= starts[turn]:
                calls.append(BegunCall(turn, starts[turn] - max(0.0, at_s)))
                continue
            rest = (ends[turn] - at_s) / (ends[turn] - starts[turn])
            left_s = rest * (pace.ttft_s + pace.token_s * (tokens[turn] - 1))
            later_s = max(0.0, left_s - pace.ttft_s)  # the rest is requested anew, so it has a first token too
            left = min(tokens[turn], 1 + round(later_s / pace.token_s)) if pace.token_s else tokens[turn]
            calls.append(BegunCall(turn, 0.0, left / tokens[turn]))
        in_order = tuple(sorted(ended))
        return Begun(number, tuple(calls), in_order, tuple(at_s - ends[turn] for turn in in_order))

    def _rows(self, number: int) -> slice:
        """The calls of a session in the arrays of all calls."""
        first = int(self._firsts[number])
        return slice(first, first + int(self._counts[number]))

    def _times_s(self, answers_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of each call's answer, in seconds since its session's start."""
        ends_s = np.cumsum(self._pause_s + answers_s)
        before_s = np.concatenate([[0.0], ends_s])[self._firsts]
        ends_s -= np.repeat(before_s, self._counts)
        starts_s = ends_s - answers_s
        for number, graph in self._graphs.items():
            rows = self._rows(number)
            starts_s[rows], ends_s[rows] = graph.times_s(answers_s[rows].tolist())
        return starts_s, ends_s

    def _session_s(self, answers_s: np.ndarray) -> float:
        _, ends_s = self._times_s(answers_s)
        return float(np.maximum.reduceat(ends_s, self._firsts).mean())

    def _answers_s(self, pace: Pace) -> np.ndarray:
        return pace.ttft_s + pace.token_s * (self._tokens - 1)
