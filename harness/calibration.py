"""How wrong the measuring client is under a given load: it is driven against a server that knows the truth.

The truth server (:mod:`harness.truth`) answers on a schedule and keeps the times at which bytes really left. Each
request's error is what the client says minus what the server did, on one clock, so it holds everything between the two:
the client's own lateness at sends and reads, the loopback, and the server's lateness at reading the request.
"""

import itertools
import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from engines.dialects import ReferenceDialect
from harness.client import Closed, Fleet, LoadResult, Open, decode_stream
from harness.client.fleet import LoadOrder
from harness.client.wire import WireSession, wire_sessions
from harness.errors import ClientFailed
from harness.truth import Answered, Schedule, truth_process
from results.metrics import latency
from results.records import ClientError, Outcome, RequestRecord
from results.store import TrialFolder
from workloads import PlannedSession, Session, Turn

DURATION_S = 1.0
"""For how long requests are started; the last answers come on top."""
ANSWER_S = 0.25
"""Longest answer: each stream shall bring a few in that time. Longer ones only repeat what their first gaps say."""
MIN_CHUNKS = 4
MIN_GAP_S, MAX_GAP_S = 0.001, 0.1
"""The truth server cannot write much faster; chunks that come slower are no harder for a client."""
MAX_TTFT_S = 0.05
LENGTHS = 256
"""Of prompts, in words: by its length a request finds its answer."""
MIN_RATE_PER_S = 10.0
"""An open loop below this rate is calibrated at it: a second must hold some arrivals."""


class Shape(msgspec.Struct, frozen=True):
    """What a load looks like to the client.

    Attributes:
        gap_s: between two chunks of one stream.
        chunks: in each answer.
        ttft_s: from the request to the first of them.
        concurrency: streams kept in flight; or
        rate_per_s: arrivals per second.
    """

    gap_s: float = 0.01
    chunks: int = 64
    ttft_s: float = MAX_TTFT_S
    concurrency: int | None = None
    rate_per_s: float | None = None

    @property
    def answer_s(self) -> float:
        """From the request to the last chunk."""
        return self.ttft_s + (self.chunks - 1) * self.gap_s

    @property
    def chunks_per_s(self) -> float:
        """Over all streams, when neither client nor server is ever late."""
        if self.rate_per_s is not None:
            return self.rate_per_s * self.chunks
        return (self.concurrency or 1) * self.chunks / self.answer_s

    def fitted(self) -> "Shape":
        """The same pace in answers that a calibration can wait for; an open loop sends as many more of them."""
        gap_s = min(max(self.gap_s, MIN_GAP_S), MAX_GAP_S)
        ttft_s = min(self.ttft_s, MAX_TTFT_S)
        chunks = min(self.chunks, max(MIN_CHUNKS, 1 + round((ANSWER_S - ttft_s) / gap_s)))
        rate = None if self.rate_per_s is None else max(MIN_RATE_PER_S, self.rate_per_s * self.chunks / chunks)
        return Shape(gap_s, chunks, ttft_s, self.concurrency, rate)


async def calibrate(fleet: Fleet, shape: Shape, transport: str = "http") -> ClientError:
    """Put ``shape`` on a truth server for a second and compare.

    Args:
        fleet: the workers; all of this machine.
        shape: what the load looks like; answers longer than a calibration can wait for are cut.
        transport: ``http`` or ``aiohttp``.

    Raises:
        ClientFailed: an answer is missing, or a worker broke.
        TruthFailed: the truth server cannot be started.
    """
    shape = shape.fitted()
    share = Closed(shape.concurrency or 1, DURATION_S) if shape.rate_per_s is None else Open(DURATION_S)
    with tempfile.TemporaryDirectory(prefix="bakeoff-") as scratch:
        folder = TrialFolder(Path(scratch))
        async with truth_process(Schedule(shape.ttft_s, shape.gap_s)) as truth:
            order = LoadOrder(truth.url, share, timeout_s=DURATION_S * 60, transport=transport)
            result = await fleet.load(order, _sessions(shape), folder)
            answers = await truth.answered()
        requests = [decode_stream(stream, ReferenceDialect(), None) for stream in folder.read_streams()]
    return client_error(shape, requests, answers, result)


def client_error(
    shape: Shape, requests: Sequence[RequestRecord], answers: Sequence[Answered], result: LoadResult
) -> ClientError:
    """Compare what the client recorded with what the server did.

    Args:
        shape: what was asked for.
        requests: as the client saw them.
        answers: as the server gave them.
        result: what the client cost.

    Raises:
        ClientFailed: the two do not belong together, or a request failed.
    """
    pairs = _matched(requests, answers)
    gap_errors_s = [abs(error) for request, answer in pairs for error in _gap_errors_s(request, answer)]
    took_s = statistics.fmean((request.ended_ns - request.planned_ns) / 1e9 for request, _ in pairs)
    return ClientError(
        requests=len(pairs),
        chunks_per_s=shape.chunks_per_s * min(1.0, shape.answer_s / took_s),
        ttft_s=_p99([abs(_ttft_error_s(request, answer)) for request, answer in pairs]),
        itl_s=_p99(gap_errors_s) if gap_errors_s else None,
        send_lag_s=_p99([latency.send_lag_s(request) or 0.0 for request, _ in pairs]),
        cpu_s=sum(client.cpu_s for client in result.clients),
    )


def median_of(errors: Sequence[ClientError]) -> ClientError:
    """The median of each field over several calibrations of one shape: one hiccup of another process is not ours."""
    gaps_s = [error.itl_s for error in errors if error.itl_s is not None]
    return ClientError(
        requests=sum(error.requests for error in errors),
        chunks_per_s=statistics.median(error.chunks_per_s for error in errors),
        ttft_s=statistics.median(error.ttft_s for error in errors),
        itl_s=statistics.median(gaps_s) if gaps_s else None,
        send_lag_s=statistics.median(error.send_lag_s for error in errors),
        cpu_s=statistics.median(error.cpu_s for error in errors),
    )


def _matched(requests: Sequence[RequestRecord], answers: Sequence[Answered]) -> list[tuple[RequestRecord, Answered]]:
    """Requests with their answers: those with prompts of one length, in their order.

    A burst may be read in another order than it was sent, but not by as many requests as there are lengths.
    """
    failed = next((request for request in requests if request.outcome is not Outcome.OK), None)
    if failed is not None:
        raise ClientFailed(f"calibration: a request ended as {failed.outcome.value}: {failed.error}")
    if len(requests) != len(answers) or not requests:
        raise ClientFailed(f"calibration: {len(answers)} answers to {len(requests)} requests")
    sent = sorted(requests, key=lambda request: (request.wanted_input_tokens or 0, request.sent_ns or 0))
    pairs = list(zip(sent, sorted(answers, key=lambda answer: (answer.prompt_tokens, answer.start_ns)), strict=True))
    for request, answer in pairs:
        if len(request.chunk_ns) != len(answer.written_ns) or not answer.written_ns:
            seen, written = len(request.chunk_ns), len(answer.written_ns)
            raise ClientFailed(f"calibration: {written} chunks were written where {seen} were read")
    return pairs


def _ttft_error_s(request: RequestRecord, answer: Answered) -> float:
    seen_ns = request.chunk_ns[0] - request.planned_ns
    return (seen_ns - (answer.written_ns[0] - answer.start_ns)) / 1e9


def _gap_errors_s(request: RequestRecord, answer: Answered) -> Iterator[float]:
    """Error of each gap: the lateness of its end minus that of its start."""
    late_ns = [seen - written for seen, written in zip(request.chunk_ns, answer.written_ns, strict=True)]
    return ((after - before) / 1e9 for before, after in itertools.pairwise(late_ns))


def _p99(values: Sequence[float]) -> float:
    return float(np.quantile(np.asarray(values), 0.99))


def _sessions(shape: Shape) -> Iterator[WireSession]:
    """Short prompts of :data:`LENGTHS` lengths in turn; as many as the duration can take."""
    turns = [Turn(input_tokens=n, output_tokens=shape.chunks, prompt=" ".join("a" * n)) for n in range(1, LENGTHS + 1)]
    rate = shape.rate_per_s
    if rate is None:
        count = (shape.concurrency or 1) * math.ceil(1 + DURATION_S / shape.answer_s)
    else:
        count = round(rate * DURATION_S)
    planned = (
        PlannedSession(Session(str(i), (turns[i % LENGTHS],)), None if rate is None else i / rate) for i in range(count)
    )
    return wire_sessions(planned, ReferenceDialect(), "truth")
