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
    DETOKENISE = "detokenise"
    NETWORK_OUT = "network_out"
    UNATTRIBUTED = "unattributed"


class PartInfo(msgspec.Struct, frozen=True):
    """What a part covers.

    Attributes:
        part: which.
        title: heading.
        meaning: the definition in words.
        remedy: what usually shortens it.
    """

    part: Part
    title: str
    meaning: str
    remedy: str


PARTS: dict[Part, PartInfo] = {
    info.part: info
    for info in (
        PartInfo(
            Part.CLIENT, "client", "from the plan until the client sent the request",
            "more client workers, or a higher max_in_flight",
        ),
        PartInfo(
            Part.NETWORK_IN, "network in", "from there until the server's handler began",
            "a shorter path to the server; a front end with free CPU",
        ),
        PartInfo(
            Part.FRONT_END, "front end", "from there until the request was parsed, tokenised and sent to the engine",
            "a faster tokenizer, more front-end processes",
        ),
        PartInfo(
            Part.QUEUE, "queue", "from there until the first step that computes it began",
            "more sequences at a time, more replicas, or a lower rate",
        ),
        PartInfo(
            Part.PREFILL, "own prefill", "steps that computed a chunk of its prompt", "fewer or cached prompt tokens",
        ),
        PartInfo(
            Part.STALL, "stalled", "steps of others while it had begun: preempted, or its prompt waited for the token "
            "budget of a step", "more KV blocks, a larger token budget",
        ),
        PartInfo(
            Part.DECODE, "decode", "steps that computed its next token, at the duration that the same decodes take "
            "without prompts beside them", "fewer bytes of weights and KV cache, or speculation",
        ),
        PartInfo(
            Part.INTERFERENCE, "interference", "what prompts of other requests added to those steps",
            "smaller prefill chunks, or prefill on other GPUs",
        ),
        PartInfo(
            Part.BUBBLES, "gaps between steps", "gaps between steps while it was being computed",
            "less work between steps: planning, sampling, reports",
        ),
        PartInfo(
            Part.DETOKENISE, "detokenise", "from the token in the engine until its text was handed to the socket",
            "a faster detokenizer, more front-end processes",
        ),
        PartInfo(
            Part.NETWORK_OUT, "network out", "from there until the client read it",
            "a shorter path to the server; a client with free CPU",
        ),
        PartInfo(
            Part.UNATTRIBUTED, "unattributed", "the rest: stamps that are missing, or contradict their order", "",
        ),
    )
}  # fmt: skip
"""By part, in order of a request's life."""
