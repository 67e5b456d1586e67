"""Parts of a request's latency, in order of its life."""

from enum import StrEnum

import msgspec


class Latency(StrEnum):
    """Which latency is split."""

    TTFT = "ttft"
    E2E = "e2e"


class Part(StrEnum):
    """A part of a latency."""

    CLIENT = "client"
    NETWORK_IN = "network_in"
    FRONT_END = "front_end"
    QUEUE = "queue"
    PREFILL = "prefill"
    STALL = "stall"
    DECODE = "decode"
    INTERFERENCE = "interference"
    BUBBLES = "bubbles"
    COLLECT = "collect"
    DETOKENISE = "detokenise"
    NETWORK_OUT = "network_out"
    ARRIVAL = "arrival"
    HANDOVER = "handover"
    PREFILL_PHASE = "prefill_phase"
    DECODE_PHASE = "decode_phase"
    DELIVERY = "delivery"
    OUTSIDE = "outside"
    UNATTRIBUTED = "unattributed"


class PartInfo(msgspec.Struct, frozen=True):
    """What a part covers: its heading, and its definition in words."""

    title: str
    meaning: str


PARTS: dict[Part, PartInfo] = {
    Part.CLIENT: PartInfo("client", "from the plan until the client sent the request"),
    Part.NETWORK_IN: PartInfo("network in", "from there until the server's handler began"),
    Part.FRONT_END: PartInfo("front end", "from there until the request was parsed, tokenised and sent to the engine"),
    Part.QUEUE: PartInfo("queue", "from there until the first step that computes it began"),
    Part.PREFILL: PartInfo("own prefill", "steps that computed a chunk of its prompt"),
    Part.STALL: PartInfo(
        "stalled",
        "steps of others while it had begun: preempted, or its prompt waited for the token budget of a step",
    ),
    Part.DECODE: PartInfo(
        "decode",
        "steps that computed its next token, at the duration that the same decodes take without prompts beside them",
    ),
    Part.INTERFERENCE: PartInfo("interference", "what prompts of other requests added to those steps"),
    Part.BUBBLES: PartInfo("gaps between steps", "gaps between steps while it was being computed"),
    Part.COLLECT: PartInfo(
        "late collection",
        "from the end of its step on the device until the engine had the token: it was launching the next step",
    ),
    Part.DETOKENISE: PartInfo("detokenise", "from the token in the engine until its text was handed to the socket"),
    Part.NETWORK_OUT: PartInfo("network out", "from there until the client read it"),
    Part.ARRIVAL: PartInfo(
        "network and HTTP in", "of spans: from the client’s send until the server’s front end took the parsed request"
    ),
    Part.HANDOVER: PartInfo(
        "front end ⇄ engine",
        "of spans: tokenising, the way to the engine process, which takes requests between two steps, and back",
    ),
    Part.PREFILL_PHASE: PartInfo(
        "prefill phase",
        "of spans: from the first step that computes it to its first token; interference, stalls and gaps included",
    ),
    Part.DECODE_PHASE: PartInfo(
        "decode phase", "of spans: from there to its last token; interference, stalls and gaps included"
    ),
    Part.DELIVERY: PartInfo(
        "detokenise and network out",
        "of spans: from the token’s arrival at the front end until the client read it",
    ),
    Part.OUTSIDE: PartInfo(
        "network, front end, queue", "in a comparison of steps with spans: all that is neither client nor a phase"
    ),
    Part.UNATTRIBUTED: PartInfo("unattributed", "the rest: stamps that are missing, or contradict their order"),
}
"""By part, in order of a request's life."""
STEP_PARTS = (
    Part.CLIENT, Part.NETWORK_IN, Part.FRONT_END, Part.QUEUE, Part.PREFILL, Part.STALL, Part.DECODE, Part.INTERFERENCE,
    Part.BUBBLES, Part.COLLECT, Part.DETOKENISE, Part.NETWORK_OUT, Part.UNATTRIBUTED,
)  # fmt: skip
"""Parts of a request whose engine records its steps."""
SPAN_PARTS = (
    Part.CLIENT, Part.ARRIVAL, Part.HANDOVER, Part.QUEUE, Part.PREFILL_PHASE, Part.DECODE_PHASE, Part.DELIVERY,
    Part.UNATTRIBUTED,
)  # fmt: skip
"""Parts of a request whose engine exports one span."""
DERIVED_PARTS = frozenset({Part.HANDOVER, Part.QUEUE, Part.PREFILL_PHASE, Part.DECODE_PHASE})
"""Those of them that follow from durations, without stamps at both ends."""
