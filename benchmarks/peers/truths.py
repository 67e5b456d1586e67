"""Computes the figures that tools report from the truth server's own record."""

from collections.abc import Sequence

import msgspec
import numpy as np

from bakeoff.harness.truth import Answered
from bakeoff.harness.truth.record import gaps_s, in_flight, ttft_s


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies of answers without an injected fault; None without any value."""

    ttft_mean_ms: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_mean_ms: float | None
    itl_p99_ms: float | None
    tpot_mean_ms: float | None


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one load's answers.

    Attributes:
        requests: number of requests that arrived.
        sound: number of them that were answered without an injected fault.
        tokens: of the sound answers.
        chunks: chunks with tokens that were written, of all answers.
        first_ns: arrival of the first request.
        last_ns: time at which the last token was written.
        chunks_per_s: chunks over the time from the first of them to the last.
        requests_per_s: over the time from the first request to the last token.
        in_flight: mean number of requests in service, from the time at which the wanted number (or, if that never
            happened, the largest number) was first reached to the arrival of the last request.
        arrivals_per_s: requests over the time from the first arrival to the last.
        arrivals_cv: coefficient of variation of the gaps between requests; 1 for a Poisson process.
    """

    requests: int
    sound: int
    tokens: int
    chunks: int
    latencies: Latencies
    first_ns: int
    last_ns: int
    chunks_per_s: float
    requests_per_s: float
    in_flight: float
    arrivals_per_s: float
    arrivals_cv: float


def truth_of(answers: Sequence[Answered], wanted_in_flight: int | None) -> Truth:
    """Compute the statistics of one load, whose answers must hold a token."""
    sound = [answer for answer in answers if answer.fault is None]
    starts_ns = np.sort([answer.start_ns for answer in answers])
    written_ns = [answer.written_ns for answer in answers if answer.written_ns]
    gaps_ns = np.diff(starts_ns)
    first_ns, last_ns = int(starts_ns[0]), max(times_ns[-1] for times_ns in written_ns)
    chunks = sum(map(len, written_ns))
    return Truth(
        requests=len(answers),
        sound=len(sound),
        tokens=sum(answer.tokens for answer in sound),
        chunks=chunks,
        latencies=_latencies(sound),
        first_ns=first_ns,
        last_ns=last_ns,
        chunks_per_s=_rate(chunks, min(times_ns[0] for times_ns in written_ns), last_ns),
        requests_per_s=_rate(len(answers), first_ns, last_ns),
        in_flight=_in_flight(answers, wanted_in_flight),
        arrivals_per_s=_rate(len(gaps_ns), first_ns, int(starts_ns[-1])),
        arrivals_cv=float(gaps_ns.std() / gaps_ns.mean()) if len(gaps_ns) > 1 else 0.0,
    )


def _latencies(sound: Sequence[Answered]) -> Latencies:
    ttft_ms, gaps_ms = np.asarray(ttft_s(sound)) * 1e3, np.asarray(gaps_s(sound)) * 1e3
    times_ns = [answer.written_ns for answer in sound if len(answer.written_ns) > 1]
    tpot_ms = np.asarray([(written_ns[-1] - written_ns[0]) / (len(written_ns) - 1) for written_ns in times_ns]) / 1e6
    return Latencies(
        ttft_mean_ms=_statistic(ttft_ms, None),
        ttft_p50_ms=_statistic(ttft_ms, 0.50),
        ttft_p99_ms=_statistic(ttft_ms, 0.99),
        itl_mean_ms=_statistic(gaps_ms, None),
        itl_p99_ms=_statistic(gaps_ms, 0.99),
        tpot_mean_ms=_statistic(tpot_ms, None),
    )


def _statistic(values: np.ndarray, quantile: float | None) -> float | None:
    """The quantile, or without one the mean."""
    if not len(values):
        return None
    return float(values.mean() if quantile is None else np.quantile(values, quantile))


def _rate(count: int, start_ns: int, end_ns: int) -> float:
    return count / max(1e-9, (end_ns - start_ns) / 1e9)


def _in_flight(answers: Sequence[Answered], wanted: int | None) -> float:
    """See :class:`Truth`."""
    starts_ns = np.asarray([answer.start_ns for answer in answers])
    ends_ns = np.asarray([answer.ended_ns or answer.start_ns for answer in answers])
    times_ns = np.concatenate([starts_ns, ends_ns])
    order = np.argsort(times_ns, kind="stable")  # an arrival at the instant of a departure comes first
    level = np.cumsum(np.repeat([1, -1], len(answers))[order])
    largest = int(level.max())
    reached_ns = int(times_ns[order][np.argmax(level >= min(wanted or largest, largest))])
    last_ns = int(starts_ns.max())
    return in_flight(answers, reached_ns, last_ns) if last_ns > reached_ns else float(largest)
