"""Mean answer times of a load that is still running."""

import math
from collections.abc import Iterable

from bakeoff.harness.client.sessions import RequestInFlight
from bakeoff.results.records import Pace
from bakeoff.results.units import NS_PER_S

_QUEUED_SHARE = 0.05
"""Requests are queued if they spend this part of their time waiting."""


class AnswerTimes:
    """Collects the answer times of ended requests.

    Attributes:
        ended: requests that have ended.
    """

    def __init__(self) -> None:
        self.ended = 0
        self._total_ns = 0
        self._answered = 0
        self._first_ns = 0
        self._least_first_ns: int | None = None
        self._rest_ns = 0
        self._rest_tokens = 0
        self._tokens_squared = 0
        self._tokens_by_ns = 0
        self._squared_ns = 0
        self._streamed = 0

    def add(self, request: RequestInFlight, pause_ns: int = 0) -> None:
        """Count a request that has ended, and the pause of its slot that follows."""
        self.ended += 1
        self._total_ns += request.ended_ns - request.planned_ns + pause_ns
        if request.has_failed or not request.read_ns:
            return
        self._answered += 1
        self._streamed += request.is_streamed
        first_ns = request.read_ns[0] - request.planned_ns
        self._first_ns += first_ns
        self._least_first_ns = first_ns if self._least_first_ns is None else min(first_ns, self._least_first_ns)
        later_tokens = max(0, request.requested_output_tokens - 1)
        self._rest_ns += request.ended_ns - request.read_ns[0]
        self._squared_ns += (request.ended_ns - request.planned_ns) ** 2
        self._rest_tokens += later_tokens
        self._tokens_squared += later_tokens**2
        self._tokens_by_ns += later_tokens * (request.ended_ns - request.planned_ns)

    def mean_ns(self, in_flight: Iterable[RequestInFlight], now_ns: int) -> float | None:
        """Mean time from plan to end, or to the end of the pause after a failure; None if no request has ended.

        The mean over ended requests alone would be too small, since short ones end first. The total time of ended and
        running requests per ended one is the maximum likelihood estimate for exponential times that are censored
        (Lawless, Statistical Models and Methods for Lifetime Data, 2003, ch. 4).

        Args:
            in_flight: requests that have not ended.
            now_ns: time of this moment.
        """
        ages_ns = sum(now_ns - request.planned_ns for request in in_flight)
        return (self._total_ns + ages_ns) / self.ended if self.ended else None

    def service_ns(self, in_flight: Iterable[RequestInFlight], now_ns: int) -> float:
        """Mean answer time without the waits of :attr:`wait_ns`, estimated like :meth:`mean_ns`; 0 if none is known.

        Requests without a first byte are left out, since they may only wait: under an overload they are more and more.

        Args:
            in_flight: requests that have not ended.
            now_ns: time of this moment.
        """
        ages_ns = sum(now_ns - request.read_ns[0] for request in in_flight if request.read_ns)
        return (self._least_first_ns or 0) + (self._rest_ns + ages_ns) / self._answered if self._answered else 0.0

    @property
    def are_queued(self) -> bool:
        """Whether requests wait for their first byte longer than the quickest one, by a fair part of their time.

        The first byte of an answer that is not streamed comes with its end, and tells nothing of a queue.
        """
        return bool(self._streamed) and self.wait_ns * self._answered > _QUEUED_SHARE * (self._first_ns + self._rest_ns)

    @property
    def wait_ns(self) -> float:
        """Mean time to the first byte beyond that of the quickest request; 0 if none was answered."""
        return self._first_ns / self._answered - (self._least_first_ns or 0) if self._answered else 0.0

    @property
    def pace(self) -> Pace | None:
        """The engine's pace; None if no request was answered.

        Least squares of the answer times over their lengths: the time to the first byte and the rest would do where
        each token comes alone, but the first read of an engine that sends tokens in groups has several. These two are
        used where lengths are equal, where longer answers do not take longer, and where requests queue: waits that grow
        would be taken for those of longer answers.

        At most one answer time of waiting in a queue is included: an overload, in which waits grow for ever, says
        nothing of the engine's pace.
        """
        count = self._answered
        if not count:
            return None
        mean_ns, tokens = (self._first_ns + self._rest_ns) / count, self._rest_tokens / count
        variance = self._tokens_squared / count - tokens**2
        token_ns = (self._tokens_by_ns / count - tokens * mean_ns) / variance if variance > tokens / count else 0.0
        first_ns = mean_ns - token_ns * tokens
        if token_ns <= 0 or first_ns <= 0 or self.are_queued:
            token_ns = self._rest_ns / self._rest_tokens if self._rest_tokens else 0.0
            first_ns = self._first_ns / count
        overload_ns = max(0.0, self.wait_ns - (mean_ns - self.wait_ns))
        return Pace(max(0.0, first_ns - overload_ns) / NS_PER_S, token_ns / NS_PER_S)

    @property
    def pace_error(self) -> float:
        """Relative standard error of the mean answer time that the pace explains, from what it leaves unexplained.

        0 if fewer than two requests were answered.
        """
        pace, count = self.pace, self._answered
        if pace is None or count < 2:
            return 0.0
        first_ns, token_ns = pace.ttft_s * NS_PER_S, pace.token_s * NS_PER_S
        total_ns = self._first_ns + self._rest_ns
        explained_ns = 2 * (first_ns * total_ns + token_ns * self._tokens_by_ns)
        of_pace_ns = count * first_ns**2 + 2 * first_ns * token_ns * self._rest_tokens
        residual_ns = self._squared_ns - explained_ns + of_pace_ns + token_ns**2 * self._tokens_squared
        return math.sqrt(max(0.0, residual_ns)) / total_ns if total_ns else 0.0
