"""Fields that are valid alone but not together."""

from collections.abc import Sequence
from typing import Any

from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.serving.openai_api.fields import (
    ChatFields,
    CompletionFields,
    GenerationFields,
    answers_of,
    candidates_of,
)
from bakeoff.reference_engine.serving.openai_api.structured_output import wishes_of


def max_tokens_of(fields: GenerationFields) -> int | None:
    """The requested output length; chat's newer name has precedence."""
    newer = fields.max_completion_tokens if isinstance(fields, ChatFields) else None
    return newer if newer is not None else fields.max_tokens


def check_combinations(fields: GenerationFields) -> None:
    """Refuses fields that contradict each other.

    Raises:
        RequestError: 400, naming one of them.
    """
    max_tokens = max_tokens_of(fields)
    if max_tokens is not None and (fields.min_tokens or 0) > max_tokens:
        raise RequestError(f"min_tokens {fields.min_tokens} is more than max_tokens", param="min_tokens")
    if isinstance(fields, CompletionFields):
        _check_echo(fields)
    if isinstance(fields, ChatFields) and fields.top_logprobs and not fields.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    if fields.prompt_logprobs is not None and fields.stream:
        raise RequestError("prompt_logprobs are not in streams; leave out stream", param="prompt_logprobs")
    _check_best_of(fields)
    wishes = [param for param, _, _ in wishes_of(fields)]
    _check_beam_search(fields, wishes)
    _check_structured_output(fields, wishes)


def _check_echo(fields: CompletionFields) -> None:
    if fields.max_tokens == 0 and not fields.echo:
        raise RequestError("max_tokens 0 needs echo: true; there would be no answer", param="max_tokens")
    if fields.echo and fields.stream and (fields.logprobs is not None or fields.max_tokens == 0):
        raise RequestError("echo with logprobs, or without output, is not in streams; leave out stream", param="echo")
    if fields.echo and fields.use_beam_search:
        raise RequestError("echo contradicts use_beam_search; leave out one of the two", param="echo")


def _check_best_of(fields: GenerationFields) -> None:
    num_candidates, num_answers = candidates_of(fields), answers_of(fields)
    if num_candidates < num_answers:
        raise RequestError(f"best_of {num_candidates} is less than n {num_answers}", param="best_of")
    if num_candidates > num_answers and fields.stream:
        raise RequestError(
            "a stream cannot wait until the best answers are known; leave out stream, or best_of", param="best_of"
        )


_NEUTRAL_IN_A_SEARCH: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "stop": ([],),
}
_ONLY_IN_A_SEARCH: dict[str, tuple[Any, ...]] = {"length_penalty": (1,), "early_stopping": (False,)}


def _check_beam_search(fields: GenerationFields, wishes: Sequence[str]) -> None:
    """A search ranks whole answers by their probabilities, and has them only when it is over."""
    neutral, why = (
        (_NEUTRAL_IN_A_SEARCH, "contradicts use_beam_search")
        if fields.use_beam_search
        else (_ONLY_IN_A_SEARCH, "has no effect without use_beam_search")
    )
    for name, harmless in neutral.items():
        value = getattr(fields, name)
        if value is not None and value not in harmless:
            raise RequestError(f"{name} {why}; leave out one of the two", param=name)
    if fields.use_beam_search and wishes:
        raise RequestError(f"{wishes[0]} {why}; leave out one of the two", param=wishes[0])
    if fields.use_beam_search and candidates_of(fields) < 2:
        raise RequestError("use_beam_search needs at least 2 beams: give best_of, or n", param="best_of")


def _check_structured_output(fields: GenerationFields, wishes: Sequence[str]) -> None:
    if not wishes:
        return
    if len(wishes) > 1:
        raise RequestError(f"{' and '.join(wishes)} both say what the output must match; give one", param=wishes[1])
    if fields.ignore_eos:
        raise RequestError(f"ignore_eos and {wishes[0]} contradict each other: the output ends", param="ignore_eos")
    if fields.min_tokens:
        raise RequestError(
            f"min_tokens and {wishes[0]} contradict each other: the output ends where it matches", param="min_tokens"
        )
