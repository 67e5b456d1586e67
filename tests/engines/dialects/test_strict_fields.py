"""Servers that refuse what they do not know get only fields of their own API, and the same bytes for the same seed.

The fields are those that each project documents or declares (vLLM 0.32, SGLang 0.5, TensorRT-LLM 1.x, TGI 3, llama.cpp
of November 2026, OpenAI and Anthropic of 2026), written here by hand.
"""

import json
from typing import Any

import pytest

from bakeoff.engines.dialects import (
    AnthropicDialect,
    CarriesFields,
    Dialect,
    LlamaCppDialect,
    LlamaCppNativeDialect,
    OpenAiDialect,
    OpenAiServiceDialect,
    ResponsesDialect,
    SglangDialect,
    SglangNativeDialect,
    TensorRtLlmDialect,
    TgiDialect,
    TgiNativeDialect,
    TritonDialect,
    VllmDialect,
)
from bakeoff.engines.request_shape import RequestShape, ShapedDialect
from bakeoff.harness.client.wire.plan import wire_sessions
from bakeoff.workloads import Message, PlannedSession, Session, Turn
from bakeoff.workloads.types import Image

TOOL = {"type": "function", "function": {"name": "sky", "description": "d", "parameters": {"type": "object"}}}
VALUES: dict[str, Any] = {
    "temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "frequency_penalty": 0.1, "presence_penalty": 0.1,
    "repetition_penalty": 1.1, "seed": 7, "stop": ["END"], "reasoning_effort": "low", "thinking_tokens": 1024,
    "chat_template_kwargs": {"enable_thinking": False}, "tools": [TOOL], "tool_choice": "auto",
}  # fmt: skip
CHAT = Turn(2, 5, messages=(Message("system", "s"), Message("user", "a", images=(Image(8, 8),))))
COMPLETION = Turn(2, 5, prompt="a")

SAMPLING = {"temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "stop"}
COMMON = {"model", "stream", "stream_options", *SAMPLING}
OF_CHAT = {"messages", "tools", "tool_choice", "reasoning_effort", "response_format", "logprobs", "top_logprobs"}
SERVICE_CHAT = {*COMMON, *OF_CHAT, "max_completion_tokens"}
SERVICE_COMPLETION = {*COMMON, "prompt", "max_tokens", "logprobs"}
MORE = {"top_k", "min_p", "repetition_penalty"}
VLLM = {*COMMON, *MORE, "max_tokens", "ignore_eos", "min_tokens", "return_token_ids"}
NATIVE_SGLANG = {"text", "stream", "sampling_params", "return_logprob"}
LLAMA = {*COMMON, "top_k", "min_p", "repeat_penalty", "max_tokens", "ignore_eos", "timings_per_token",
         "cache_prompt"}  # fmt: skip
FIELDS: list[tuple[Dialect, Turn, set[str]]] = [
    (OpenAiServiceDialect(), CHAT, SERVICE_CHAT),
    (OpenAiServiceDialect(), COMPLETION, SERVICE_COMPLETION),
    (OpenAiDialect(), CHAT, {*COMMON, *OF_CHAT, *MORE, "max_tokens", "chat_template_kwargs"}),
    (ResponsesDialect(), CHAT, {"model", "input", "max_output_tokens", "stream", "temperature", "top_p", "reasoning",
                                "tools", "tool_choice", "text", "include"}),
    (AnthropicDialect(), CHAT, {"model", "messages", "system", "max_tokens", "stream", "temperature", "top_p", "top_k",
                                "stop_sequences", "output_config", "thinking", "tools", "tool_choice"}),
    (VllmDialect(), CHAT, {*VLLM, *OF_CHAT, "thinking_token_budget", "chat_template_kwargs"}),
    (VllmDialect(), COMPLETION, {*VLLM, "prompt", "logprobs", "response_format"}),
    (SglangDialect(), CHAT, {*VLLM, *OF_CHAT, "chat_template_kwargs"} - {"return_token_ids"}),
    (SglangNativeDialect(), COMPLETION, NATIVE_SGLANG),
    (TensorRtLlmDialect(), CHAT, {*COMMON, *OF_CHAT, *MORE, "max_tokens", "ignore_eos", "min_tokens",
                                  "thinking_token_budget", "chat_template_kwargs", "detokenize"}),
    (TensorRtLlmDialect(), COMPLETION, {*COMMON, *MORE, "prompt", "max_tokens", "ignore_eos", "min_tokens",
                                        "logprobs", "detokenize"}),
    (TgiDialect(), CHAT, {*COMMON, *OF_CHAT, "max_tokens"} - {"reasoning_effort"}),
    (TgiNativeDialect(), COMPLETION, {"inputs", "parameters"}),
    (LlamaCppDialect(), CHAT, {*LLAMA, *OF_CHAT, "chat_template_kwargs", "typical_p", "samplers", "dry_multiplier",
                               "xtc_probability", "mirostat"}),
    (LlamaCppNativeDialect(), COMPLETION, {*LLAMA, "prompt", "n_predict", "return_tokens", "n_probs", "typical_p",
                                           "json_schema", "samplers"}),
    (TritonDialect(), COMPLETION, {"text_input", "max_tokens", "end_id", "temperature", "top_k", "top_p", "min_p",
                                   "exclude_input_in_output", "stream", "frequency_penalty", "presence_penalty",
                                   "repetition_penalty", "random_seed"}),
]  # fmt: skip


def ids(case: Any) -> str | None:
    return case.name if hasattr(case, "name") else None


@pytest.mark.parametrize(("dialect", "turn", "fields"), FIELDS, ids=ids)
def test_every_setting_stands_in_a_field_that_the_api_has(dialect: Dialect, turn: Turn, fields: set[str]) -> None:
    assert isinstance(dialect, CarriesFields)
    shape = {name: VALUES[name] for name in dialect.carriers(turn)}
    body = json.loads(ShapedDialect(dialect, RequestShape(**shape)).request(turn, "m").body)
    assert body.keys() <= fields, body.keys() - fields
    assert json.loads(ShapedDialect(dialect, RequestShape()).request(turn, "m").body).keys() <= fields


@pytest.mark.parametrize(("dialect", "turn", "fields"), FIELDS, ids=ids)
def test_two_runs_send_the_same_but_for_their_ids(dialect: Dialect, turn: Turn, fields: set[str]) -> None:
    del fields
    shaped = ShapedDialect(dialect, RequestShape(headers={"X-Trace": "{session}"}))
    planned = [PlannedSession(Session(name, (turn, turn)), None) for name in "ab"]
    runs = [list(wire_sessions(planned, shaped, "m")) for _ in range(2)]
    bodies = [[turn.body for session in run for turn in session.turns] for run in runs]
    assert bodies[0] == bodies[1]
    first, second = ([session.request(0, b"").headers for session in run] for run in runs)
    for own, other in zip(first, second, strict=True):
        assert {name for name in own if own[name] != other[name]} == {"x-session-id", "x-request-id", "x-trace"}
