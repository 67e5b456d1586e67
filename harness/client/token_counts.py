"""Number of tokens in each chunk, by the most exact method that the engine allows.

A chunk is not a token: engines group tokens, speculate several at once, and hold back half a character. In order:

1. the token ids in the chunks, or the engine's count for each chunk;
2. one token each, if the engine's usage states as many tokens as there are chunks;
3. the model's tokenizer on the text of each chunk, if the sum equals the usage (or there is no usage);
4. the usage, spread over the chunks: one each, the rest in proportion to the gaps (highest averages, D'Hondt), since
   a token without text, such as a special token, lengthens the gap before the next visible chunk;
5. otherwise one token each, and a warning.
"""

import heapq
from collections.abc import Sequence

from engines.dialects import TokenDelta
from results.records import TokenSource
from workloads import Tokenizer


def token_counts(
    deltas: Sequence[tuple[int, TokenDelta]], usage_tokens: int | None, tokenizer: Tokenizer | None
) -> tuple[list[int], TokenSource | None]:
    """Count the tokens of each chunk.

    Args:
        deltas: arrival in nanoseconds and content of each chunk with tokens.
        usage_tokens: the engine's own count of output tokens.
        tokenizer: the model's.

    Returns:
        one count per chunk, each at least 1, and their source (None if there is no chunk).
    """
    if not deltas:
        return [], None
    if reported := _reported(deltas):
        return reported
    if usage_tokens == len(deltas):
        return [1] * len(deltas), TokenSource.CHUNKS
    if tokenizer is not None:
        counts = [max(1, tokenizer.count(delta.text)) for _, delta in deltas]
        if usage_tokens is None or sum(counts) == usage_tokens:
            return counts, TokenSource.TOKENIZER
    if usage_tokens is None:
        return [1] * len(deltas), TokenSource.ASSUMED
    return apportion([t_ns for t_ns, _ in deltas], max(usage_tokens, len(deltas))), TokenSource.APPORTIONED


def _reported(deltas: Sequence[tuple[int, TokenDelta]]) -> tuple[list[int], TokenSource] | None:
    """The engine's own count for each chunk; None if one is missing."""
    counts = [len(delta.token_ids) if delta.token_ids else delta.tokens or 0 for _, delta in deltas]
    if not all(counts):
        return None
    return counts, TokenSource.IDS if all(delta.token_ids for _, delta in deltas) else TokenSource.COUNTS


def apportion(arrivals_ns: Sequence[int], tokens: int) -> list[int]:
    """Spread ``tokens`` over chunks: one each, then one at a time to the chunk with the longest gap per token.

    The first chunk has no gap and keeps its one token, unless it is the only chunk.
    """
    counts = [1] * len(arrivals_ns)
    spare = tokens - len(counts)
    if len(counts) == 1:
        return [tokens]
    # Highest averages: the next token goes where gap / (count + 1) is largest; ties to the earlier chunk.
    queue = [(-(arrivals_ns[i] - arrivals_ns[i - 1]) / 2, i) for i in range(1, len(counts))]
    heapq.heapify(queue)
    for _ in range(spare):
        _, i = heapq.heappop(queue)
        counts[i] += 1
        gap_ns = arrivals_ns[i] - arrivals_ns[i - 1]
        heapq.heappush(queue, (-gap_ns / (counts[i] + 1), i))
    return counts
