"""Tokens of each chunk of an answer: by the tokenizer, or from a total that is spread over the chunks.

A chunk is not a token: engines group tokens, speculate several at once, and hold back half a character. Where the
tokenizer counts, a token belongs to the chunk in which it begins, so that one that is split over two chunks counts
once. Where only the total is known, tokens follow the length of the text or, of those that have no text, the gaps, by
highest averages (D'Hondt), at least one each. :mod:`bakeoff.harness.client.decode.ledger` decides what is believed.
"""

import bisect
import heapq
import itertools
from collections import Counter
from collections.abc import Sequence

from bakeoff.engines.dialects import TokenDelta
from bakeoff.results.records import TokenSource
from bakeoff.workloads import APPROXIMATE, Tokenizer, tokenizer_at

_NEARLY = 1.3
"""Ratio of estimated tokens to chunks, in either direction, up to which each chunk has one."""
_MIN_SPLIT = 8
"""Chunks of an answer, from which on they may be parts of tokens."""
_MOST_FOREIGN = 0.2
"""Share of characters beyond ASCII up to which the estimate holds."""


def estimated(deltas: Sequence[tuple[int, TokenDelta]]) -> tuple[list[int], TokenSource]:
    """The tokens of chunks that nobody counts: one each, unless their text has clearly more or fewer."""
    pieces = [delta for _, delta in deltas]
    text = "".join(delta.text for delta in pieces)
    found = [] if is_foreign(text) else counts_of_text(pieces, tokenizer_at(APPROXIMATE))
    least = len(pieces) / _NEARLY if len(pieces) >= _MIN_SPLIT else 0
    if not found or least <= sum(found) <= _NEARLY * len(pieces):
        return [1] * len(pieces), TokenSource.ASSUMED
    return [max(1, found[0]), *found[1:]], TokenSource.ESTIMATED


def is_foreign(text: str) -> bool:
    """Whether text is of a language whose tokens are not estimated."""
    return not text.isascii() and sum(char > "\x7f" for char in text) > _MOST_FOREIGN * len(text)


def counts_of_whole(
    deltas: Sequence[TokenDelta], usage_tokens: int | None, tokenizer: Tokenizer | None
) -> tuple[list[int], TokenSource | None]:
    """Count the tokens of each part of an answer that came as a whole; the tokenizer is the model's.

    Only their sum has a time, so how it is spread over reasoning and text touches no latency.
    """
    if not deltas:
        return [], None
    if usage_tokens is None and not any(delta.text for delta in deltas):
        return [0] * len(deltas), TokenSource.COUNTS  # embeddings and ranks
    if usage_tokens is not None and usage_tokens >= len(deltas):
        return highest_averages([max(1, len(delta.text)) for delta in deltas], usage_tokens), TokenSource.COUNTS
    if usage_tokens is not None:
        return [usage_tokens, *[0] * (len(deltas) - 1)], TokenSource.COUNTS
    if tokenizer is None:
        tokenizer = tokenizer_at(APPROXIMATE)
        return [max(1, tokenizer.count(delta.text)) for delta in deltas], TokenSource.ESTIMATED
    return [max(1, tokenizer.count(delta.text)) for delta in deltas], TokenSource.TOKENIZER


def counts_of_text(deltas: Sequence[TokenDelta], tokenizer: Tokenizer) -> list[int]:
    """Tokens that begin in each chunk; text of each kind is encoded by itself, as the model's markers separate it."""
    counts: list[int] = []
    for _, stretch in itertools.groupby(deltas, key=lambda delta: delta.kind):
        texts = [delta.text for delta in stretch]
        ends = list(itertools.accumulate(map(len, texts)))
        places = Counter(bisect.bisect_right(ends, start) for start in tokenizer.starts("".join(texts)))
        counts += [places[place] if text else 1 for place, text in enumerate(texts)]  # a special token has no text
    return counts


def spread(tokens: int, chunks: int) -> list[int]:
    """Fewer tokens than chunks: 1 or 0 each, evenly, beginning with 1."""
    totals = [-(-number * max(1, tokens) // chunks) for number in range(chunks + 1)]
    return [after - before for before, after in itertools.pairwise(totals)]


def apportion(arrivals_ns: Sequence[int], tokens: int) -> list[int]:
    """Spread ``tokens`` over chunks by the gaps before them.

    The first chunk has no gap and keeps one token, unless it is the only chunk.
    """
    if len(arrivals_ns) == 1:
        return [tokens]
    gaps_ns = [after - before for before, after in itertools.pairwise(arrivals_ns)]
    if not any(gaps_ns):
        return [1, 1 + tokens - len(arrivals_ns), *[1] * (len(gaps_ns) - 1)]
    return [1, *highest_averages(gaps_ns, tokens - 1)]


def highest_averages(weights: Sequence[int], tokens: int) -> list[int]:
    """Spread ``tokens`` over chunks: one each, then one at a time to the chunk with the largest weight per token.

    The cost depends on the number of chunks, not of tokens.

    Args:
        weights: of the chunks; at least one is not 0.
        tokens: at least as many as chunks.
    """
    spare, total = tokens - len(weights), sum(weights)
    # Each chunk gets its share of the spare tokens, rounded down, at least ("lower quota": Balinski and Young, Fair
    # Representation, 1982, on D'Hondt's method), and one in any case. So few are left, at most two a chunk.
    counts = [max(1, spare * weight // total) for weight in weights]
    # Highest averages: the next token goes where weight / (count + 1) is largest; ties to the earlier chunk.
    queue = [(-weight / (count + 1), i) for i, (weight, count) in enumerate(zip(weights, counts, strict=True))]
    heapq.heapify(queue)
    for _ in range(tokens - sum(counts)):
        _, i = heapq.heappop(queue)
        counts[i] += 1
        heapq.heappush(queue, (-weights[i] / (counts[i] + 1), i))
    return counts
