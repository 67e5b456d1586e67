"""Random streams whose tokens are known by construction: each source of counts is absent, right or wrong.

The truth is drawn first: so many tokens, when each was ready, how many are hidden. The stream is then written from it,
with every source that is drawn, and the figures follow from the truth alone. Wrong sources are wrong as servers of the
field are: multiples, prompts counted as answers, constants, counts of another part.
"""

import json
import random
import re
from typing import Any

import msgspec

from bakeoff.results.records import Phase, StreamEnd, StreamRecord

MS = 1_000_000
TTFT_MS, ITL_MS = 100, 10
IDS, RIGHT_IDS = ("right", "cumulative", "prompt", "thousand"), {"right", "cumulative"}
WORDS = ("one", "two", "six", "ten", "red", "sun", "sea", "map", "ice", "oak")


class Made(msgspec.Struct, frozen=True):
    """A stream and its truth.

    Attributes:
        record: the raw log.
        has_tokenizer: whether the decoder gets the model's tokenizer.
        streamed: tokens that came.
        generated: those, and hidden ones.
        token_ms: when each of them began to arrive.
        last_ms: when the last of them was complete.
        in_first: tokens that came with the first chunk.
        is_sufficient: whether a source of counts, or the tokenizer, is right.
        says: what was drawn, for messages.
    """

    record: StreamRecord
    has_tokenizer: bool
    streamed: int
    generated: int
    token_ms: list[int]
    last_ms: int
    in_first: int
    is_sufficient: bool
    says: str

    @property
    def tpot_s(self) -> float | None:
        later = self.streamed - self.in_first
        return (self.last_ms - self.token_ms[0]) / later / 1000 if later else None


class Words:
    """A tokenizer of one token a word."""

    def starts(self, text: str) -> list[int]:
        return [found.start() for found in re.finditer(r"\s*\S+", text)]


class _Drawn(msgspec.Struct, frozen=True):
    """What a stream has."""

    count: int
    form: str
    ids: str
    usage: str
    has_end_token: bool
    hidden: int
    behind: int
    has_tokenizer: bool
    field: str


def _drawn(rng: random.Random) -> _Drawn:
    form = rng.choice(("one", "one", "grouped", "split"))
    ids = "none" if form == "split" else rng.choice(("none", "none", "none", *IDS))
    usage = rng.choice(("none", "right", "right", "right", "one", "tenfold", "early"))
    if form != "split" and rng.random() < 0.2:
        usage = rng.choice(("totals", "own"))
    has_tokenizer = rng.random() < 0.4
    # Nothing tells an end token where tokens are split over chunks and nobody can count them.
    may_end = usage == "right" and ids == "none" and (form != "split" or has_tokenizer)
    return _Drawn(
        count=rng.choice((9, 16, 40, 120)), form=form, ids=ids, usage=usage,
        has_end_token=may_end and rng.random() < 0.3,
        hidden=rng.choice((0, 0, 0, 100)) if usage == "right" else 0, behind=rng.choice((0, 0, 0, 30)),
        has_tokenizer=has_tokenizer, field=rng.choice(("content", "content", "content", "reasoning_content")),
    )  # fmt: skip


def made(seed: int) -> Made:
    """The random stream of a seed."""
    rng = random.Random(seed)
    drawn = _drawn(rng)
    pieces = _pieces(rng, [f" {rng.choice(WORDS)}" for _ in range(drawn.count)], drawn.form)
    token_ms = [ms for ms, _, tokens in pieces for _ in range(tokens)]
    last_ms = pieces[-1][0]
    events = _events(drawn, pieces)
    if drawn.has_end_token:
        last_ms += ITL_MS
        token_ms.append(last_ms)
    reason = rng.choice(("length", "stop")) if not drawn.has_end_token else "stop"
    events.append((last_ms, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))
    total = len(token_ms)
    if stated := {"right": total, "one": 1, "tenfold": 10 * total}.get(drawn.usage):
        reasoning = drawn.hidden + (drawn.count if drawn.field == "reasoning_content" else 0) if drawn.hidden else 0
        usage = _usage(stated + drawn.hidden, reasoning)
        events.append((last_ms, {"choices": [], "usage": usage}))
    again = {"choices": [{"index": 0, "delta": {"content": " again"}}]}
    written = [(ms, json.dumps(event)) for ms, event in events]
    written += [(last_ms, "[DONE]"), *((last_ms + 5 * i, json.dumps(again)) for i in range(drawn.behind))]
    record = StreamRecord(
        index=0, phase=Phase.MEASURED, session="s", turn=0, planned_ns=0, sent_ns=0, ended_ns=(written[-1][0] + 1) * MS,
        end=StreamEnd.COMPLETE, status=200, requested_output_tokens=drawn.count,
        read_ns=[ms * MS for ms, _ in written], reads=[f"data: {data}\n\n".encode() for _, data in written],
    )  # fmt: skip
    is_sufficient = drawn.has_tokenizer or drawn.ids in RIGHT_IDS or drawn.usage in {"right", "totals", "own"}
    return Made(
        record, drawn.has_tokenizer, total, total + drawn.hidden, token_ms, last_ms, pieces[0][2], is_sufficient,
        repr(drawn),
    )  # fmt: skip


def _events(drawn: _Drawn, pieces: list[tuple[int, str, int]]) -> list[tuple[int, dict[str, Any]]]:
    events: list[tuple[int, dict[str, Any]]] = []
    so_far: list[int] = []
    for ms, text, tokens in pieces:
        choice: dict[str, Any] = {"index": 0, "delta": {drawn.field: text}, "finish_reason": None}
        new = [1000 + len(so_far) + i for i in range(tokens)]
        wrong = {"cumulative": so_far, "thousand": list(range(1000)), "prompt": [] if so_far else list(range(500))}
        if drawn.ids != "none":
            choice["token_ids"] = [*wrong.get(drawn.ids, []), *new]
        so_far = [*so_far, *new]
        counts = {"totals": len(so_far), "own": tokens, "early": len(pieces) // 5 if not events else None}
        stated = counts.get(drawn.usage)
        events.append((ms, {"choices": [choice], **({"usage": _usage(stated, 0)} if stated is not None else {})}))
    return events


def _pieces(rng: random.Random, words: list[str], form: str) -> list[tuple[int, str, int]]:
    """Arrival in milliseconds, text and tokens of each event."""
    pieces: list[tuple[int, str, int]] = []
    place = 0
    while place < len(words):
        size = rng.randint(1, 5) if form == "grouped" else 1
        group = words[place : place + size]
        place += len(group)
        ms = TTFT_MS + ITL_MS * (place - 1)
        if form == "split":
            pieces += [(2 * ms, group[0][:2], 1), (2 * ms + ITL_MS, group[0][2:], 0)]
        else:
            pieces.append((ms, "".join(group), len(group)))
    return pieces


def _usage(tokens: int, reasoning: int) -> dict[str, Any]:
    counts: dict[str, Any] = {"prompt_tokens": 8, "completion_tokens": tokens}
    if reasoning:
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return counts
