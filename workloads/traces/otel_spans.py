"""Spans of OpenTelemetry, in the forms in which they are stored."""

import itertools
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.workloads.traces.checks import epoch_s, quoted, stamp_ns
from bakeoff.workloads.traces.reading import bad, decoded, documents

_EPOCH_NS = date(1970, 1, 1).toordinal() * 86400 * 10**9
_MAX_NS = 2**63
_FAILED = (2, "2", "ERROR", "STATUS_CODE_ERROR", "StatusCode.ERROR")
_DETAILS = "gen_ai.client.inference.operation.details"
"""The event that holds a call's messages where they are not attributes of its span."""
_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)
Time = str | int | float


class Span(msgspec.Struct, frozen=True):
    """A span of any form.

    Attributes:
        trace: id of its trace; empty if not stored.
        id: unique in its trace.
        parent: id of the span around it, or empty.
        name: what its maker called it.
        start_ns: nanoseconds since 1970.
        end_ns: the same; equal to the start if it is not stored.
        attributes: those of the span and of its event of details; without those that are null.
        has_failed: whether its status is an error.
        service: name of the process that recorded it, or empty.
        place: in the file, for error messages.
    """

    trace: str
    id: str
    parent: str
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    has_failed: bool
    service: str
    place: str


class Document(msgspec.Struct, frozen=True):
    """One JSON object of a file.

    Attributes:
        row: its row, if the file has one object a line.
        session: name of the one session that it holds; None for spans of any sessions.
        spans: in the order of the file.
    """

    row: int | None
    session: str | None
    spans: list[Span]


class _Event(msgspec.Struct, frozen=True):
    name: str = ""
    attributes: dict[str, Any] | None = None


class _Context(msgspec.Struct, frozen=True):
    trace_id: str = ""
    span_id: str = ""


class _Resource(msgspec.Struct, frozen=True):
    attributes: dict[str, Any] | None = None


class _PlainSpan(msgspec.Struct, frozen=True):
    """A span as datasets and the Python SDK store it."""

    start_time: Time
    end_time: Time | None = None
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None
    parent_id: str | None = None
    context: _Context | None = None
    name: str | None = None
    attributes: dict[str, Any] | None = None
    status: Any = None
    events: list[_Event] | None = None
    resource_attributes: dict[str, Any] | None = None
    resource: _Resource | None = None


class _Value(msgspec.Struct, frozen=True, rename="camel"):
    string_value: str | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None
    bool_value: bool | None = None
    array_value: "_Values | None" = None
    kvlist_value: "_Pairs | None" = None


class _Values(msgspec.Struct, frozen=True):
    values: list[_Value] = []


class _Pair(msgspec.Struct, frozen=True):
    key: str
    value: _Value | None = None


class _Pairs(msgspec.Struct, frozen=True):
    values: list[_Pair] = []


class _OtlpEvent(msgspec.Struct, frozen=True):
    name: str = ""
    attributes: list[_Pair] = []


class _OtlpStatus(msgspec.Struct, frozen=True):
    code: int | str = 0


class _OtlpSpan(msgspec.Struct, frozen=True, rename="camel"):
    trace_id: str
    span_id: str
    start_time_unix_nano: int | str
    end_time_unix_nano: int | str | None = None
    parent_span_id: str | None = None
    name: str = ""
    attributes: list[_Pair] = []
    events: list[_OtlpEvent] = []
    status: _OtlpStatus | None = None


class _ScopeSpans(msgspec.Struct, frozen=True):
    spans: list[msgspec.Raw] = []


class _OtlpResource(msgspec.Struct, frozen=True):
    attributes: list[_Pair] = []


class _ResourceSpans(msgspec.Struct, frozen=True, rename="camel"):
    scope_spans: list[_ScopeSpans] = []
    resource: _OtlpResource | None = None


class _Object(msgspec.Struct, frozen=True):
    """The fields that tell the form of an object."""

    spans: list[msgspec.Raw] | None = None
    resource_spans: list[_ResourceSpans] | None = msgspec.field(default=None, name="resourceSpans")
    session_id: Any = None
    trace_id: Any = None
    otlp_trace_id: Any = msgspec.field(default=None, name="traceId")


_RAW = msgspec.json.Decoder(msgspec.Raw)
_OBJECTS = msgspec.json.Decoder(_Object)
_PLAIN_SPANS = msgspec.json.Decoder(_PlainSpan)
_OTLP_SPANS = msgspec.json.Decoder(_OtlpSpan)


def span_documents(file: Path) -> Iterator[Document]:
    """Read a file of one object, or of one a line.

    An object is a session ``{"spans": […]}``, an export ``{"resourceSpans": […]}`` (JSON of OTLP), or a single span.

    Raises:
        BadTrace: an object is none of these, or a span lacks its id, start or trace.
    """
    for row, raw in documents(file, _RAW):
        form = decoded(file, row, raw, _OBJECTS)
        name: str | None = None
        spans: list[Span] = []
        if form.spans is not None:
            name = str(form.session_id or form.trace_id or f"{file.name.partition('.')[0]}{f'-{row}' if row else ''}")
            spans += [_span(file, _place(row, number), span) for number, span in enumerate(form.spans, 1)]
        elif form.resource_spans is not None:
            numbers = itertools.count(1)
            for group in form.resource_spans:
                service = _text(_attributes(group.resource.attributes if group.resource else []).get("service.name"))
                found = (span for scope in group.scope_spans for span in scope.spans)
                spans += [_otlp_span(file, _place(row, next(numbers)), span, service) for span in found]
        else:
            place = _place(row, None)
            spans.append(_otlp_span(file, place, raw, "") if form.otlp_trace_id else _span(file, place, raw))
        without_trace = next((span for span in spans if not span.trace), None)
        if name is None and without_trace:
            raise bad(file, without_trace.place, "has no trace_id; a span that is not in a session needs one")
        yield Document(row, name, spans)


def _place(row: int | None, number: int | None) -> str:
    return ", ".join(part for part in (row and f"row {row}", number and f"span {number}") if part) or "span 1"


def _span(file: Path, place: str, raw: msgspec.Raw) -> Span:
    span = decoded(file, place, raw, _PLAIN_SPANS)
    context = span.context or _Context()
    attributes = dict(span.attributes or {})
    for event in span.events or ():
        if event.name == _DETAILS:
            attributes |= event.attributes or {}
    span_id = span.span_id or context.span_id
    if not span_id:
        raise bad(file, place, "has no span_id")
    status = span.status if isinstance(span.status, dict) else {"code": span.status}
    resource = span.resource_attributes or (span.resource.attributes if span.resource else None) or {}
    try:
        start_ns = _checked_ns(_plain_ns(span.start_time))
        end_ns = start_ns if span.end_time is None else _checked_ns(_plain_ns(span.end_time))
    except ValueError as cause:
        raise bad(file, place, str(cause)) from None
    return Span(
        span.trace_id or context.trace_id,
        span_id,
        span.parent_span_id or span.parent_id or "",
        span.name or "",
        start_ns,
        max(start_ns, end_ns),
        {key: value for key, value in attributes.items() if value is not None},
        status.get("code") in _FAILED or status.get("status_code") in _FAILED,
        _text(resource.get("service.name")),
        place,
    )


def _otlp_span(file: Path, place: str, raw: msgspec.Raw, service: str) -> Span:
    span = decoded(file, place, raw, _OTLP_SPANS)
    attributes = _attributes(span.attributes)
    for event in span.events:
        if event.name == _DETAILS:
            attributes |= _attributes(event.attributes)
    try:
        start_ns = _checked_ns(int(span.start_time_unix_nano))
        end_ns = _checked_ns(int(span.end_time_unix_nano or start_ns))
    except ValueError as cause:
        raise bad(file, place, f"startTimeUnixNano or endTimeUnixNano: {cause}") from None
    return Span(
        span.trace_id,
        span.span_id,
        span.parent_span_id or "",
        span.name,
        start_ns,
        max(start_ns, end_ns),
        attributes,
        span.status is not None and span.status.code in _FAILED,
        service,
        place,
    )


def _plain_ns(time: Time) -> int:
    """Nanoseconds since 1970 of a time stamp, or of a number since then in any unit."""
    if isinstance(time, str):
        return int(time) if time.isdecimal() else stamp_ns(time) - _EPOCH_NS
    return round(epoch_s(time) * 1e9)


def _checked_ns(time_ns: int) -> int:
    if not 0 <= time_ns <= _MAX_NS:
        raise ValueError(f"{quoted(str(time_ns))} ns since 1970 is no time of a recording; check its unit")
    return time_ns


def _attributes(pairs: list[_Pair]) -> dict[str, Any]:
    found = {pair.key: _value(pair.value) for pair in pairs if pair.value is not None}
    return {key: value for key, value in found.items() if value is not None}


def _value(value: _Value) -> Any:  # noqa: ANN401  (any JSON value)
    if value.array_value is not None:
        return [_value(item) for item in value.array_value.values]
    if value.kvlist_value is not None:
        return _attributes(value.kvlist_value.values)
    if isinstance(value.int_value, str):  # 64 bits do not fit JSON's numbers
        return int(value.int_value) if _INTEGER.fullmatch(value.int_value) else value.int_value
    plain = (value.string_value, value.int_value, value.double_value, value.bool_value)
    return next((item for item in plain if item is not None), None)


def _text(value: Any) -> str:  # noqa: ANN401  (any JSON value)
    return value if isinstance(value, str) else ""
