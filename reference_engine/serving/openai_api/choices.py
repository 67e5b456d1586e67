"""One output sequence: from the engine's tokens to the client's events."""

import dataclasses
import time
from collections.abc import Sequence

from reference_engine.engine.outputs import Phases, TokenOutput
from reference_engine.engine.request import FinishReason, Request
from reference_engine.engine.text_writer import TextWriter
from reference_engine.loading.tokenizer import Tokenizer
from reference_engine.serving.openai_api.fields import GenerationFields, alternatives_of


@dataclasses.dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token as the client sees it; the text may be empty, the token id never is.

    Attributes:
        index: which choice.
        token_id: exactly one.
        text: what it added, held-back characters of earlier tokens included.
        token_text: the token on its own, for log-probability lists; None where not requested.
        logprob: natural logarithm; None where not requested.
        alternatives: the likeliest tokens on their own and their log-probabilities; None where not requested.
        finish_reason: set on the last event of the choice.
        stop_reason: the stop string or the stop token id that ended it, as vLLM reports it; None for EOS.
    """

    index: int
    token_id: int
    text: str
    token_text: str | None
    logprob: float | None
    alternatives: list[tuple[str, float]] | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None


class Choice:
    """Turns the outputs of one request into events, and counts.

    Args:
        index: its number in the answer.
        request: as handed to the engine.
        fields: the HTTP request it belongs to.
        tokenizer: the checkpoint's.
    """

    def __init__(self, index: int, request: Request, fields: GenerationFields, tokenizer: Tokenizer) -> None:
        self.index = index
        self.request_id = request.request_id
        self.prompt_token_ids = request.token_ids[: request.prompt_len]
        self.num_characters = 0  # of text in the events so far
        self.num_cached_tokens: int | None = None  # of the prompt; None before the first token, and without caching
        self.is_finished = False
        self.phases = Phases(0.0, 0.0, 0.0)  # up to the newest token
        self.detokenize_s = 0.0  # what it took here to make text of tokens
        self._sum_logprobs = 0.0
        self._num_alternatives = alternatives_of(fields)
        self._tokenizer = tokenizer
        self._params = request.sampling
        self._own_stop_ids = frozenset(fields.stop_token_ids or ())
        self._writer = TextWriter(
            tokenizer,
            [fields.stop] if isinstance(fields.stop, str) else fields.stop or [],
            min_tokens=request.sampling.min_tokens,
            include_stop=fields.include_stop_str_in_output,
            skip_special_tokens=fields.skip_special_tokens,
        )

    @property
    def num_output(self) -> int:
        """Tokens so far."""
        return self._writer.num_tokens

    @property
    def is_searched(self) -> bool:
        """Whether it is one of the hypotheses of a beam search, which come best first."""
        return self._params.beams is not None

    @property
    def mean_logprob(self) -> float:
        """Of the tokens so far; 0 where the engine was not asked."""
        return self._sum_logprobs / max(1, self.num_output)

    def push(self, output: TokenOutput) -> TokenEvent:
        """The event for one token; after an event with a finish reason the choice takes no more."""
        began_s = time.perf_counter()
        event = self._event(output)
        self.detokenize_s += time.perf_counter() - began_s
        self._take_times(output)
        return event

    def _take_times(self, output: TokenOutput) -> None:
        """The engine says how long it all took where it ends a request, not where a stop string does."""
        before = self.phases
        self.phases = output.phases or Phases(before.queue_s, before.prefill_s, before.decode_s + (output.gap_s or 0.0))

    def _event(self, output: TokenOutput) -> TokenEvent:
        if output.phases is not None:
            self.num_cached_tokens = output.num_cached_tokens
        token = output.token
        self._sum_logprobs += token.logprob or 0.0
        text, reason, stop_reason = self._writer.push(token.token_id, output.finish_reason)
        if stop_reason is None and reason is FinishReason.STOP and token.token_id in self._own_stop_ids:
            stop_reason = token.token_id
        self.is_finished = reason is not None
        self.num_characters += len(text)
        is_told = self._num_alternatives is not None
        return TokenEvent(
            index=self.index,
            token_id=token.token_id,
            text=text,
            token_text=self._token_text(token.token_id) if is_told else None,
            logprob=token.logprob if is_told else None,
            alternatives=[(self._token_text(token_id), value) for token_id, value in token.alternatives]
            if self._num_alternatives
            else None,
            finish_reason=reason,
            stop_reason=stop_reason,
        )

    def _token_text(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id], skip_special_tokens=False)


def best_of(choices: Sequence[Choice], made: int, count: int) -> list[Choice]:
    """The answers with the highest mean log-probability, best first, numbered anew; a beam search has ranked its own.

    Args:
        choices: finished, in order of prompts.
        made: how many there are of each prompt.
        count: how many of them are kept; if all, they stay as they are.
    """
    if made == count:
        return list(choices)
    kept: list[Choice] = []
    for first in range(0, len(choices), made):
        group = choices[first : first + made]
        kept += sorted(group, key=lambda choice: 0.0 if choice.is_searched else -choice.mean_logprob)[:count]
    for index, choice in enumerate(kept):
        choice.index = index
    return kept
