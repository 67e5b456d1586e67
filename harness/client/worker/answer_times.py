"""Mean answer times of a load that is still running."""

import math
from collections.abc import Iterable

import numpy as np

from bakeoff.harness.client.worker.sessions import RequestInFlight
from bakeoff.results.records import Pace
from bakeoff.results.units import NS_PER_S

_QUEUED_SHARE = 0.05
"""Requests are queued if they spend this part of their time waiting."""


class _Sums:
    """Sums over answers."""

    __slots__ = ("count", "first_ns", "least_first_ns", "rest_ns", "squared_ns")

    def __init__(self) -> None:
        self.count = self.first_ns = self.rest_ns = self.squared_ns = 0
        self.least_first_ns: float = math.inf

    def add(self, first_ns: int, rest_ns: int) -> None:
        self.count += 1
        self.first_ns += first_ns
        self.least_first_ns = min(self.least_first_ns, first_ns)
        self.rest_ns += rest_ns
        self.squared_ns += (first_ns + rest_ns) ** 2


class AnswerTimes:
    """Collects the answer times of ended requests.

    Attributes:
        ended: requests that have ended.
    """

    def __init__(self) -> None:
        self.ended: int = 0
        self._total_ns = 0
        self._all = _Sums()
        self._by_length: dict[int, _Sums] = {}
        self._streamed = 0

    def add(self, request: RequestInFlight, pause_ns: int = 0) -> None:
        """Count a request that has ended, and the pause of its slot that follows."""
        self.ended += 1
        self._total_ns += request.ended_ns - request.planned_ns + pause_ns
        if request.has_failed or not request.read_ns:
            return
        self._streamed += request.is_streamed
        for sums in (self._all, self._by_length.setdefault(request.requested_output_tokens, _Sums())):
            sums.add(request.read_ns[0] - request.planned_ns, request.ended_ns - request.read_ns[0])

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
        answers = self._all
        ages_ns = sum(now_ns - request.read_ns[0] for request in in_flight if request.read_ns)
        return answers.least_first_ns + (answers.rest_ns + ages_ns) / answers.count if answers.count else 0.0

    @property
    def are_queued(self) -> bool:
        """Whether requests wait for their first byte longer than the quickest one, by a fair part of their time.

        An engine that sends tokens in groups sends an answer that is shorter than a group early. So a request is
        compared with the quickest of those whose answers are at least as long, unless waits are half of the time. The
        first byte of an answer that is not streamed comes with its end, and tells nothing of a queue.
        """
        if not self._streamed:
            return False
        least_ns, waits_ns = math.inf, 0.0
        for _, answers in sorted(self._by_length.items(), reverse=True):
            least_ns = min(least_ns, answers.least_first_ns)
            waits_ns += answers.first_ns - answers.count * least_ns
        total_ns = self._all.first_ns + self._all.rest_ns
        return waits_ns > _QUEUED_SHARE * total_ns or 2 * self.wait_ns * self._all.count > total_ns

    @property
    def wait_ns(self) -> float:
        """Mean time to the first byte beyond that of the quickest request; 0 if none was answered."""
        answers = self._all
        return answers.first_ns / answers.count - answers.least_first_ns if answers.count else 0.0

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
        count, total_ns = self._all.count, self._all.first_ns + self._all.rest_ns
        if not count:
            return None
        counts, tokens, times_ns = self._columns()
        mean_ns, mean_tokens = total_ns / count, (counts * tokens).sum() / count
        deviations = tokens - mean_tokens
        variance = (counts * deviations**2).sum() / count
        token_ns = 0.0
        if variance > mean_tokens / count and not self.are_queued:
            token_ns = (deviations * times_ns).sum() / count / variance
        if token_ns <= 0 or token_ns * mean_tokens >= mean_ns:
            token_ns = self._all.rest_ns / count / mean_tokens if mean_tokens else 0.0
        wait_ns = self.wait_ns if self._streamed else 0.0  # else the first byte comes with the answer's end
        overload_ns = max(0.0, wait_ns - (mean_ns - wait_ns))
        ttft_ns = max(0.0, mean_ns - token_ns * mean_tokens - overload_ns)
        return Pace(float(ttft_ns) / NS_PER_S, float(token_ns) / NS_PER_S)

    @property
    def pace_error(self) -> float:
        """Relative standard error of the mean answer time that the pace explains, from what it leaves unexplained.

        0 if fewer than two requests were answered.
        """
        pace, total_ns = self.pace, self._all.first_ns + self._all.rest_ns
        if pace is None or self._all.count < 2 or not total_ns:
            return 0.0
        counts, tokens, times_ns = self._columns()
        explained_ns = (pace.ttft_s + pace.token_s * tokens) * NS_PER_S
        residual_ns = self._all.squared_ns - 2 * (explained_ns * times_ns).sum() + (counts * explained_ns**2).sum()
        return math.sqrt(max(0.0, residual_ns)) / total_ns

    def _columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """By length: the number of answers, tokens after the first, and total answer times in nanoseconds."""
        rows = [
            (answers.count, max(0, length - 1), answers.first_ns + answers.rest_ns)
            for length, answers in self._by_length.items()
        ]
        counts, tokens, times_ns = np.array(rows, dtype=np.float64).T
        return counts, tokens, times_ns
