"""Turns the output tokens of one sequence into text, up to its stop strings."""

from collections.abc import Sequence

import msgspec

from bakeoff.reference_engine.core.request import FinishReason
from bakeoff.reference_engine.engine.detokenizer import Detokenizer, StopMatcher
from bakeoff.reference_engine.loading.tokenizer import Tokenizer


class Text(msgspec.Struct, frozen=True, gc=False):
    """The text that one token added.

    Attributes:
        text: without what may still become a stop string; with held-back characters of earlier tokens.
        finish_reason: set on the last token.
        stop_string: the string that ended the text; None if none did.
    """

    text: str
    finish_reason: FinishReason | None = None
    stop_string: str | None = None


class TextWriter:
    """Writes one output sequence.

    Args:
        tokenizer: the checkpoint's.
        stops: strings that end the text.
        min_tokens: tokens before which no stop string ends the text.
        include_stop: whether the string or token that ended the text stays in it.
        skip_special_tokens: whether special tokens have no text.

    Attributes:
        num_tokens: written so far.
    """

    __slots__ = ("_detokenizer", "_has_stops", "_include_stop", "_min_tokens", "_stops", "num_tokens")

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        min_tokens: int = 0,
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self.num_tokens: int = 0
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._stops = StopMatcher(stops, include=include_stop)
        self._has_stops = bool(stops)
        self._include_stop = include_stop
        self._min_tokens = min_tokens

    def push(self, token_id: int, finish_reason: FinishReason | None) -> Text:
        """Writes a token; after one with a finish reason no more may come.

        Args:
            token_id: the next token.
            finish_reason: why the engine ended the sequence with it; None if the sequence continues.
        """
        self.num_tokens += 1
        if finish_reason is None and not self._has_stops:
            return Text(self._detokenizer.push(token_id))
        is_left_out = finish_reason is FinishReason.STOP and not self._include_stop  # as in vLLM
        text, stop = "" if is_left_out else self._detokenizer.push(token_id), None
        if self.num_tokens >= self._min_tokens:
            text, stop = self._stops.push(text)
        if stop is None and finish_reason is not None:
            # The remaining text may hold a stop string, too.
            rest, stop = self._stops.push(self._detokenizer.flush())
            text += rest if stop is not None else rest + self._stops.flush()
        return Text(text, finish_reason if stop is None else FinishReason.STOP, stop)
