"""The split of one request's latency into parts.

A request is planned at p, sent at s, received by the server at r, submitted to the engine at u; steps compute it from f
to c; its token is written at w and read at a. These stamps follow each other, so that their differences sum to a − p.
Between f and c the time of the engine is divided among its steps and the gaps between them.
"""

import msgspec

from results.attribution.catalogue import Latency, Part
from results.attribution.steps import RequestSteps, Steps
from results.records import RequestRecord
from results.step_log import HttpRecord
from results.units import NS_PER_S


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
    parts_ns: dict[Part, float] = dict.fromkeys(Part, 0.0)
    parts_ns[Part.CLIENT] = sent_ns - planned_ns
    if trace is not None and trace.http.writes and trace.own.output_steps:
        http, write = trace.http, trace.http.writes[last]
        first, final = trace.own.first_step, trace.own.output_steps[last]
        begin_ns = int(trace.steps.start_ns[first])
        collected_ns = int(trace.steps.end_ns[final])
        parts_ns[Part.NETWORK_IN] = http.received_ns - sent_ns
        submitted_ns = trace.own.queued.submitted_ns or http.parsed_ns
        parts_ns[Part.FRONT_END] = submitted_ns - http.received_ns
        parts_ns[Part.QUEUE] = begin_ns - submitted_ns
        parts_ns |= trace.steps.computing(trace.own, final)
        parts_ns[Part.DETOKENISE] = write.written_ns - collected_ns
        parts_ns[Part.NETWORK_OUT] = end_ns - write.written_ns
    parts_ns = {part: max(0.0, value) for part, value in parts_ns.items()}
    parts_ns[Part.UNATTRIBUTED] = end_ns - planned_ns - sum(parts_ns.values())
    return {part: value / NS_PER_S for part, value in parts_ns.items()}
