"""Prompt tokens served from the prefix cache, as reported in the engine's answers."""

from collections.abc import Sequence
from typing import NamedTuple

from bakeoff.results.records import RequestRecord


class PromptTokens(NamedTuple):
    """Prompt tokens over several requests."""

    cached: int
    total: int


def prompt_tokens(requests: Sequence[RequestRecord]) -> PromptTokens | None:
    """Count the prompt tokens of the answered requests; None if the engine does not report cached tokens.

    Some engines (vLLM) omit the number if it is 0, so it counts as 0 if any answer has it. A prompt that the engine did
    not count has its planned length.

    Args:
        requests: without warm-up.
    """
    if all(request.cached_tokens is None for request in requests):
        return None
    answered = [request for request in requests if request.chunk_ns or request.cached_tokens is not None]
    return PromptTokens(
        cached=sum(request.cached_tokens or 0 for request in answered),
        total=sum(request.prompt_tokens or request.requested_input_tokens or 0 for request in answered),
    )
