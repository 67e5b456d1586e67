"""Token counts as servers state them: where each is, whatever the format."""

from collections.abc import Mapping
from typing import Any

from bakeoff.engines.dialects.base import Usage
from bakeoff.engines.dialects.values import first_count

_CACHED = (
    "prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens", "prompt_cache_hit_tokens",
    "cached_tokens", "num_cached_tokens", "cache_read_input_tokens",
)  # fmt: skip
_REASONING = (
    "completion_tokens_details.reasoning_tokens", "output_tokens_details.reasoning_tokens",
    "output_tokens_details.thinking_tokens", "reasoning_tokens",
)  # fmt: skip
_IMAGES = (
    "prompt_tokens_details.image_tokens", "input_tokens_details.image_tokens",
    "prompt_tokens_details.multimodal_tokens.image", "image_tokens",
)  # fmt: skip


def stated_usage(usage: Mapping[str, Any], *, in_choice: bool = False) -> Usage:
    """The counts of a usage object."""
    reasoning = first_count(usage, *_REASONING) or None
    output = first_count(usage, "completion_tokens", "output_tokens")
    rejected = first_count(usage, "completion_tokens_details.rejected_prediction_tokens") or 0
    if output is not None and output > rejected:  # tokens of a prediction that no answer has
        output -= rejected
    return Usage(
        first_count(usage, "prompt_tokens", "input_tokens"),
        output,
        first_count(usage, *_CACHED),
        in_choice,
        reasoning,
        first_count(usage, "total_tokens") if reasoning or output is None else None,
        first_count(usage, *_IMAGES),
    )
