"""The split of one request's latency into parts.

A request is planned at p, sent at s, received by the server at r, submitted to the engine at u; steps compute it from f
to d; the engine has its token at c and writes it at w; the client reads it at a. These stamps follow each other, so
that their differences sum to a − p. Between f and d the time of the engine is divided among its steps and the gaps
between them.

A span has stamps of its front end only: the request's arrival and the receipt of the first and the last token. In
between lie the durations of queue, prefill and decode; the rest is spent between front end and engine.
"""

from collections.abc import Mapping

import msgspec

from bakeoff.results.attribution.catalogue import SPAN_PARTS, STEP_PARTS, Latency, Part
from bakeoff.results.attribution.steps import RequestSteps, Steps
from bakeoff.results.log.spans import RequestSpan
from bakeoff.results.log.step_log import HttpRecord
from bakeoff.results.records import RequestRecord
from bakeoff.results.units import NS_PER_S


class ServerTrace(msgspec.Struct, frozen=True):
    """What the server recorded of a request.

    Attributes:
        http: of its HTTP process.
        steps: of the engine that computed it.
        own: the steps that computed it.
    """

    http: HttpRecord
    steps: Steps
    own: RequestSteps

    @property
    def is_complete(self) -> bool:
        """Whether it has the stamps of both ends of the output."""
        return bool(self.http.writes and self.own.output_steps)


def split(request: RequestRecord, trace: ServerTrace | None, latency: Latency) -> dict[Part, float]:
    """Split one latency of a successful request into parts, in seconds; they sum to it exactly.

    Args:
        request: has at least one chunk.
        trace: the server's; None if it is missing, which leaves all after the send unattributed.
        latency: to the first or to the last token.
    """
    last = -1 if latency is Latency.E2E else 0
    end_ns, planned_ns = request.chunk_ns[last], request.planned_ns
    sent_ns = planned_ns if request.sent_ns is None else request.sent_ns
    parts_ns: dict[Part, float] = dict.fromkeys(STEP_PARTS, 0.0)
    parts_ns[Part.CLIENT] = sent_ns - planned_ns
    if trace is not None and trace.is_complete:
        http, write = trace.http, trace.http.writes[last]
        first, final = trace.own.first_step, trace.own.output_steps[last]
        begin_ns = int(trace.steps.start_ns[first])
        computed_ns, collected_ns = int(trace.steps.end_ns[final]), trace.steps.records[final].collected_ns
        parts_ns[Part.NETWORK_IN] = http.received_ns - sent_ns
        submitted_ns = trace.own.queued.submitted_ns or http.parsed_ns
        parts_ns[Part.FRONT_END] = submitted_ns - http.received_ns
        parts_ns[Part.QUEUE] = begin_ns - submitted_ns
        parts_ns |= trace.steps.computing(trace.own, final)
        parts_ns[Part.COLLECT] = collected_ns - computed_ns
        parts_ns[Part.DETOKENISE] = write.written_ns - collected_ns
        parts_ns[Part.NETWORK_OUT] = end_ns - write.written_ns
    return _closed(parts_ns, end_ns - planned_ns)


def merge_interference(parts: Mapping[Part, float]) -> dict[Part, float]:
    """The same parts with interference as part of decode."""
    merged = {part: value for part, value in parts.items() if part is not Part.INTERFERENCE}
    return merged | {Part.DECODE: merged[Part.DECODE] + parts.get(Part.INTERFERENCE, 0.0)}


def split_span(request: RequestRecord, span: RequestSpan | None, latency: Latency) -> dict[Part, float]:
    """The same by the engine's span of the request.

    Args:
        request: has at least one chunk.
        span: the engine's; None if it is missing, which leaves all after the send unattributed.
        latency: to the first or to the last token.
    """
    is_whole = latency is Latency.E2E
    end_ns, planned_ns = request.chunk_ns[-1 if is_whole else 0], request.planned_ns
    sent_ns = planned_ns if request.sent_ns is None else request.sent_ns
    parts_ns: dict[Part, float] = dict.fromkeys(SPAN_PARTS, 0.0)
    parts_ns[Part.CLIENT] = sent_ns - planned_ns
    if span is not None:
        reported_ns, decode_ns = (span.last_ns, span.decode_ns) if is_whole else (span.first_ns, 0)
        parts_ns[Part.ARRIVAL] = span.arrival_ns - sent_ns
        parts_ns[Part.QUEUE], parts_ns[Part.PREFILL_PHASE] = span.queue_ns, span.prefill_ns
        parts_ns[Part.DECODE_PHASE] = decode_ns
        parts_ns[Part.HANDOVER] = reported_ns - span.arrival_ns - span.queue_ns - span.prefill_ns - decode_ns
        parts_ns[Part.DELIVERY] = end_ns - reported_ns
    return _closed(parts_ns, end_ns - planned_ns)


def _closed(parts_ns: Mapping[Part, float], whole_ns: int) -> dict[Part, float]:
    """Parts in seconds, none below 0, with what they leave of the whole as unattributed."""
    kept_ns = {part: max(0.0, value) for part, value in parts_ns.items()}
    kept_ns[Part.UNATTRIBUTED] = whole_ns - sum(kept_ns.values())
    return {part: value / NS_PER_S for part, value in kept_ns.items()}
