"""Turns the bytes of a request body into checked fields, token ids and sampling parameters."""

import asyncio
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from bakeoff.reference_engine.core.request import BeamParams, SamplingParams, Watermark
from bakeoff.reference_engine.engine.beam_search import check_beams
from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.loading.generation_config import SamplingDefaults
from bakeoff.reference_engine.loading.tokenizer import Tokenizer
from bakeoff.reference_engine.scheduling.limits import Limits
from bakeoff.reference_engine.serving.openai_api.combinations import check_combinations, max_tokens_of
from bakeoff.reference_engine.serving.openai_api.fields import (
    NEUTRAL,
    ChatFields,
    CompletionFields,
    GenerationFields,
    alternatives_of,
    answers_of,
    candidates_of,
    is_echo_alone,
)
from bakeoff.reference_engine.serving.openai_api.tools import Tools, with_parsed_arguments

NEUTRAL_SAMPLING = SamplingDefaults()
FieldsT = TypeVar("FieldsT", bound=GenerationFields)

_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions
MAX_PROMPTS = 256  # per request
_INLINE_MESSAGES = 100  # rendered in about 0.3 ms
_NOT_VARIABLES = {"messages", "self"}  # of a chat template: a field of the body, and a reserved word of Jinja


def parse_body(body: bytes, kind: type[FieldsT]) -> FieldsT:
    """Decodes and checks one body.

    Raises:
        RequestError: 400, naming the field, for bad JSON, wrong types, unknown and unsupported fields.
    """
    try:
        fields = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise RequestError(str(error), param=_field_of(str(error))) from error
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not valid UTF-8: byte {error.object[error.start]:#04x} in a string") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply; make it flatter") from error
    for name, harmless in NEUTRAL.items():
        value = getattr(fields, name, None)
        # In Python true equals 1, in JSON it does not.
        if value is not None and not any(
            value == allowed and isinstance(value, bool) == isinstance(allowed, bool) for allowed in harmless
        ):
            raise RequestError(f"{name} is not supported here; leave it out", param=name)
    check_combinations(fields)
    return fields


def _field_of(message: str) -> str | None:
    """The field that a msgspec message names: "… unknown field `x`", "… required field `x`" or "… - at `$.x[...]`"."""
    named = re.search(r"field `(\w+)`", message) or re.search(r"`\$\.(\w+)", message)
    return named[1] if named else None


async def completion_prompts(fields: CompletionFields, tokenizer: Tokenizer, most: int) -> list[list[int]]:
    """Token ids of each prompt of a completion request: text, ids, or a list of either.

    Args:
        fields: of the request.
        tokenizer: the model's.
        most: tokens that a prompt may have.

    Raises:
        RequestError: the list mixes kinds, is empty, or is too long, or a text is.
    """
    prompt = fields.prompt
    if isinstance(prompt, str):
        prompt = [prompt]
    if not prompt:
        raise RequestError("prompt is an empty list; give text or token ids", param="prompt")
    if all(type(item) is int for item in prompt):
        return [cast("list[int]", prompt)]
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(f"{len(prompt)} prompts in one request; at most {MAX_PROMPTS}", param="prompt")
    items = cast("list[object]", prompt)
    texts = [item for item in items if isinstance(item, str)]
    lists = [item for item in items if isinstance(item, list)]
    if len(texts) + len(lists) < len(items) or not all(type(token) is int for token in itertools.chain(*lists)):
        raise RequestError("prompt must be text, a list of token ids, or a list of either", param="prompt")
    encoded = iter(await tokenizer.encode_off_loop(texts, most=most, add_special_tokens=fields.add_special_tokens))
    return [next(encoded) if isinstance(item, str) else cast("list[int]", item) for item in items]


async def chat_prompt(fields: ChatFields, tokenizer: Tokenizer, most: int, tools: Tools | None = None) -> list[int]:
    """Token ids of a chat, rendered with the checkpoint's template.

    Args:
        fields: of the request.
        tokenizer: the model's.
        most: tokens that the chat may have.
        tools: that the chat may call; None for none.

    Raises:
        RequestError: a message without a role, with content that is not text, or refused by the template; a field that
            the template does not use; or the chat is too long.
    """
    if reserved := _NOT_VARIABLES & (fields.chat_template_kwargs or {}).keys():
        raise RequestError(
            f"chat_template_kwargs cannot set {min(reserved)}; leave it out", param="chat_template_kwargs"
        )
    variables: dict[str, Any] = {"add_generation_prompt": fields.add_generation_prompt}
    if tools is not None:
        _check_used("tools", tokenizer)
        variables["tools"] = tools.described
    if fields.reasoning_effort is not None:
        _check_used("reasoning_effort", tokenizer)
        variables["reasoning_effort"] = fields.reasoning_effort
    variables |= fields.chat_template_kwargs or {}

    def render() -> str:
        messages = [_plain_message(message, index) for index, message in enumerate(fields.messages)]
        return tokenizer.render_chat(messages, **variables)

    # Other threads get the interpreter every 5 ms, so that a long chat does not block the event loop.
    text = render() if len(fields.messages) <= _INLINE_MESSAGES else await asyncio.to_thread(render)
    # The template contains the special tokens.
    (ids,) = await tokenizer.encode_off_loop([text], most=most, add_special_tokens=False)
    return ids


def _check_used(name: str, tokenizer: Tokenizer) -> None:
    """Refuses a field of a chat whose template does not contain it: the model would never see it."""
    if name not in (tokenizer.chat_template or ""):
        raise RequestError(f"the model's chat template has no place for {name}; leave it out", param=name)


def _plain_message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The message with its content as one string; OpenAI also allows a list of typed parts."""
    where = f"messages[{index}]"
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{where}.role must be a string", param="messages")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part_text(part, where) for part in cast("Sequence[Any]", content))
    if content is not None and not isinstance(content, str):
        raise RequestError(f"{where}.content must be a string or a list of text parts", param="messages")
    return {**with_parsed_arguments(message), "content": content or ""}


def _part_text(part: object, where: str) -> str:
    typed = cast("Mapping[str, Any]", part) if isinstance(part, dict) else {}
    if typed.get("type") != "text" or not isinstance(typed.get("text"), str):
        raise RequestError(f"{where}.content may only hold parts of type text", param="messages")
    return typed["text"]


def sampling_params(
    fields: GenerationFields,
    *,
    prompt_len: int,
    seed: int,
    eos_token_ids: frozenset[int],
    limits: Limits,
    grammar: str | None = None,
    beam_conflict: str | None = None,
    defaults: SamplingDefaults = NEUTRAL_SAMPLING,
) -> SamplingParams:
    """Parameters of one choice for the engine.

    Args:
        fields: the checked body.
        prompt_len: tokens of its prompt, for the default output length.
        seed: for this choice; the body's own seed is ignored.
        eos_token_ids: the model's.
        limits: the engine's.
        grammar: compiled from the body.
        defaults: for parameters that the body leaves out.
        beam_conflict: the setting that rules out beam search; None if none does.

    Raises:
        RequestError: a stop token or a biased token is outside the vocabulary, or beam search is impossible.
    """
    _check_token_ids(fields.stop_token_ids or (), limits, "stop_token_ids")
    _check_token_ids(fields.logit_bias or (), limits, "logit_bias")
    stops = frozenset(fields.stop_token_ids or ()) | (frozenset() if fields.ignore_eos else eos_token_ids)
    params = SamplingParams(
        max_tokens=_output_length(fields, prompt_len, limits),
        min_tokens=fields.min_tokens or 0,
        temperature=_or(fields.temperature, defaults.temperature),
        top_p=_or(fields.top_p, defaults.top_p),
        top_k=max(0, defaults.top_k if fields.top_k is None else fields.top_k),
        min_p=_or(fields.min_p, defaults.min_p),
        repetition_penalty=_or(fields.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        logit_bias=fields.logit_bias or {},
        watermark=_watermark(fields),
        grammar=grammar,
        seed=seed,
        stop_token_ids=stops,
        logprobs=_logprobs(fields),
        prompt_logprobs=_prompt_logprobs(fields),
        beams=_beams(fields),
    )
    check_beams(params, limits, beam_conflict)
    return params


def _output_length(fields: GenerationFields, prompt_len: int, limits: Limits) -> int:
    # OpenAI: completions default to 16 tokens, a chat continues until there is no room.
    default = _DEFAULT_COMPLETION_TOKENS if isinstance(fields, CompletionFields) else limits.max_model_len
    if is_echo_alone(fields):
        return 1  # the engine generates something always
    return max_tokens_of(fields) or min(default, max(1, limits.room_for_output(prompt_len)))


def _beams(fields: GenerationFields) -> BeamParams | None:
    if not fields.use_beam_search:
        return None
    return BeamParams(
        width=candidates_of(fields),
        length_penalty=_or(fields.length_penalty, 1.0),
        early_stopping=fields.early_stopping or False,
    )


def _watermark(fields: GenerationFields) -> Watermark | None:
    wanted = fields.watermark
    return None if wanted is None else Watermark(wanted.delta, wanted.gamma, wanted.key)


def _logprobs(fields: GenerationFields) -> int | None:
    """Alternatives that the engine must report; to choose the best of several answers, it must report its own."""
    is_ranked_here = candidates_of(fields) > answers_of(fields) and not fields.use_beam_search
    needed = 0 if is_ranked_here else None
    alternatives = alternatives_of(fields)
    return needed if alternatives is None else alternatives


def _prompt_logprobs(fields: GenerationFields) -> int | None:
    """Alternatives to report beside each token of the prompt; those of an echo are part of the answer's."""
    if fields.prompt_logprobs is None and isinstance(fields, CompletionFields) and fields.echo:
        return fields.logprobs
    return fields.prompt_logprobs


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _check_token_ids(token_ids: Collection[int], limits: Limits, param: str) -> None:
    for token in token_ids:
        if not 0 <= token < limits.vocab_size:
            raise RequestError(
                f"{param} has token id {token}, which is outside the vocabulary of {limits.vocab_size}", param=param
            )
