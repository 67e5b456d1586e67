"""The request bodies of the OpenAI routes, with the extensions that vLLM made common. Unknown fields are refused.

Three kinds of fields: those that work; those that OpenAI knows and that have no effect here (IGNORED, accepted with
any value); and those that would change the answer but are not implemented (NEUTRAL, accepted only with the value that
changes nothing).
"""

from typing import Annotated, Any

import msgspec

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "functions": ([],),
    "logit_bias": ({},),
    "min_p": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "stream_interval": (1,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}
"""Fields that are not implemented, and their harmless values; null is harmless too."""

IGNORED = (
    "metadata",
    "modalities",
    "parallel_tool_calls",
    "priority",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "spaces_between_special_tokens",
    "store",
    "user",
)
"""Fields without effect here."""

Positive = Annotated[int, msgspec.Meta(ge=1)]
NonNegative = Annotated[int, msgspec.Meta(ge=0)]
Stops = Annotated[list[Annotated[str, msgspec.Meta(min_length=1)]], msgspec.Meta(max_length=16)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a stream carries besides tokens."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool | None = None


class GenerationFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both routes take. Counts are tokens."""

    model: str | None = None
    max_tokens: Positive | None = None
    min_tokens: NonNegative | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    seed: int | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    stop: Annotated[str, msgspec.Meta(min_length=1)] | Stops | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    cache_salt: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    # NEUTRAL
    frequency_penalty: Any = None
    logit_bias: Any = None
    min_p: Any = None
    presence_penalty: Any = None
    repetition_penalty: Any = None
    response_format: Any = None
    stream_interval: Any = None
    # IGNORED
    metadata: Any = None
    priority: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    request_id: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    spaces_between_special_tokens: Any = None
    store: Any = None
    user: Any = None


class CompletionFields(GenerationFields, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[Any]
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=1)] | None = None
    add_special_tokens: bool = True
    best_of: Any = None  # NEUTRAL
    echo: Any = None  # NEUTRAL
    suffix: Any = None  # NEUTRAL


class ChatFields(GenerationFields, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    functions: Any = None  # NEUTRAL
    tool_choice: Any = None  # NEUTRAL
    tools: Any = None  # NEUTRAL
    top_logprobs: Any = None  # NEUTRAL
    modalities: Any = None  # IGNORED
    parallel_tool_calls: Any = None  # IGNORED
