"""Turns a growing list of token ids into text, piece by piece, without ever emitting half a character."""

from collections.abc import Sequence

from bakeoff.reference_engine.loading.tokenizer import BROKEN, Tokenizer

_MAX_PENDING = 3  # a UTF-8 character has at most 4 bytes, so an incomplete one decodes to at most 3 of these
_MAX_WINDOW_TOKENS = 64  # bounds the cost per token where a model writes only invalid bytes


class Detokenizer:
    """The text of one output sequence.

    A byte-level token may hold a part of a character, and some decoders treat the first token of a text differently.
    So each new token is decoded together with the few tokens before it, and the text already known is cut off; then the
    window moves on. (The method is that of text-generation-inference's `decode_token`.) A byte-level token of whole
    characters that follows whole characters needs none of that: its text never changes.

    Args:
        tokenizer: the checkpoint's.
        skip_special_tokens: whether special tokens have no text.
    """

    __slots__ = ("_context", "_is_whole", "_shown", "_skip_special_tokens", "_texts", "_tokenizer", "_window")

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._texts = tokenizer.token_texts(skip_special_tokens=skip_special_tokens)
        self._skip_special_tokens = skip_special_tokens
        self._context: Sequence[int] = ()  # tokens before the window, whose text has been returned
        self._window: list[int] = []  # tokens whose text has not been fully returned
        self._shown = 0  # characters of context and window already returned
        self._is_whole = tokenizer.is_byte_level  # whether no token has an effect on the text of the next one

    def push(self, token_id: int) -> str:
        """The characters that this token completes, often none."""
        if self._is_whole:
            text = self._texts[token_id]
            if BROKEN not in text:
                self._context = (token_id,)
                self._shown = len(text)
                return text
        self._window.append(token_id)
        text = self._decode([*self._context, *self._window])
        if not text.endswith(BROKEN) or len(self._window) > _MAX_WINDOW_TOKENS:
            return self._advance(text)
        # Only the last few replacement characters can still become a character; those before them are invalid for good.
        pending = min(len(text) - len(text.rstrip(BROKEN)), _MAX_PENDING)
        self._is_whole = False
        fresh = text[self._shown : len(text) - pending]
        self._shown = max(self._shown, len(text) - pending)
        return fresh

    def flush(self) -> str:
        """The remaining text at the end of the sequence; bytes that never form a character become U+FFFD."""
        return self._advance(self._decode([*self._context, *self._window])) if self._window else ""

    def _advance(self, text: str) -> str:
        fresh = text[self._shown :]
        self._context, self._window = self._window, []
        context = self._decode(self._context)
        self._shown = len(context)
        self._is_whole = self._tokenizer.is_byte_level and not context.endswith(BROKEN)
        return fresh

    def _decode(self, token_ids: Sequence[int]) -> str:
        if len(token_ids) == 1:
            return self._texts[token_ids[0]]
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)


class StopMatcher:
    """Watches a text for stop strings and holds back whatever may become one.

    Args:
        stops: non-empty strings.
        include: whether a matched stop string stays in the text.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that can be returned, and the stop string that matched, after which nothing more may be pushed."""
        if not self._stops:
            return text, None
        pending = self._held + text
        hits = [(pending.find(stop), stop) for stop in self._stops if stop in pending]
        if hits:
            position, stop = min(hits)
            self._held = ""
            return pending[: position + len(stop) * self._include], stop
        keep = max(overlap(pending, stop) for stop in self._stops)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep], None

    def flush(self) -> str:
        """The held-back text, at the end of the sequence."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
