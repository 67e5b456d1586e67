"""An engine without JSON schema support is refused before anything starts, if the workload has schemas."""

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bakeoff.engines import Deployment, Model, engine
from bakeoff.engines.dialects import (
    AnthropicDialect,
    Dialect,
    LlamaCppDialect,
    LlamaCppNativeDialect,
    LlamaCppPythonDialect,
    OpenAiDialect,
    ReferenceDialect,
    ResponsesDialect,
    SglangDialect,
    SglangNativeDialect,
    TensorRtLlmDialect,
    TgiDialect,
    TgiNativeDialect,
    TransformersDialect,
    VllmDialect,
    holds_to_schema,
)
from bakeoff.engines.request_shape import RequestShape
from bakeoff.harness.client.wire.live_history import History
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.demands import refuse_unmet
from bakeoff.workloads import Message, Turn, tokenizer_at
from tests.workloads.small_tokenizers import checkpoint

SCHEMA = '{"type":"object"}'
CHAT = Turn(9, 3, messages=(Message("user", "Hi"),), json_schema=SCHEMA)
COMPLETION = Turn(3, 5, prompt="one two three", json_schema=SCHEMA)
ALL, CHATS, NONE = {CHAT, COMPLETION}, {CHAT}, set[Turn]()


def at(adapter: str, **options: Any) -> Any:
    return engine(adapter, Model("smol"), options, deployment=Deployment(url="http://192.0.2.7:8000")).dialect


@pytest.mark.parametrize(
    ("dialect", "held"),
    [
        (OpenAiDialect(), ALL), (ResponsesDialect(), ALL), (VllmDialect(), ALL), (ReferenceDialect(), ALL),
        (SglangDialect(), ALL), (SglangNativeDialect(), ALL), (TensorRtLlmDialect(), ALL),
        (LlamaCppDialect(), ALL), (LlamaCppNativeDialect(), ALL), (LlamaCppPythonDialect(), CHATS),
        (TgiDialect(), CHATS), (TgiNativeDialect(), ALL),
        (TransformersDialect(), NONE), (AnthropicDialect(), NONE),
    ],
    ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
def test_dialects_that_support_a_json_schema(dialect: Dialect, held: set[Turn]) -> None:
    assert {turn for turn in (CHAT, COMPLETION) if holds_to_schema(dialect.request, turn)} == held


@pytest.mark.parametrize(
    ("adapter", "options", "place", "said"),
    [
        ("vllm", {}, "approximate", "a history of token ids needs the model's tokenizer"),
        ("anthropic", {}, "", "engine 'e' takes or gives no token ids by its API"),
        ("llama_cpp", {"api": "openai"}, "", "engine 'e' takes or gives no token ids by its API"),
        ("llama_cpp", {"api": "openai", "token_ids": True}, "", None),
        ("llama_cpp", {}, "", None),
        ("vllm", {}, "", None),
    ],
)
def test_a_history_of_token_ids_needs_ids(
    adapter: str, options: dict[str, Any], place: str, said: str | None, tmp_path: Path
) -> None:
    turn = msgspec.structs.replace(CHAT, json_schema=None)
    tokenizer = tokenizer_at(place or str(checkpoint(tmp_path)))
    refusal = contextlib.nullcontext() if said is None else pytest.raises(BadExperiment, match=said)
    with refusal:
        refuse_unmet({"e": at(adapter, **options)}, [turn], "chat", tokenizer, History.LIVE_IDS)


def test_settings_that_only_chats_carry_are_refused_with_a_history_of_token_ids(tmp_path: Path) -> None:
    """Such a chat is sent as a completion."""
    served = engine(
        "vllm", Model("smol"), {}, deployment=Deployment(url="http://192.0.2.7:8000"),
        request=RequestShape(reasoning_effort="low"),
    )  # fmt: skip
    chats, tokenizer = [msgspec.structs.replace(CHAT, json_schema=None)], tokenizer_at(str(checkpoint(tmp_path)))
    refuse_unmet({"e": served.dialect}, chats, "chat", tokenizer, History.LIVE)
    with pytest.raises(BadExperiment, match="completions of the vllm format have no field for reasoning_effort"):
        refuse_unmet({"e": served.dialect}, chats, "chat", tokenizer, History.LIVE_IDS)


def test_the_refusal_names_engine_workload_and_what_to_do() -> None:
    engines = {"a": at("vllm"), "slow": at("anthropic")}
    with pytest.raises(BadExperiment) as refused:
        refuse_unmet(engines, [CHAT], "structured-output")
    assert str(refused.value) == (
        "engine 'slow' cannot hold chats to a JSON schema, which workload 'structured-output' needs; "
        "remove the engine, or choose another workload or api"
    )


def test_the_refusal_depends_on_the_api() -> None:
    refuse_unmet({"tgi": at("tgi", api="openai")}, [CHAT], "mine")
    with pytest.raises(BadExperiment, match="engine 'tgi' cannot hold completions to a JSON schema"):
        refuse_unmet({"tgi": at("tgi", api="openai")}, [COMPLETION], "mine")


def test_a_workload_without_schemas_refuses_no_engine() -> None:
    free = [Turn(9, 3, messages=CHAT.messages), Turn(3, 5, prompt="one two three")]
    refuse_unmet({"a": at("anthropic"), "b": at("transformers")}, free, "chat")
