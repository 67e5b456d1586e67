"""Prompt tokens that an engine took from its prefix cache, as its answers say."""

from collections.abc import Sequence
from typing import NamedTuple

from results.records import RequestRecord


class PromptTokens(NamedTuple):
    """Of some requests together."""

    cached: int
    total: int


def prompt_tokens(requests: Sequence[RequestRecord]) -> PromptTokens | None:
    """Tokens of the prompts that were answered; None where the engine does not say what it found in its cache.

    Some engines (vLLM) leave the number out where it is 0, so it counts as 0 once any answer has it. A prompt that the
    engine did not count has the length that was meant.

    Args:
        requests: without warm-up.
    """
    if all(request.cached_tokens is None for request in requests):
        return None
    answered = [request for request in requests if request.chunk_ns or request.cached_tokens is not None]
    return PromptTokens(
        cached=sum(request.cached_tokens or 0 for request in answered),
        total=sum(request.prompt_tokens or request.wanted_input_tokens or 0 for request in answered),
    )
