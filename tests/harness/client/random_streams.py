"""Random event streams with what a client must make of them, after the standard of server-sent events alone.

A stream is written line by line; each line's end, comments, other fields, the split of ``data`` over several lines and
the position of usage are drawn. The record that must come of it follows from what was written and where each event
ends, not from parsing.
"""

import itertools
import json
import random
from typing import Any

import msgspec

ENDS = ("\n", "\r", "\r\n")
WORDS = ("a", " b", "東京", " 🚆", "\n", '"', "\\", " data: x")
MARK = "\ufeff"


class Stream(msgspec.Struct, frozen=True):
    """Reads of a stream, and the record that they must decode to.

    Attributes:
        reads: arrival in nanoseconds and bytes of each read.
        chunks: arrival and kind of each chunk with text.
        text: of all chunks.
        prompt_tokens: as the usage states them; None without usage.
        output_tokens: likewise.
        cached_tokens: likewise.
        finish: reason; None if none was sent.
        is_ok: whether the answer is whole.
    """

    reads: list[tuple[int, bytes]]
    chunks: list[tuple[int, str]]
    text: str
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    finish: str | None
    is_ok: bool


def stream(seed: int) -> Stream:
    """The random stream of a seed."""
    rng = random.Random(seed)
    payloads, said, usage, finish = _answer(rng)
    is_marked = rng.random() < 0.7
    written = MARK if rng.random() < 0.2 else ""
    ends: list[int] = []
    for payload in [*payloads, *(["[DONE]"] if is_marked else [])]:
        lines, blank = _event(rng, payload)
        ends.append(len((written + lines + blank[0]).encode()))  # a CR already ends the blank line
        written += lines + blank
    data = written.encode()
    cuts = sorted(rng.choices(range(1, len(data)), k=rng.choice((0, 1, 5, 60, len(data))))) if len(data) > 1 else []
    edges = [0, *dict.fromkeys(cuts), len(data)]
    reads = [(1000 + 7 * number, data[a:b]) for number, (a, b) in enumerate(itertools.pairwise(edges))]
    arrivals = [next(t_ns for (t_ns, _), b in zip(reads, edges[1:], strict=True) if b >= end) for end in ends]
    return Stream(
        reads=reads,
        chunks=[(arrivals[place], kind) for place, kind, _ in said],
        text="".join(words for _, _, words in said),
        prompt_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
        cached_tokens=usage.get("cached"),
        finish=finish,
        is_ok=bool(said) and (finish is not None or (is_marked and "completion_tokens" in usage)),
    )


def _answer(rng: random.Random) -> tuple[list[str], list[tuple[int, str, str]], dict[str, int], str | None]:
    """Payloads; place, kind and text of each chunk; the usage; the finish reason."""
    said: list[tuple[int, str, str]] = []
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}]
    for number in range(rng.randint(0, 12)):
        words = "".join(rng.choices(WORDS, k=rng.randint(1, 3)))
        is_reasoning = number < 3 and rng.random() < 0.3
        field = rng.choice(("reasoning", "reasoning_content")) if is_reasoning else "content"
        said.append((len(chunks), "r" if is_reasoning else "t", words))
        chunks.append({"choices": [{"index": 0, "delta": {field: words}, "finish_reason": None}]})
    finish = rng.choice(("max_tokens", "length", None))  # no end token, which usage would count
    usage: dict[str, int] = {}
    stated: dict[str, Any] = {}
    if rng.random() < 0.8:
        tokens = sum(max(1, len(words.split())) for _, _, words in said)
        usage = {"prompt_tokens": rng.randint(1, 99), "completion_tokens": tokens or 1}
        stated = dict(usage)
        if rng.random() < 0.5:
            usage["cached"] = rng.randint(0, usage["prompt_tokens"])
            stated["prompt_tokens_details"] = {"cached_tokens": usage["cached"]}
    place = rng.choice(("last chunk", "finish", "own"))
    if finish is not None:
        last = chunks[-1] if rng.random() < 0.5 else {"choices": [{"index": 0, "delta": {}}]}
        last["choices"][0]["finish_reason"] = finish
        if last is not chunks[-1]:
            chunks.append(last)
    if stated and place == "own":
        chunks.append({"choices": [], "usage": stated})
    elif stated:
        chunks[-1]["usage"] = stated
    return [json.dumps(chunk, ensure_ascii=rng.random() < 0.5) for chunk in chunks], said, usage, finish


def _event(rng: random.Random, payload: str) -> tuple[str, str]:
    """The lines of one event, and the blank line that ends it; JSON may be broken between two of its tokens."""
    lines = [f": {rng.choice(('beat', 'data: no', ''))}"] if rng.random() < 0.2 else []
    if rng.random() < 0.1:
        lines.append(rng.choice(("id: 7", "retry: 10", "event: message", "other: x", "data1: x")))
    before, comma, after = payload.partition(", ")
    is_broken = comma and before.count('"') % 2 == 0 and rng.random() < 0.2  # else it is within a string
    parts = [f"{before},", after] if is_broken else [payload]
    lines += [f"data:{' ' if rng.random() < 0.8 else ''}{part}" for part in parts]
    if rng.random() < 0.1:
        lines.append(": behind the data")
    ends = [rng.choice(ENDS) for _ in lines]
    # A line that ends in CR must not be followed by LF, or both would be one line end.
    blank = rng.choice(("\r", "\r\n")) if ends[-1] == "\r" else rng.choice(ENDS)
    if rng.random() < 0.1:
        blank += rng.choice(("\n", "\r\n")) if not blank.endswith("\r") else "\r\n"
    return "".join(line + end for line, end in zip(lines, ends, strict=True)), blank
