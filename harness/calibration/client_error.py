"""The measuring client's own error under a given load, measured against a server with known timing.

The truth server (:mod:`bakeoff.harness.truth`) answers on a schedule and records when bytes left. Every latency metric
is computed twice for the same requests, from the client's records and from the server's, on one clock. The difference
is the client's error, the server's reading of the request included.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.harness.client import Closed, Fleet, LoadResult, Open, decode_stream
from bakeoff.harness.client.fleet.fleet import LoadOrder
from bakeoff.harness.client.wire.orders import Target
from bakeoff.harness.client.wire.plan import WireSession, wire_sessions
from bakeoff.harness.errors import ClientFailed
from bakeoff.harness.host.scratch import scratch_folder
from bakeoff.harness.truth import Answered, Schedule, truth_process
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.metrics import latency
from bakeoff.results.metrics.declaration import QUANTILES
from bakeoff.results.records import ClientError, Outcome, RequestRecord
from bakeoff.results.requests import Floats, Places, Requests
from bakeoff.results.units import NS_PER_S
from bakeoff.workloads import PlannedSession, Session, Turn

DURATION_S = 1.0
"""Time during which requests are started; it ends before the last answers do."""
ANSWER_S = 0.25
"""Longest answer, so that each stream completes several: longer answers add no information about the error."""
CALIBRATED_S = DURATION_S + ANSWER_S
"""Time of a calibration during which the client works."""
MIN_CHUNKS = 4
MIN_GAP_S, MAX_GAP_S = 0.001, 0.1
"""Range of gaps: the truth server cannot write much faster, and slower chunks are no harder for a client."""
MAX_TTFT_S = 0.05
LENGTHS = 256
"""Number of distinct prompt lengths, in words; requests are matched to answers by their length."""
MIN_RATE_PER_S = 10.0
"""Lowest rate at which an open loop is calibrated: a second must contain some arrivals."""
BODIES = 16
"""Number of body sizes that represent those of a trial's requests."""
MAX_SENT_BYTES = 256_000_000
"""A closed loop of large bodies ends after this many bytes."""
RESAMPLES = 20
"""Bootstrap resamples of the requests; see :func:`metric_error_s`."""


class Shape(msgspec.Struct, frozen=True):
    """A load as the client sees it.

    Attributes:
        gap_s: time between two chunks of one stream.
        chunks: chunks in each answer.
        ttft_s: time from the request to the first chunk.
        concurrency: streams in flight; or
        rate_per_s: arrivals per second.
        tokens_per_chunk: tokens in each chunk.
        body_bytes: sizes of request bodies, sent in turn; empty for short bodies.
    """

    gap_s: float = 0.01
    chunks: int = 64
    ttft_s: float = MAX_TTFT_S
    concurrency: int | None = None
    rate_per_s: float | None = None
    tokens_per_chunk: int = 1
    body_bytes: tuple[int, ...] = ()

    @property
    def answer_s(self) -> float:
        """Seconds from the request to the last chunk."""
        return self.ttft_s + (self.chunks - 1) * self.gap_s

    @property
    def chunks_per_s(self) -> float:
        """Chunks per second over all streams if neither client nor server is late."""
        if self.rate_per_s is not None:
            return self.rate_per_s * self.chunks
        return (self.concurrency or 1) * self.chunks / self.answer_s

    def fitted(self) -> "Shape":
        """The same chunk rate with answers short enough for a calibration; an open loop sends more requests instead."""
        gap_s = min(max(self.gap_s, MIN_GAP_S), MAX_GAP_S)
        ttft_s = min(self.ttft_s, MAX_TTFT_S)
        chunks = min(self.chunks, max(MIN_CHUNKS, 1 + round((ANSWER_S - ttft_s) / gap_s)))
        rate = None if self.rate_per_s is None else max(MIN_RATE_PER_S, self.rate_per_s * self.chunks / chunks)
        return msgspec.structs.replace(self, gap_s=gap_s, chunks=chunks, ttft_s=ttft_s, rate_per_s=rate)


def spread_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """At most :data:`BODIES` of the sizes, evenly spaced by rank from the smallest to the largest."""
    ordered = sorted(sizes)
    count = min(BODIES, len(ordered))
    return tuple(ordered[round(i * (len(ordered) - 1) / max(1, count - 1))] for i in range(count))


async def calibrate(fleet: Fleet, shape: Shape, transport: str = "http") -> ClientError:
    """Apply ``shape`` to a truth server for a second, and compare client and server records.

    Args:
        fleet: the workers, all on this machine.
        shape: the load; long answers are shortened.
        transport: ``http`` or ``aiohttp``.

    Raises:
        ClientFailed: an answer is missing, or a worker failed.
        TruthFailed: the truth server cannot be started.
    """
    shape = shape.fitted()
    share = Closed(shape.concurrency or 1, DURATION_S) if shape.rate_per_s is None else Open(DURATION_S)
    with scratch_folder() as scratch:
        folder = TrialFolder(scratch)
        schedule = Schedule(shape.ttft_s, shape.gap_s, tokens_per_chunk=shape.tokens_per_chunk)
        async with truth_process(schedule) as truth:
            order = LoadOrder((Target(truth.url),), share, timeout_s=DURATION_S * 60, transport=transport)
            result = await fleet.load(order, planned_sessions(shape), folder)
            answers = await truth.answered()
        requests = [decode_stream(stream, ReferenceDialect(), None) for stream in folder.read_streams()]
    return client_error(shape, requests, answers, result)


def client_error(
    shape: Shape, requests: Sequence[RequestRecord], answers: Sequence[Answered], result: LoadResult
) -> ClientError:
    """Compare the client's records with the server's.

    Args:
        shape: the load.
        requests: records of the client.
        answers: records of the server.
        result: of the fleet, for the client's cost.

    Raises:
        ClientFailed: the records do not match, or a request failed.
    """
    pairs = _matched(requests, answers)
    took_s = statistics.fmean((request.ended_ns - request.planned_ns) / 1e9 for request, _ in pairs)
    return ClientError(
        requests=len(pairs),
        chunks_per_s=shape.chunks_per_s * min(1.0, shape.answer_s / took_s),
        send_lag_s=float(np.quantile(latency.send_lag_s(Requests(request for request, _ in pairs)), 0.99)),
        cpu_s=sum(client.cpu_s for client in result.clients),
        by_metric=_by_metric(pairs),
    )


def median_of(errors: Sequence[ClientError]) -> ClientError:
    """The median of each field over several calibrations of one shape, which hides a single disturbance."""
    metrics = dict.fromkeys(metric for error in errors for metric in error.by_metric)
    return ClientError(
        requests=sum(error.requests for error in errors),
        chunks_per_s=statistics.median(error.chunks_per_s for error in errors),
        send_lag_s=statistics.median(error.send_lag_s for error in errors),
        cpu_s=statistics.median(error.cpu_s for error in errors),
        by_metric={
            metric: statistics.median(error.by_metric[metric] for error in errors if metric in error.by_metric)
            for metric in metrics
        },
    )


def metric_error_s(seen_s: Sequence[Floats], true_s: Sequence[Floats]) -> list[float]:
    """The error (±) of one latency at each percentile of the catalogue, in seconds.

    It is ``max over S of |Q(seen, S) - Q(true, S)|``: Q is the percentile (type 7) of the observations of the requests
    in S. S is all requests, and each of :data:`RESAMPLES` bootstrap samples of the same size (B. Efron: Bootstrap
    methods. Ann. Statist. 7 (1979), 1-26): a single sample may show no difference by chance.

    Args:
        seen_s: the client's observations of each request.
        true_s: the server's, of the same requests in the same order.
    """
    rng = np.random.default_rng(0)
    levels = [q for _, q in QUANTILES]
    samples = [np.arange(len(seen_s)), *(rng.integers(len(seen_s), size=len(seen_s)) for _ in range(RESAMPLES))]
    differences = [
        np.abs(np.quantile(_pooled(seen_s, sample), levels) - np.quantile(_pooled(true_s, sample), levels))
        for sample in samples
    ]
    return [float(error) for error in np.max(differences, axis=0)]


def _pooled(values: Sequence[Floats], sample: np.ndarray) -> np.ndarray:
    return np.concatenate([values[i] for i in sample])


def _single(metric: Callable[[Requests], Floats]) -> Callable[[Requests], tuple[Floats, Places]]:
    def observed(requests: Requests) -> tuple[Floats, Places]:
        values = metric(requests)
        owners = np.flatnonzero(~np.isnan(values)).astype(np.int32)
        return values[owners], owners

    return observed


def _span_s(requests: Requests) -> Floats:
    chunks = requests.chunks
    return np.where(chunks.counts > 1, (chunks.last_ns - chunks.first_ns) / NS_PER_S, np.nan)


_OBSERVATIONS: dict[str, Callable[[Requests], tuple[Floats, Places]]] = {
    "ttft": _single(latency.ttft_s),
    "first_visible": _single(latency.first_visible_s),
    "ttft_from_send": _single(latency.ttft_from_send_s),
    "itl": latency.itl_s,
    "chunk_gap": latency.chunk_gaps_s,
    "tpot": _single(latency.tpot_s),
    "e2e": _single(latency.e2e_s),
    "normalized_latency": _single(latency.normalized_latency_s),
    "thinking": _single(_span_s),
    "reasoning_tpot": _single(latency.tpot_s),
    "visible_tpot": _single(latency.tpot_s),
}
"""Observations of each latency metric, and the position of the request of each. The server with known timing does not
reason: the last three are those of the same chunks without kinds. Send lag is missing: it is the client's own error,
without a true value."""


def _by_metric(pairs: Sequence[tuple[RequestRecord, Answered]]) -> dict[str, float]:
    """The error of each metric, without metrics that these answers do not have."""
    seen = Requests(request for request, _ in pairs)
    truth = Requests(_true_record(request, answer) for request, answer in pairs)
    errors: dict[str, float] = {}
    for name, observations in _OBSERVATIONS.items():
        both_s = zip(_by_request(seen, observations), _by_request(truth, observations), strict=True)
        known_s = [(seen_s, true_s) for seen_s, true_s in both_s if len(seen_s) and len(true_s)]
        if known_s:
            error_s = metric_error_s([seen_s for seen_s, _ in known_s], [true_s for _, true_s in known_s])
            errors |= {f"{name}_{label}_s": error_s[i] for i, (label, _) in enumerate(QUANTILES)}
    return errors


def _by_request(requests: Requests, observations: Callable[[Requests], tuple[Floats, Places]]) -> list[Floats]:
    values, owners = observations(requests)
    return np.split(values, np.searchsorted(owners, np.arange(1, len(requests))))


def _true_record(request: RequestRecord, answer: Answered) -> RequestRecord:
    """The record of a client that is never late: requests arrive as planned, chunks when they are written."""
    return msgspec.structs.replace(
        request, planned_ns=answer.start_ns, due_ns=None, dial_start_ns=None, dial_end_ns=None,
        sent_ns=answer.start_ns, chunk_ns=answer.written_ns,
    )  # fmt: skip


def _matched(requests: Sequence[RequestRecord], answers: Sequence[Answered]) -> list[tuple[RequestRecord, Answered]]:
    """Requests with their answers, matched by prompt length and then by order.

    The server may read a burst in another order than it was sent, but not displaced by as many requests as there are
    lengths.
    """
    failed = next((request for request in requests if request.outcome is not Outcome.OK), None)
    if failed is not None:
        raise ClientFailed(f"calibration: a request ended as {failed.outcome.value}: {failed.error}")
    if len(requests) != len(answers) or not requests:
        raise ClientFailed(f"calibration: {len(answers)} answers to {len(requests)} requests")
    sent = sorted(requests, key=lambda request: (request.requested_input_tokens or 0, request.sent_ns or 0))
    pairs = list(zip(sent, sorted(answers, key=lambda answer: (answer.prompt_tokens, answer.start_ns)), strict=True))
    for request, answer in pairs:
        if len(request.chunk_ns) != len(answer.written_ns) or not answer.written_ns:
            read, written = len(request.chunk_ns), len(answer.written_ns)
            raise ClientFailed(f"calibration: the server wrote {written} chunks of an answer, the client read {read}")
    return pairs


def planned_sessions(shape: Shape) -> Iterator[WireSession]:
    """Requests for the whole duration, with prompts of :data:`LENGTHS` lengths in turn."""
    rate, dialect = shape.rate_per_s, ReferenceDialect()
    if rate is None:
        count = (shape.concurrency or 1) * math.ceil(1 + DURATION_S / shape.answer_s)
        mean_bytes = statistics.fmean(shape.body_bytes or [1])
        count = min(count, max(shape.concurrency or 1, int(MAX_SENT_BYTES / mean_bytes)))
    else:
        count = round(rate * DURATION_S)
    planned = (
        PlannedSession(Session(str(i), (_turn(shape, i, dialect),)), None if rate is None else i / rate)
        for i in range(count)
    )
    return wire_sessions(planned, dialect, "truth")


def _turn(shape: Shape, number: int, dialect: ReferenceDialect) -> Turn:
    """A prompt whose number of words identifies its answer, with a first word that fills the body to its size."""
    words = number % LENGTHS + 1
    turn = Turn(words, shape.chunks * shape.tokens_per_chunk, prompt=" ".join("a" * words))
    if not shape.body_bytes:
        return turn
    missing = shape.body_bytes[number % len(shape.body_bytes)] - len(dialect.request(turn, "truth").body)
    return msgspec.structs.replace(turn, prompt="a" * missing + (turn.prompt or ""))
