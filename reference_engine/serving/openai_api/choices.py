"""Turns the engine's tokens of one output sequence into the client's events."""

import time
from collections.abc import Mapping, Sequence

import msgspec

from bakeoff.reference_engine.core.outputs import Phases, PromptLogprob, SampledToken, TokenOutput
from bakeoff.reference_engine.core.request import FinishReason, Request
from bakeoff.reference_engine.engine.text_writer import Text, TextWriter
from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.loading.tokenizer import Tokenizer
from bakeoff.reference_engine.serving.core.streams import TokenStream
from bakeoff.reference_engine.serving.openai_api.answer_parts import AnswerReader
from bakeoff.reference_engine.serving.openai_api.fields import GenerationFields, alternatives_of, is_echo_alone


class TokenEvent(msgspec.Struct, frozen=True, gc=False):
    """One token of the answer; its text may be empty.

    Attributes:
        index: of its choice.
        token_id: of the token.
        text: that it added, with held-back characters of earlier tokens.
        token_text: the token on its own, for log-probability lists; None if not requested.
        token_bytes: the same in UTF-8, also of a token that is a part of a character.
        logprob: natural logarithm; None if not requested.
        alternatives: texts, bytes and log-probabilities of the likeliest tokens; None if not requested.
        finish_reason: set on the last event of the choice.
        stop_reason: the stop string or the stop token id that ended it, as vLLM reports it; None for EOS.
    """

    index: int
    token_id: int
    text: str
    token_text: str | None = None
    token_bytes: bytes = b""
    logprob: float | None = None
    alternatives: list[tuple[str, bytes, float]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class Choice:
    """Turns the outputs of one request into events, and counts.

    Args:
        index: its number in the answer.
        request: as submitted to the engine.
        fields: the HTTP request it belongs to.
        tokenizer: the checkpoint's.
        skip_special_tokens: whether special tokens have no text; None for the request's wish.
    """

    __slots__ = (
        "_decode_s",
        "_num_alternatives",
        "_own_stop_ids",
        "_params",
        "_phases",
        "_sum_logprobs",
        "_writer",
        "detokenize_s",
        "echo",
        "index",
        "is_echo_alone",
        "is_finished",
        "num_cached_tokens",
        "num_characters",
        "prompt_logprobs",
        "prompt_token_ids",
        "reader",
        "request_id",
        "token_bytes",
        "token_texts",
    )

    def __init__(
        self,
        index: int,
        request: Request,
        fields: GenerationFields,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool | None = None,
    ) -> None:
        self.index: int = index
        self.request_id: str = request.request_id
        self.prompt_token_ids: list[int] = request.token_ids[: request.prompt_len]
        self.num_characters: int = 0  # of text in the events so far
        self.num_cached_tokens: int | None = None  # of the prompt; None before the first token, and without caching
        self.is_finished: bool = False
        self.prompt_logprobs: tuple[PromptLogprob, ...] | None = (
            None  # with the first token of the prompt's first choice
        )
        self.reader: AnswerReader | None = None  # of a chat whose answers have parts
        self.echo: str | None = None  # the prompt's text, if the answer repeats it
        self.is_echo_alone: bool = is_echo_alone(fields)
        self.detokenize_s: float = 0.0  # seconds of turning tokens into text
        self._phases = Phases(0.0, 0.0, 0.0)  # from the engine's last report
        self._decode_s = 0.0
        self._sum_logprobs = 0.0
        self._num_alternatives = alternatives_of(fields)
        self.token_texts: Mapping[int, str] = tokenizer.token_texts(skip_special_tokens=False)
        self.token_bytes: Mapping[int, bytes] = tokenizer.token_bytes
        self._params = request.sampling
        self._own_stop_ids = frozenset(fields.stop_token_ids or ())
        self._writer = TextWriter(
            tokenizer,
            [fields.stop] if isinstance(fields.stop, str) else fields.stop or [],
            min_tokens=request.sampling.min_tokens,
            include_stop=fields.include_stop_str_in_output,
            skip_special_tokens=fields.skip_special_tokens if skip_special_tokens is None else skip_special_tokens,
        )

    @property
    def num_output(self) -> int:
        """Tokens of the answer so far, without those of an echo."""
        return 0 if self.is_echo_alone else self._writer.num_tokens

    @property
    def phases(self) -> Phases:
        """Phases up to the newest token."""
        return Phases(self._phases.queue_s, self._phases.prefill_s, self._decode_s)

    @property
    def is_searched(self) -> bool:
        """Whether it is a hypothesis of a beam search, which arrive best first."""
        return self._params.beams is not None

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability of the tokens so far; 0 if none were requested."""
        return self._sum_logprobs / max(1, self.num_output)

    def push(self, output: TokenOutput) -> TokenEvent:
        """The event for one token; none may follow an event with a finish reason."""
        began_s = time.perf_counter()
        token = output.token
        text = self._writer.push(token.token_id, output.finish_reason)
        self.num_characters += len(text.text)
        event = (
            TokenEvent(self.index, token.token_id, text.text)
            if text.finish_reason is None and token.logprob is None
            else self._full_event(token, text)
        )
        self.detokenize_s += time.perf_counter() - began_s
        if output.phases is None:  # the engine sums the gaps only if it ends the request itself
            self._decode_s += output.gap_s or 0.0
        else:
            self._phases = output.phases
            self._decode_s = output.phases.decode_s
            self.num_cached_tokens = output.num_cached_tokens
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        return event

    def _full_event(self, token: SampledToken, text: Text) -> TokenEvent:
        self._sum_logprobs += token.logprob or 0.0
        self.is_finished = text.finish_reason is not None
        stop_reason: str | int | None = text.stop_string
        if stop_reason is None and text.finish_reason is FinishReason.STOP and token.token_id in self._own_stop_ids:
            stop_reason = token.token_id
        has_logprobs = self._num_alternatives is not None
        return TokenEvent(
            index=self.index,
            token_id=token.token_id,
            text=text.text,
            token_text=self.token_texts[token.token_id] if has_logprobs else None,
            token_bytes=self.token_bytes[token.token_id] if has_logprobs else b"",
            logprob=token.logprob if has_logprobs else None,
            alternatives=[
                (self.token_texts[token_id], self.token_bytes[token_id], value)
                for token_id, value in token.alternatives
            ]
            if self._num_alternatives
            else None,
            finish_reason=text.finish_reason,
            stop_reason=stop_reason,
        )


class OpenChoices:
    """The choices of one answer while their tokens arrive.

    Args:
        choices: in order of their numbers.
        stream: of their tokens.

    Attributes:
        choices: see above.
    """

    __slots__ = ("_by_id", "_stream", "choices")

    def __init__(self, choices: Sequence[Choice], stream: TokenStream) -> None:
        self.choices: Sequence[Choice] = choices
        self._by_id = {choice.request_id: choice for choice in choices}
        self._stream = stream

    def push(self, output: TokenOutput) -> TokenEvent | None:
        """The event of a token; None if its choice ended with a stop string in the same step.

        Raises:
            RequestError: the choice's grammar became too complex to follow.
        """
        if output.finish_reason is FinishReason.GRAMMAR:
            raise RequestError(
                "the answer cannot be completed: its grammar became too complex to follow; simplify the schema, the "
                "regular expression or the choices"
            )
        choice = self._by_id[output.request_id]
        if choice.is_finished:
            return None
        event = choice.push(output)
        if choice.is_finished:
            self._stream.finish(output.request_id)
        return event


def share_prompt_logprobs(choices: Sequence[Choice], num_candidates: int) -> None:
    """Copies the log-probabilities of each prompt from its first answer to the others.

    Args:
        choices: finished, in order of prompts.
        num_candidates: answers made for each prompt.
    """
    for number, choice in enumerate(choices):
        choice.prompt_logprobs = choices[number - number % num_candidates].prompt_logprobs


def best_of(choices: Sequence[Choice], num_candidates: int, count: int) -> list[Choice]:
    """Returns each prompt's best answers by mean log-probability, best first and renumbered; keeps beam-search order.

    Args:
        choices: finished, in order of prompts.
        num_candidates: answers made for each prompt.
        count: how many to keep for each prompt; if all, nothing is sorted or renumbered.
    """
    if num_candidates == count:
        return list(choices)
    best: list[Choice] = []
    for first in range(0, len(choices), num_candidates):
        group = choices[first : first + num_candidates]
        best += sorted(group, key=lambda choice: 0.0 if choice.is_searched else -choice.mean_logprob)[:count]
    for index, choice in enumerate(best):
        choice.index = index
    return best
