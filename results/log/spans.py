"""Spans that an engine exported in OpenTelemetry's protocol during a profiled trial (docs/profile.md).

``spans.frames`` holds the request bodies as they arrived, and readings of both clocks: spans are stamped with the wall
clock, all else of a trial with the monotonic one. Protocol: https://opentelemetry.io/docs/specs/otlp (OTLP/HTTP with
binary protobuf); message classes: the package ``opentelemetry-proto``.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from bakeoff.results.errors import RunUnreadable
from bakeoff.results.units import NS_PER_S

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

_REQUEST = "llm_request"
"""vLLM's name of the span of a request."""
_ID = "gen_ai.request.id"
_TO_FIRST, _TO_LAST = "gen_ai.latency.time_to_first_token", "gen_ai.latency.e2e"
_QUEUE, _PREFILL, _DECODE = (
    f"gen_ai.latency.{name}" for name in ("time_in_queue", "time_in_model_prefill", "time_in_model_decode")
)
_DURATIONS = (_TO_FIRST, _TO_LAST, _QUEUE, _PREFILL, _DECODE)
"""Attributes of vLLM 0.32, ``vllm/tracing/utils.py``; in seconds."""
_SEQUENCE = re.compile(r"(?<!chatcmpl)-\d+$")
"""Number of a sequence, at the end of its id."""


class ClockReading(msgspec.Struct, frozen=True, array_like=True, tag="clock"):
    """Both clocks at one instant.

    Attributes:
        t_ns: monotonic clock.
        wall_ahead_ns: wall clock minus monotonic clock.
    """

    t_ns: int
    wall_ahead_ns: int


class SpanBatch(msgspec.Struct, frozen=True, array_like=True, tag="spans"):
    """One export request.

    Attributes:
        received_ns: when it had arrived, on the monotonic clock.
        body: an ``ExportTraceServiceRequest``, decompressed.
    """

    received_ns: int
    body: bytes


SpanFrame = ClockReading | SpanBatch
"""Records of ``spans.frames``."""


class RequestSpan(msgspec.Struct, frozen=True):
    """What vLLM reports of one sequence, in nanoseconds.

    Its front end stamps the arrival, and counts to the first and the last token from there. The engine process measures
    the three durations, which follow each other; where in between they lie is not reported.

    Attributes:
        request_id: the answer's id, followed by the number of the sequence in completions.
        arrival_ns: when the front end took the parsed request, before it tokenised the prompt; monotonic clock.
        first_ns: when the front end received the first token; monotonic clock.
        last_ns: when it received the last token; monotonic clock.
        queue_ns: in the scheduler's queue, until first scheduled.
        prefill_ns: from there to the first token.
        decode_ns: from there to the last token.
    """

    request_id: str
    arrival_ns: int
    first_ns: int
    last_ns: int
    queue_ns: int
    prefill_ns: int
    decode_ns: int


def request_spans(frames: Sequence[SpanFrame]) -> list[RequestSpan]:
    """The spans of requests in a record, in order of their export, without those that lack an attribute.

    Raises:
        RunUnreadable: a body is damaged, all spans lack an attribute, or no clock reading places them in time.
    """
    bodies = [frame.body for frame in frames if isinstance(frame, SpanBatch)]
    readings = [frame for frame in frames if isinstance(frame, ClockReading)]
    if bodies and not readings:
        raise RunUnreadable("spans.frames has no reading of the clocks; profile again")
    named = [span for body in bodies for span in _decoded(body) if span.name == _REQUEST]
    complete = [span for span in named if not _lacking(span)]
    if named and not complete:
        lacking = ", ".join(_lacking(named[0]))
        raise RunUnreadable(f"the engine's spans lack {lacking}; profile a version of vLLM that sends them")
    return [_request_span(span, readings) for span in complete]


def wall_clock_drift_ns(frames: Sequence[SpanFrame]) -> int:
    """How far the wall clock moved against the monotonic one during the record."""
    ahead_ns = [frame.wall_ahead_ns for frame in frames if isinstance(frame, ClockReading)]
    return max(ahead_ns) - min(ahead_ns) if ahead_ns else 0


def by_answer(spans: Sequence[RequestSpan]) -> dict[str, RequestSpan]:
    """Spans by the id of the answer; answers with several sequences are left out.

    vLLM names the sequence of a chat as the answer, and those of a completion ``<answer>-0``, ``<answer>-1``…
    """
    unique = list(dict.fromkeys(spans))  # an exporter repeats a request whose reply it missed
    answers = [_SEQUENCE.sub("", span.request_id) for span in unique]
    count = Counter(answers)
    return {answer: span for answer, span in zip(answers, unique, strict=True) if count[answer] == 1}


def _decoded(body: bytes) -> "list[Span]":
    from google.protobuf.message import DecodeError  # noqa: PLC0415  (only profiled runs of some engines need it)
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: PLC0415

    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise RunUnreadable(f"spans.frames has a damaged body ({error}); restore it from a copy") from error
    return [span for of in request.resource_spans for scope in of.scope_spans for span in scope.spans]


def _lacking(span: "Span") -> list[str]:
    present = {pair.key for pair in span.attributes}
    return [name for name in (_ID, *_DURATIONS) if name not in present]


def _request_span(span: "Span", readings: Sequence[ClockReading]) -> RequestSpan:
    values = {pair.key: pair.value for pair in span.attributes}
    to_first, to_last, queue, prefill, decode = (_ns(name, values[name].double_value) for name in _DURATIONS)
    arrival_ns = _monotonic_ns(span.start_time_unix_nano, readings)
    return RequestSpan(
        values[_ID].string_value, arrival_ns, arrival_ns + to_first, arrival_ns + to_last, queue, prefill, decode
    )


def _ns(name: str, seconds: float) -> int:
    if not math.isfinite(seconds):
        raise RunUnreadable(f"spans.frames has a span with {name} = {seconds}; restore it from a copy")
    return round(seconds * NS_PER_S)


def _monotonic_ns(wall_ns: int, readings: Sequence[ClockReading]) -> int:
    """A time of the wall clock on the monotonic one, by the readings around it."""
    base = readings[0]
    about_ns = wall_ns - base.wall_ahead_ns - base.t_ns  # small numbers: a double holds no nanoseconds since 1970
    times_ns = [reading.t_ns - base.t_ns for reading in readings]
    moved_ns = [reading.wall_ahead_ns - base.wall_ahead_ns for reading in readings]
    return base.t_ns + about_ns - round(float(np.interp(about_ns, times_ns, moved_ns)))
