"""Number of tokens in each chunk, by the most exact method that the engine allows.

A chunk is not a token: engines group tokens, speculate several at once, and hold back half a character. In order:

1. the token ids in the chunks, or the engine's count for each chunk;
2. one token each, if the engine's usage states as many tokens as there are chunks;
3. the model's tokenizer on the whole text, if its count equals the usage (or there is no usage); a token counts in the
   chunk in which it begins, so that one that is split over two chunks counts once;
4. the usage, spread over the chunks by highest averages (D'Hondt), at least one each. Tokens that the tokenizer does
   not find in the text are special ones, which lengthen the gap before the next visible chunk: they follow the gaps.
   Without a tokenizer all follow the length of the text, and the gaps only where chunks have no text. Most of them
   must be in the text, though: tokens that were not streamed, such as hidden reasoning, have no time;
5. otherwise one token each, and a warning.

Counts that the answer cannot have (:mod:`bakeoff.harness.client.wire.plausibility`) are not used.
"""

import bisect
import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from bakeoff.engines.dialects import TokenDelta, TokenKind, Usage
from bakeoff.harness.client.wire.plausibility import is_borne
from bakeoff.results.records import TokenSource
from bakeoff.workloads import APPROXIMATE, Tokenizer, tokenizer_at

_FEWEST_COUNTS = 4
"""Of an answer, that tell totals from each chunk's own."""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    """A part of a tool call in OpenAI's form."""

    function: _Function | None = None


def token_counts(
    deltas: Sequence[tuple[int, TokenDelta]],
    usage_tokens: int | None,
    tokenizer: Tokenizer | None,
    requested_tokens: int | None = None,
    *,
    hides_reasoning: bool = False,
) -> tuple[list[int], TokenSource | None]:
    """Count the tokens of each chunk.

    Args:
        deltas: arrival in nanoseconds and content of each chunk with tokens.
        usage_tokens: the engine's own count of output tokens.
        tokenizer: the model's.
        requested_tokens: length that was requested; None if unknown.
        hides_reasoning: whether the engine's count has tokens of reasoning that no chunk shows.

    Returns:
        one count per chunk, and their source (None if there is no chunk). The first count is at least 1; another is 0
        if the chunk only completes a token.
    """
    if not deltas:
        return [], None
    text_bytes = sum(len(delta.text.encode()) for _, delta in deltas)
    framed, deltas = deltas, [(t_ns, _as_generated(delta)) for t_ns, delta in deltas]

    def borne(tokens: int) -> bool:
        return is_borne(tokens, text_bytes, len(deltas), requested_tokens)

    if usage_tokens is not None and not borne(usage_tokens):
        usage_tokens = None
    if reported := _reported(deltas):
        counts, source = reported
        is_likely = borne(sum(counts)) and _is_confirmed(counts, deltas, usage_tokens)
        if source is TokenSource.IDS or is_likely:
            return reported
    if usage_tokens == len(deltas):
        return [1] * len(deltas), TokenSource.CHUNKS
    visible, counts = max(text_bytes, len(deltas)), []
    if tokenizer is not None:
        counts = _counts_of_text([delta for _, delta in deltas], tokenizer)
        # The model writes a frame around its calls, too.
        whole = counts if framed == deltas else _counts_of_text([delta for _, delta in framed], tokenizer)
        visible = max(sum(counts), sum(whole), len(deltas))
        if counts[0] and usage_tokens in {None, sum(counts)}:
            return counts, TokenSource.TOKENIZER
    if usage_tokens is None:
        return [1] * len(deltas), TokenSource.ASSUMED
    is_shown = usage_tokens <= 2 * visible and not hides_reasoning
    source = TokenSource.APPORTIONED if is_shown else TokenSource.UNPLACED
    return _guessed(deltas, usage_tokens, counts), source


def _as_generated(delta: TokenDelta) -> TokenDelta:
    """A call with the text that the model generated: its name and arguments, without the API's ids and types."""
    if delta.kind is not TokenKind.TOOL:
        return delta
    try:
        calls = msgspec.json.decode(delta.text, type=list[_Call])
    except msgspec.MsgspecError:  # arguments alone, as in Anthropic's deltas
        return delta
    functions = [call.function for call in calls if call.function is not None]
    if not functions:
        return delta
    words = "".join((function.name or "") + (function.arguments or "") for function in functions)
    return msgspec.structs.replace(delta, text=words)


def _is_confirmed(counts: Sequence[int], deltas: Sequence[tuple[int, TokenDelta]], usage_tokens: int | None) -> bool:
    """Whether counts need not be those of log-probabilities that a server sends for one token of a chunk only."""
    if deltas[0][1].logprobs is None:
        return True
    if usage_tokens is None:
        return max(counts) > 1
    return sum(counts) == usage_tokens or sum(counts) + 1 == usage_tokens  # a token that ends the answer is not shown


def _guessed(deltas: Sequence[tuple[int, TokenDelta]], tokens: int, found: Sequence[int]) -> list[int]:
    """The tokens of each chunk where only their sum is known; ``found``: those that the tokenizer finds, or none."""
    if tokens < len(deltas):
        return _spread(tokens, len(deltas))
    arrivals_ns = [t_ns for t_ns, _ in deltas]
    if found and all(found) and sum(found) < tokens:
        silent = apportion(arrivals_ns, tokens - sum(found) + len(found))
        return [count + extra - 1 for count, extra in zip(found, silent, strict=True)]
    lengths = [len(delta.text.encode()) for _, delta in deltas]
    return highest_averages(lengths, tokens) if all(lengths) else apportion(arrivals_ns, tokens)


def counts_of_whole(
    deltas: Sequence[TokenDelta], usage_tokens: int | None, tokenizer: Tokenizer | None
) -> tuple[list[int], TokenSource | None]:
    """Count the tokens of each part of an answer that came as a whole; arguments as of :func:`token_counts`.

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


def _counts_of_text(deltas: Sequence[TokenDelta], tokenizer: Tokenizer) -> list[int]:
    """Tokens that begin in each chunk; text of each kind is encoded by itself, as the model's markers separate it."""
    counts: list[int] = []
    for _, stretch in itertools.groupby(deltas, key=lambda delta: delta.kind):
        texts = [delta.text for delta in stretch]
        ends = list(itertools.accumulate(map(len, texts)))
        places = Counter(bisect.bisect_right(ends, start) for start in tokenizer.starts("".join(texts)))
        counts += [places[place] if text else 1 for place, text in enumerate(texts)]  # a special token has no text
    return counts


def _spread(tokens: int, chunks: int) -> list[int]:
    """Fewer tokens than chunks: 1 or 0 each, evenly, beginning with 1."""
    totals = [-(-number * max(1, tokens) // chunks) for number in range(chunks + 1)]
    return [after - before for before, after in itertools.pairwise(totals)]


def streamed_tokens(usage: Usage, deltas: Iterable[TokenDelta]) -> int | None:
    """Output tokens that were streamed, by the engine's usage; None if it does not count any.

    Reasoning tokens that no chunk shows are in no interval between chunks, so they would look like a faster pace. Most
    servers count them as output, but some beside it: these are told apart by the total, or since the output then has
    fewer tokens than the reasoning.

    Args:
        usage: the engine's counts.
        deltas: chunks with tokens.
    """
    output, reasoning = usage.output_tokens, usage.reasoning_tokens or 0
    total = None if usage.total_tokens is None else usage.total_tokens - (usage.prompt_tokens or 0)
    if output is None and usage.prompt_tokens is not None and total is not None and total > 0:
        output = total
    if output is None or not reasoning:
        return output
    is_beside = total == output + reasoning or output < reasoning
    return (output + reasoning if is_beside else output) - (hidden_tokens(usage, deltas) or 0)


def hidden_tokens(usage: Usage, deltas: Iterable[TokenDelta]) -> int | None:
    """Reasoning tokens that the engine counted and no chunk shows; None if there are none.

    A summary of the reasoning, or a part of it, shows fewer tokens than were counted: with less than one and a half
    bytes for each counted token, which no text has, every chunk is taken for one.
    """
    reasoning = usage.reasoning_tokens
    if not reasoning:
        return None
    shown = [len(delta.text.encode()) for delta in deltas if delta.kind is TokenKind.REASONING]
    is_partial = reasoning > max(len(shown), 2 * sum(shown) // 3)
    return reasoning - len(shown) if is_partial else None


def _reported(deltas: Sequence[tuple[int, TokenDelta]]) -> tuple[list[int], TokenSource] | None:
    """The engine's own count for each chunk; None if one is missing."""
    counts = [len(delta.token_ids) if delta.token_ids else delta.tokens or 0 for _, delta in deltas]
    if not all(counts):
        return None
    return counts, TokenSource.IDS if all(delta.token_ids for _, delta in deltas) else TokenSource.COUNTS


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


def counted(
    deltas: list[tuple[int, TokenDelta]], stated: Sequence[tuple[int, int]], own: Sequence[int] | None
) -> list[tuple[int, TokenDelta]]:
    """The deltas, each with its token count if usage stood behind every one of them.

    Args:
        deltas: arrival in nanoseconds and content of each chunk with tokens.
        stated: number of deltas and output tokens so far, at each event with a count of output tokens.
        own: see `own_counts`.
    """
    counts = own or _risen(len(deltas), stated)
    if counts is None:
        return deltas
    return [
        (t_ns, msgspec.structs.replace(delta, tokens=count))
        for (t_ns, delta), count in zip(deltas, counts, strict=True)
    ]


def own_counts(num_deltas: int, stated: Sequence[tuple[int, int]], requested: int | None) -> list[int] | None:
    """The tokens of each delta, where the usage behind each states only its own; None where it states totals.

    Totals rise, anew in each of several choices, or are the whole answer's from the beginning. So constant counts must
    be 1 or give the requested length, unless a last total behind all deltas is their sum, which it must be.

    Args:
        num_deltas: number of chunks with tokens.
        stated: as in `counted`.
        requested: length that was requested; None if unknown.
    """
    if num_deltas < _FEWEST_COUNTS or len(stated) < num_deltas:
        return None
    first, last = dict(reversed(stated)), stated[-1][1]
    counts = [first.get(number, 0) for number in range(1, num_deltas + 1)]
    steps = list(itertools.pairwise(counts))
    rises = counts[-1] > counts[0] and all(before <= after for before, after in steps)
    rises = rises or (max(counts) > _FEWEST_COUNTS // 2 and all(after in {before + 1, 1} for before, after in steps))
    is_constant = min(counts) == max(counts) > 1
    has_total = len(stated) > num_deltas
    is_contradicted = has_total and last != sum(counts)
    is_doubtful = is_constant and not has_total and sum(counts) != requested
    if min(counts) < 1 or rises or is_contradicted or is_doubtful:
        return None
    return counts


def _risen(num_deltas: int, stated: Sequence[tuple[int, int]]) -> list[int] | None:
    """By how much a total that stood behind every delta rose with each; None if one is missing, or it did not rise."""
    totals = dict(stated)
    so_far = [totals.get(number) for number in range(1, num_deltas + 1)]
    known = [total for total in so_far if total is not None]
    added = [after - before for before, after in itertools.pairwise([0, *known])]
    return None if num_deltas < 2 or len(known) < num_deltas or min(added) < 1 else added
