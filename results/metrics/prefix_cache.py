"""Prompt tokens served from the prefix cache, as reported in the engine's answers."""

from typing import NamedTuple

import numpy as np

from bakeoff.results.columns import UNKNOWN
from bakeoff.results.requests import Requests


class PromptTokens(NamedTuple):
    """Prompt tokens over several requests."""

    cached: int
    total: int


def prompt_tokens(requests: Requests) -> PromptTokens | None:
    """Count the prompt tokens of the answered requests; None if the engine does not report cached tokens.

    Some engines (vLLM) omit the number if it is 0, so it counts as 0 if any answer has it. A prompt that the engine did
    not count has its planned length.

    Args:
        requests: without warm-up.
    """
    cached, prompts = requests.ints("cached_tokens"), requests.ints("prompt_tokens")
    is_known = cached != UNKNOWN
    if not is_known.any():
        return None
    is_answered = is_known | (requests.chunks.counts > 0)
    lengths = np.where(prompts > 0, prompts, np.maximum(requests.ints("requested_input_tokens"), 0))
    return PromptTokens(int(cached[is_known].sum()), int(lengths[is_answered].sum()))
