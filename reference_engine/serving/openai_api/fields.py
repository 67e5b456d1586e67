"""The request bodies of the OpenAI routes, with the extensions that vLLM made common. Unknown fields are refused.

There are three kinds of fields: those that work; those that OpenAI knows and that have no effect here (IGNORED,
accepted with any value); and those that would change the answer but are not implemented (NEUTRAL, accepted only with
the value that changes nothing).
"""

from typing import Annotated, Any, Literal

import msgspec

from bakeoff.reference_engine.core.request import LAST_KEY, RAREST, STEEPEST, STRONGEST, Watermark

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "stream_interval": (1,),
    "suffix": ("",),
}
"""Fields that are not implemented, and their harmless values; null is harmless too."""

IGNORED = (
    "metadata",
    "modalities",
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
Number = Annotated[int, msgspec.Meta(ge=1, le=128)]  # of answers
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Alternatives = Annotated[int, msgspec.Meta(ge=0, le=20)]  # tokens to report beside the chosen one
Bias = dict[NonNegative, Annotated[float, msgspec.Meta(ge=-100, le=100)]]
Priority = Annotated[int, msgspec.Meta(ge=-16, le=16)]  # each level waits `--priority-patience-steps` longer
Stops = Annotated[list[Annotated[str, msgspec.Meta(min_length=1)]], msgspec.Meta(max_length=16)]

# openai_api/parsing.py checks what these types do not express.
_TOKENS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_ITEMS = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}, _TOKENS]}
Prompts = Annotated[
    list[Any],
    msgspec.Meta(extra_json_schema={"items": _ITEMS, "minItems": 1, "description": "Token ids, or a list of prompts"}),
]
Message = Annotated[
    dict[str, Any],
    msgspec.Meta(extra_json_schema={"required": ["role"], "properties": {"role": {"type": "string"}}}),
]
Tool = Annotated[
    dict[str, Any],
    msgspec.Meta(
        extra_json_schema={
            "required": ["type", "function"],
            "properties": {
                "type": {"const": "function"},
                "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
            },
        }
    ),
]
ToolChoice = Annotated[
    str | dict[str, Any],
    msgspec.Meta(extra_json_schema={"description": "none, auto, required, or the function that must be called"}),
]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Options of a stream."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool | None = None


class NamedSchema(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """OpenAI's wrapping of a JSON schema; only the schema has an effect."""

    schema: dict[str, Any] | bool
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """OpenAI's request for structured output."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """vLLM's request for structured output."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    json_object: bool | None = None


_WATERMARK = Watermark()


class WatermarkFields(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Green lists; see `engine.request.Watermark`."""

    delta: Annotated[float, msgspec.Meta(ge=0, le=STRONGEST)] = _WATERMARK.delta
    gamma: Annotated[float, msgspec.Meta(ge=RAREST, le=1 - RAREST)] = _WATERMARK.gamma
    key: Annotated[int, msgspec.Meta(ge=0, le=LAST_KEY)] = _WATERMARK.key


class GenerationFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of both routes. Counts are tokens."""

    model: str | None = None
    max_tokens: Positive | None = None
    min_tokens: NonNegative | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    seed: int | None = None
    prompt_logprobs: Alternatives | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Bias | None = None
    watermark: WatermarkFields | None = None
    n: Number | None = None
    best_of: Number | None = None
    use_beam_search: bool = False
    length_penalty: Annotated[float, msgspec.Meta(ge=-STEEPEST, le=STEEPEST)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    stop: Annotated[str, msgspec.Meta(min_length=1)] | Stops | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    cache_salt: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    priority: Priority | None = None
    response_format: ResponseFormat | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    structured_outputs: StructuredOutputs | None = None
    # NEUTRAL
    stream_interval: Any = None
    # IGNORED
    metadata: Any = None
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

    prompt: str | Prompts
    logprobs: Alternatives | None = None
    add_special_tokens: bool = True
    max_tokens: NonNegative | None = None  # 0 only with echo
    echo: bool | None = None
    suffix: Any = None  # NEUTRAL


class ChatFields(GenerationFields, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    functions: Any = None  # NEUTRAL
    modalities: Any = None  # IGNORED


def is_echo_alone(fields: GenerationFields) -> bool:
    """Whether an answer is its prompt and nothing else."""
    return isinstance(fields, CompletionFields) and bool(fields.echo) and fields.max_tokens == 0


def answers_of(fields: GenerationFields) -> int:
    """Answers that each prompt gets."""
    return fields.n or 1


def candidates_of(fields: GenerationFields) -> int:
    """Answers that are generated for each prompt, of which the best are returned; also the number of beams."""
    return fields.best_of or answers_of(fields)


def alternatives_of(fields: GenerationFields) -> int | None:
    """Alternatives to report beside each chosen token; None if not even its own log-probability is reported."""
    if isinstance(fields, ChatFields):
        return (fields.top_logprobs or 0) if fields.logprobs else None
    # For completions, 0 means the chosen token's log-probability without alternatives.
    return fields.logprobs if isinstance(fields, CompletionFields) else None
