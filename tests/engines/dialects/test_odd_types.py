"""Counts of another type than documented are read where they can be, and fail no answer where they cannot."""

from typing import Any

import msgspec
import pytest

from bakeoff.engines.dialects import (
    AnthropicDialect,
    Dialect,
    LlamaCppNativeDialect,
    ResponsesDialect,
    SglangNativeDialect,
    StreamFault,
    TgiNativeDialect,
    Usage,
    VllmDialect,
)


def anthropic(output: Any) -> list[Any]:
    return [
        {"type": "message_start", "message": {"usage": {"input_tokens": "9", "cache_read_input_tokens": 4.0}}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": output}},
    ]


def responses(output: Any) -> list[Any]:
    usage = {"input_tokens": "13", "output_tokens": output, "input_tokens_details": {"cached_tokens": 4.0}}
    return [
        {"type": "response.output_text.delta", "delta": "a", "logprobs": "none"},
        {"type": "response.completed", "response": {"status": "completed", "usage": usage, "incomplete_details": "-"}},
    ]


def tgi(output: Any) -> list[Any]:
    details = {"finish_reason": "length", "generated_tokens": output, "input_length": "13"}
    return [{"token": {"id": 5, "text": "a", "logprob": "x"}, "generated_text": "a", "details": details}]


def sglang(output: Any) -> list[Any]:
    meta = {"prompt_tokens": "13", "completion_tokens": output, "cached_tokens": 4.0, "finish_reason": {"type": "stop"}}
    return [{"text": "a", "output_ids": [5], "meta_info": meta}]


def llama(output: Any) -> list[Any]:
    timings = {"cache_n": "4"}
    return [{"content": "a", "stop": True, "tokens_predicted": output, "tokens_evaluated": 13.0, "timings": timings}]


def openai(output: Any) -> list[Any]:
    usage = {"prompt_tokens": 13.0, "completion_tokens": output, "prompt_tokens_details": {"cached_tokens": "4"}}
    return [{"choices": [{"delta": {"content": "a"}}], "usage": usage}]


@pytest.mark.parametrize(
    ("dialect", "payloads", "cached"),
    [
        (AnthropicDialect(), anthropic, 4),
        (ResponsesDialect(), responses, 4),
        (TgiNativeDialect(), tgi, None),
        (SglangNativeDialect(), sglang, 4),
        (LlamaCppNativeDialect(), llama, 4),
        (VllmDialect(), openai, 4),
    ],
)
@pytest.mark.parametrize(("stated", "output"), [("1", 1), (1.0, 1), (1, 1), ([], None), (True, None)])
def test_a_count_is_read_or_absent(dialect: Dialect, payloads: Any, cached: int, stated: Any, output: int) -> None:
    reader = dialect.reader()
    events = [event for payload in payloads(stated) for event in reader.events(msgspec.json.encode(payload))]
    assert not any(isinstance(event, StreamFault) for event in events)
    usage = next(event for event in events if isinstance(event, Usage))
    assert (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens) == (13, output, cached)


def test_thinking_of_anthropics_usage_is_reasoning() -> None:
    reader = AnthropicDialect().reader()
    usage = {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 6}}
    (event,) = reader.events(msgspec.json.encode({"type": "message_delta", "delta": {}, "usage": usage}))
    assert isinstance(event, Usage)
    assert event.reasoning_tokens == 6


def test_the_end_mark_of_another_format_is_ignored() -> None:
    assert AnthropicDialect().reader().events(b"[DONE]") == []
