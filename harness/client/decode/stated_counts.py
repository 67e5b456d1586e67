"""Tokens as the server states them: totals of usage, hidden ones, and its counts for each chunk."""

import itertools
from collections.abc import Sequence

import msgspec

from bakeoff.engines.dialects import TokenDelta, TokenKind, Usage
from bakeoff.harness.client.decode.token_counts import (
    counts_of_text,
    estimated,
    is_foreign,
)
from bakeoff.harness.client.wire.stream_content import Stated
from bakeoff.workloads import Tokenizer

Delta = tuple[int, TokenDelta]
"""Arrival in nanoseconds and content of a chunk with tokens."""
FEWEST_COUNTS = 4
"""Of an answer, that tell totals from each chunk's own."""
TOKENIZER_SHARE = 0.05
"""A total may differ by this from what the tokenizer makes of the text, which a model may have written otherwise."""
_MOST_ESTIMATED, SLACK_TOKENS, _LEAST_BYTES = 1.5, 4, 1.5
"""A text may have so many times its estimated tokens, and so many more; bytes of a token."""


def streamed_tokens(usage: Usage, hidden: int | None) -> int | None:
    """Output tokens that were streamed, by the engine's usage; None if it does not count any.

    Reasoning tokens that no chunk shows are in no interval between chunks, so they would look like a faster pace. Most
    servers count them as output, but some beside it: these are told apart by the total, or since the output then has
    fewer tokens than the reasoning.

    Args:
        usage: the engine's counts.
        hidden: those that were not streamed.
    """
    output, reasoning = usage.output_tokens, usage.reasoning_tokens or 0
    total = None if usage.total_tokens is None else usage.total_tokens - (usage.prompt_tokens or 0)
    if output is None and usage.prompt_tokens is not None and total is not None and total > 0:
        output = total
    if output is None or not reasoning:
        return output
    is_beside = total == output + reasoning or output < reasoning
    return (output + reasoning if is_beside else output) - (hidden or 0)


def hidden_tokens(usage: Usage, deltas: Sequence[Delta], tokenizer: Tokenizer | None) -> int | None:
    """Reasoning tokens that the engine counted and no chunk shows; None if there are none.

    A summary of the reasoning, or a part of it, shows fewer tokens than were counted: clearly fewer by the tokenizer or
    by an estimate; of a text that is not estimated, less than one and a half bytes for each counted token.

    Args:
        usage: the engine's counts.
        deltas: chunks with tokens.
        tokenizer: the model's.
    """
    reasoning = usage.reasoning_tokens
    if not reasoning:
        return None
    shown = [(t_ns, delta) for t_ns, delta in deltas if delta.kind is TokenKind.REASONING]
    if not shown:
        return reasoning
    if tokenizer is not None:
        count = sum(counts_of_text([delta for _, delta in shown], tokenizer))
        most = (1 + TOKENIZER_SHARE) * count + 1
    else:
        count, text = sum(estimated(shown)[0]), "".join(delta.text for _, delta in shown)
        most = len(text.encode()) / _LEAST_BYTES if is_foreign(text) else _MOST_ESTIMATED * count + SLACK_TOKENS
    return reasoning - count if reasoning > most else None


def with_silent(deltas: list[Delta], stated: Sequence[Stated]) -> tuple[list[Delta], Sequence[Stated]]:
    """Chunks with those of tokens that came in silence: empty events of the answer behind which the usage rose.

    Args:
        deltas: chunks with tokens.
        stated: the usage at each event that has one, which must stand behind every chunk.

    Returns:
        all chunks, and the usage with their new number.
    """
    places = [
        later
        for before, later in itertools.pairwise(stated)
        if later.in_choice and 0 < before.deltas == later.deltas and later.tokens > before.tokens
    ]
    known = {each.deltas for each in stated}
    if not places or any(number not in known for number in range(1, len(deltas) + 1)):
        return deltas, stated
    arrivals: list[Delta] = list(deltas)
    renumbered: list[Stated] = []
    for each in stated:
        if each in places:
            arrivals.insert(each.deltas + len(arrivals) - len(deltas), (each.t_ns, _SILENT))
        renumbered.append(msgspec.structs.replace(each, deltas=each.deltas + len(arrivals) - len(deltas)))
    return arrivals, renumbered


_SILENT = TokenDelta("")


def counted(deltas: list[Delta], stated: Sequence[Stated], own: Sequence[int] | None) -> list[Delta]:
    """The deltas, each with its token count if usage stood behind every one of them.

    Args:
        deltas: chunks with tokens.
        stated: the usage at each event that has one.
        own: see `own_counts`.
    """
    counts = own or _risen(len(deltas), stated)
    if counts is None:
        return deltas
    return [
        (t_ns, msgspec.structs.replace(delta, tokens=count))
        for (t_ns, delta), count in zip(deltas, counts, strict=True)
    ]


def own_counts(
    num_deltas: int, stated: Sequence[Stated], requested: int | None, *, may_be_total: bool = True
) -> list[int] | None:
    """The tokens of each delta, where the usage behind each states only its own; None where it states totals.

    Totals rise, anew in each of several choices, or are the whole answer's from the beginning. So constant counts must
    be 1, give the requested length or be too few for the text, unless a last total behind all deltas is their sum,
    which it must be.

    Args:
        num_deltas: number of chunks with tokens.
        stated: as in `counted`.
        requested: length that was requested; None if unknown.
        may_be_total: whether the text can have as few tokens as the last count says.
    """
    if num_deltas < FEWEST_COUNTS or len(stated) < num_deltas:
        return None
    first, last = {each.deltas: each.tokens for each in reversed(stated)}, stated[-1].tokens
    counts = [first.get(number, 0) for number in range(1, num_deltas + 1)]
    steps = list(itertools.pairwise(counts))
    rises = counts[-1] > counts[0] and all(before <= after for before, after in steps)
    rises = rises or (max(counts) > FEWEST_COUNTS // 2 and all(after in {before + 1, 1} for before, after in steps))
    is_constant = min(counts) == max(counts) > 1
    has_total = len(stated) > num_deltas and (may_be_total or last != counts[-1])
    is_contradicted = has_total and last != sum(counts)
    is_doubtful = is_constant and not has_total and sum(counts) != requested and may_be_total
    if min(counts) < 1 or rises or is_contradicted or is_doubtful:
        return None
    return counts


def _risen(num_deltas: int, stated: Sequence[Stated]) -> list[int] | None:
    """By how much a total that stood behind every delta rose with each; None if one is missing, or it did not rise."""
    totals = {each.deltas: each.tokens for each in stated}
    so_far = [totals.get(number) for number in range(1, num_deltas + 1)]
    known = [total for total in so_far if total is not None]
    added = [after - before for before, after in itertools.pairwise([0, *known])]
    return None if num_deltas < 2 or len(known) < num_deltas or min(added) < 1 else added
