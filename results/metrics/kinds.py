"""Kinds of tokens: reasoning, and what a user sees, which is text and tool calls."""

from collections.abc import Iterable, Iterator

from bakeoff.results.metrics.declaration import TrialData
from bakeoff.results.records import RequestRecord


def chunks_of(request: RequestRecord) -> Iterator[tuple[int, int, bool]]:
    """Arrival in nanoseconds and tokens of each chunk, and whether they are reasoning."""
    kinds = request.chunk_kinds or "t" * len(request.chunk_ns)
    for t_ns, tokens, kind in zip(request.chunk_ns, request.chunk_tokens, kinds, strict=True):
        yield t_ns, tokens, kind == "r"


def merged(chunks: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Timestamp and tokens of each read, which chunks with one timestamp share."""
    tokens_at: dict[int, int] = {}
    for t_ns, tokens in chunks:
        tokens_at[t_ns] = tokens_at.get(t_ns, 0) + tokens
    return list(tokens_at.items())


def first_visible_ns(request: RequestRecord) -> int | None:
    """Arrival of the first chunk of text or of a tool call; None if none came."""
    seen = (
        t_ns
        for i, (t_ns, _, is_reasoning) in enumerate(chunks_of(request))
        if not is_reasoning and i not in request.textless_chunks
    )
    return next(seen, None)


def why_no_reasoning(data: TrialData) -> str | None:
    """Why a trial has no metrics of reasoning; None if an answer reasons."""
    return None if data.once(_reasons) else "no answer reasons"


def _reasons(data: TrialData) -> bool:
    return any("r" in request.chunk_kinds or request.reasoning_tokens for request in data.load)
