"""The ledger of an answer's tokens: how many came with each chunk, who counted them, and which counts are not believed.

Three totals are kept apart: *streamed* tokens are the sum over the chunks, *hidden* ones were counted and not streamed
(reasoning), and both together were *generated*, which is what is billed. Several sources count the same tokens (ids,
usage, the engine's count for each chunk, the tokenizer), and any of them may be wrong. So each total must lie between
what the text can have at least and at most (:mod:`bakeoff.harness.client.wire.plausibility`), and totals that both do
and differ are decided by a third source. What is not used is named in the ledger.

Tokens without text have a time only if something arrives with them: an empty event behind which the usage rose, or the
end token with the event that has the finish reason.
"""

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence

import msgspec

from bakeoff.engines.dialects import TokenDelta, TokenKind
from bakeoff.engines.dialects.failures import UNREADABLE
from bakeoff.harness.client.decode.stated_counts import (
    FEWEST_COUNTS,
    SLACK_TOKENS,
    TOKENIZER_SHARE,
    Delta,
    counted,
    hidden_tokens,
    own_counts,
    streamed_tokens,
    with_silent,
)
from bakeoff.harness.client.decode.token_counts import (
    apportion,
    counts_of_text,
    counts_of_whole,
    estimated,
    highest_averages,
    spread,
)
from bakeoff.harness.client.wire.plausibility import is_borne, is_too_few
from bakeoff.harness.client.wire.stream_content import DecodedStream
from bakeoff.results.records import TokenClaim, TokenSource
from bakeoff.workloads import Tokenizer

_FEWEST_CUMULATIVE = 3
"""Ids that the chunks must repeat, each those of the chunk before, so that each has all ids so far."""
_MAX_HIDDEN_TIMES = 2
"""Of the tokens that the text has: if usage states more, most of them were not streamed."""
_USUAL_BYTES = 3
"""Text with at most so many bytes for each of its tokens has no more than these."""
_ENDS = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "tool_use", "completed"})
"""Finish reasons, in lower case, of an answer that the model ended: it generated a token for that."""
_SILENT_GAPS = 2.0
"""A gap between chunks is silent beyond this many median gaps."""
_SILENT_SHARE = 0.5
"""Tokens came in silence if there is time for this share of those that no chunk accounts for."""


class Ledger(msgspec.Struct, frozen=True):
    """Tokens of one answer.

    Attributes:
        deltas: arrival and content of each chunk with tokens, those without text included.
        counts: tokens of each.
        source: of these; None without a chunk.
        stated: streamed tokens as the server counts them; None if it does not.
        hidden: tokens that the server counts and did not stream; None if there are none.
        disbelieved: a claim of the server that contradicts the rest of the answer.
    """

    deltas: list[Delta]
    counts: list[int]
    source: TokenSource | None
    stated: int | None
    hidden: int | None
    disbelieved: TokenClaim | None = None


def ledger_of(decoded: DecodedStream, tokenizer: Tokenizer | None, requested: int | None) -> Ledger:
    """The ledger of a streamed answer.

    Args:
        decoded: its events.
        tokenizer: the model's.
        requested: length that was requested; None if unknown.
    """
    usage, text = decoded.usage, _generated_text(decoded.deltas)
    deltas, stated_so_far = with_silent(decoded.deltas, decoded.stated)
    hidden = hidden_tokens(usage, decoded.deltas, tokenizer)
    is_total = usage.output_tokens is None or not is_too_few(usage.output_tokens, text)
    own = own_counts(len(deltas), stated_so_far, requested, may_be_total=is_total)
    stated = streamed_tokens(usage, hidden) if own is None else sum(own)
    if own or stated == usage.output_tokens:
        deltas = counted(deltas, stated_so_far, own)
    if not deltas:
        return Ledger([], [], None, stated, hidden)
    question = _Question(deltas, text, requested, tokenizer)
    end_ns = next((t_ns for t_ns in decoded.empty_chunk_ns if t_ns >= deltas[-1][0]), None)
    has_end = (decoded.finish or "").lower() in _ENDS and stated is not None and stated != len(deltas)
    is_ended = has_end and question.has_just((stated or 0) - 1)
    if is_ended and end_ns is not None:
        deltas = [*deltas, (end_ns, _END_TOKEN)]
        question = _Question(deltas, text, requested, tokenizer)
    in_last = int(is_ended and end_ns is None)
    counts, source, disbelieved = question.answer(
        None if stated is None else stated - in_last, hides_reasoning=usage.hides_reasoning, end_ns=end_ns
    )
    counts[-1] += in_last
    return Ledger(deltas, counts, source, stated, hidden, disbelieved)


_END_TOKEN = TokenDelta("", tokens=1)


def ledger_of_whole(decoded: DecodedStream, tokenizer: Tokenizer | None, requested: int | None) -> Ledger:
    """The ledger of an answer that came as one document; arguments as of :func:`ledger_of`."""
    deltas, usage = decoded.deltas, decoded.usage
    pieces, text = [delta for _, delta in deltas], _generated_text(deltas)
    text_bytes = len("".join(delta.text for delta in pieces).encode())
    hidden = hidden_tokens(usage, deltas, tokenizer)
    stated = streamed_tokens(usage, hidden)
    is_believed = stated is None or not text or (
        not is_too_few(stated, text) and is_borne(stated, text_bytes, len(pieces), requested)
    )  # fmt: skip
    counts, source = counts_of_whole(pieces, stated if is_believed else None, tokenizer)
    disbelieved = None if is_believed else TokenClaim.USAGE
    return Ledger(deltas, counts, source, stated, hidden, disbelieved)


class _Question:
    """How many tokens each chunk of an answer has.

    Args:
        deltas: at least one.
        text: of all of them, as it was generated.
        requested: length that was requested.
        tokenizer: the model's.
    """

    def __init__(self, deltas: list[Delta], text: str, requested: int | None, tokenizer: Tokenizer | None) -> None:
        self._deltas = deltas
        has_calls = any(delta.kind is TokenKind.TOOL for _, delta in deltas)
        self._generated = [(t_ns, as_generated(delta)) for t_ns, delta in deltas] if has_calls else deltas
        self._text = text
        self._text_bytes = sum(len(delta.text.encode()) for _, delta in deltas) if has_calls else len(text.encode())
        self._requested = requested
        self._tokenizer = tokenizer

    @functools.cached_property
    def _found(self) -> list[int]:
        """The tokenizer's counts; empty without one."""
        return self._counts_of(self._generated)

    @functools.cached_property
    def _visible(self) -> int:
        """Tokens that the text has at most."""
        if self._tokenizer is None:
            return max(self._text_bytes, len(self._deltas))
        framed = self._found if self._generated == self._deltas else self._counts_of(self._deltas)
        return max(sum(self._found), sum(framed), len(self._deltas))  # the model writes a frame around calls, too

    def _counts_of(self, deltas: Sequence[Delta]) -> list[int]:
        return [] if self._tokenizer is None else counts_of_text([delta for _, delta in deltas], self._tokenizer)

    def has_just(self, tokens: int) -> bool:
        """Whether there are so many tokens by the server's counts of the chunks, the text, or the number of chunks."""
        for counts, _ in self._of_each():
            return sum(counts) == tokens
        if self._found:
            return sum(self._found) == tokens
        if not self._can_be(tokens):
            return False
        return tokens in {len(self._deltas), sum(estimated(self._generated)[0])}

    def answer(
        self, usage: int | None, *, hides_reasoning: bool, end_ns: int | None
    ) -> tuple[list[int], TokenSource, TokenClaim | None]:
        """The counts, their source and the claim that is not believed.

        Args:
            usage: tokens as the server counts them, without hidden ones.
            hides_reasoning: whether that has tokens of reasoning that no chunk shows.
            end_ns: when the event with the finish reason arrived, if it has no token.
        """
        wrong, of_each = None, list(self._of_each())
        is_confirmed = any(sum(counts) == usage for counts, _ in of_each)
        if usage is not None and (not self._can_be(usage) or (not is_confirmed and self._has_more(usage))):
            usage, wrong = None, TokenClaim.USAGE
        for counts, source in of_each:
            total = sum(counts)
            if self._can_be(total) and self._is_confirmed(counts, source, usage) and self._is_nearer(total, usage):
                return counts, source, wrong if usage in {None, total} else TokenClaim.USAGE
            if source is TokenSource.IDS:
                wrong = wrong or TokenClaim.IDS
            elif self._deltas[0][1].logprobs is None and usage != total:
                wrong = wrong or TokenClaim.COUNTS
        if usage == len(self._deltas):
            return [1] * len(self._deltas), TokenSource.CHUNKS, wrong
        if self._found and self._found[0] and usage in {None, sum(self._found)}:
            return self._found, TokenSource.TOKENIZER, wrong
        if usage is None:
            return *estimated(self._generated), wrong
        is_hidden = hides_reasoning or usage > _MAX_HIDDEN_TIMES * self._visible
        is_placed = not is_hidden and not self._has_silence(usage, end_ns)
        return self._guessed(usage), TokenSource.APPORTIONED if is_placed else TokenSource.UNPLACED, wrong

    def _can_be(self, tokens: int) -> bool:
        is_enough = not is_too_few(tokens, self._text)
        return is_enough and is_borne(tokens, self._text_bytes, len(self._deltas), self._requested)

    def _has_more(self, tokens: int) -> bool:
        """Whether the tokenizer finds clearly more tokens in the text; it is asked only where that may be."""
        if self._tokenizer is None or self._text_bytes <= _USUAL_BYTES * tokens:
            return False
        return tokens < (1 - TOKENIZER_SHARE) * sum(self._found) - SLACK_TOKENS

    def _of_each(self) -> Iterator[tuple[list[int], TokenSource]]:
        """The server's own counts for all chunks: by ids, and as it states them."""
        ids = [delta.token_ids or () for _, delta in self._deltas]
        stated = [delta.tokens or 0 for _, delta in self._deltas]
        is_end = (delta is _END_TOKEN for _, delta in self._deltas)
        if any(ids) and all(map(operator.or_, map(bool, ids), is_end)):
            is_cumulative = sum(map(len, ids[:-1])) >= _FEWEST_CUMULATIVE and all(
                len(later) > len(before) and later[: len(before)] == before for before, later in itertools.pairwise(ids)
            )
            counts = [len(of_chunk) or 1 for of_chunk in ids]
            steps = [after - before for before, after in itertools.pairwise([0, *counts])]
            yield steps if is_cumulative else counts, TokenSource.IDS
        if all(stated):
            yield stated, TokenSource.COUNTS
        elif any(stated) and any(ids) and all(map(max, map(len, ids), stated)):
            yield list(map(max, map(len, ids), stated)), TokenSource.COUNTS

    def _is_nearer(self, total: int, usage: int | None) -> bool:
        """Whether a total of the chunks is no further than the usage from what the text has by a tokenizer."""
        if usage is None or usage == total:
            return True
        found = sum(self._found or estimated(self._generated)[0])
        return abs(total - found) <= abs(usage - found)

    def _is_confirmed(self, counts: Sequence[int], source: TokenSource, usage: int | None) -> bool:
        """Whether counts need not be those of log-probabilities that a server sends for one token of a chunk only."""
        if source is TokenSource.IDS or self._deltas[0][1].logprobs is None:
            return True
        if usage is None:
            return max(counts) > 1
        return sum(counts) == usage or sum(counts) + 1 == usage

    def _guessed(self, tokens: int) -> list[int]:
        """The tokens of each chunk where only their sum is known."""
        chunks = len(self._generated)
        if tokens < chunks:
            return spread(tokens, chunks)
        arrivals_ns = [t_ns for t_ns, _ in self._generated]
        found = self._found
        if found and all(found) and sum(found) < tokens:
            silent = apportion(arrivals_ns, tokens - sum(found) + chunks)
            return [count + extra - 1 for count, extra in zip(found, silent, strict=True)]
        lengths = [len(delta.text.encode()) for _, delta in self._generated]
        has_text = all(lengths[:-1]) and (lengths[-1] or self._deltas[-1][1] is _END_TOKEN)
        return highest_averages(lengths, tokens) if has_text else apportion(arrivals_ns, tokens)

    def _has_silence(self, tokens: int, end_ns: int | None) -> bool:
        """Whether chunks of one token each, and a silence, explain the count as well as chunks of several tokens do.

        Tokens that a server keeps back until the end, or drops, have a time of their own that nobody knows.
        """
        extra = tokens - len(self._deltas)
        if self._found or extra < 1:
            return False
        times_ns = [t_ns for t_ns, _ in self._deltas] + ([end_ns] if end_ns is not None else [])
        gaps_ns = sorted(after - before for before, after in itertools.pairwise(times_ns) if after > before)
        if len(gaps_ns) < FEWEST_COUNTS:
            return False
        median_ns = gaps_ns[(len(gaps_ns) - 1) // 2]
        silent_ns = sum(gap - median_ns for gap in gaps_ns if gap > _SILENT_GAPS * median_ns)
        return silent_ns > _SILENT_SHARE * extra * median_ns


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    """A part of a tool call in OpenAI's form."""

    function: _Function | None = None


def _generated_text(deltas: Sequence[Delta]) -> str:
    return "".join([as_generated(delta).text if delta.kind is TokenKind.TOOL else delta.text for _, delta in deltas])


def as_generated(delta: TokenDelta) -> TokenDelta:
    """A call with the text that the model generated: its name and arguments, without the API's ids and types."""
    if delta.kind is not TokenKind.TOOL:
        return delta
    try:
        calls = msgspec.json.decode(delta.text, type=list[_Call])
    except UNREADABLE:  # arguments alone, as in Anthropic's deltas
        return delta
    functions = [call.function for call in calls if call.function is not None]
    if not functions:
        return delta
    words = "".join((function.name or "") + (function.arguments or "") for function in functions)
    return msgspec.structs.replace(delta, text=words)
