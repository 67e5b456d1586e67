"""Adapter of llama-cpp-python: command line and overridden defaults."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bakeoff.engines import Deployment, EngineSpec, Model, Speculation, attached, check
from bakeoff.engines.adapters.llama_cpp_python import LlamaCppPythonEngine
from bakeoff.engines.errors import BadOption
from tests.engines.adapters.llama_cpp_scenes import CANNOT, PROGRAM, launch, made, model_in
from tests.engines.fakes.llama_cpp_python import FakeLlamaCppPython
from tests.engines.fakes.llama_cpp_python import arguments as python_arguments
from tests.engines.fakes.stage import running

PYTHON_SPEC = {
    "dtype": ("bfloat16", ()),
    "kv_cache_dtype": ("q8_0", ("--type_k", "8", "--type_v", "8")),
    "max_model_len": (2048, ("--n_ctx", "2048")),
    "max_num_seqs": (1, ()),
    "max_num_batched_tokens": (512, ("--n_batch", "512", "--n_ubatch", "512")),
    "tensor_parallel_size": (2, ("--split_mode", "2", "--tensor_split", "1", "1")),
    "pipeline_parallel_size": (2, ("--split_mode", "1", "--tensor_split", "1", "1")),
    "enable_prefix_caching": (True, ()),
    "enable_chunked_prefill": (True, ()),
    "speculation": (
        Speculation("ngram", 5), ("--draft_model", "prompt-lookup-decoding", "--draft_model_num_pred_tokens", "5"),
    ),
    "seed": (7, ("--seed", "7")),
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return model_in(tmp_path)


@pytest.mark.parametrize(("name", "given"), PYTHON_SPEC.items())
def test_each_setting_is_its_flag(model: Model, name: str, given: tuple[Any, tuple[str, ...]]) -> None:
    value, flags = given
    argv = launch(model, "llama_cpp_python", **{name: value}).argv
    assert argv[:3] == (PROGRAM, "-m", "llama_cpp.server")
    assert argv[len(argv) - len(flags) :] == flags
    python_arguments().parse_args(argv[3:])


def test_all_settings_are_covered() -> None:
    assert {*PYTHON_SPEC, *CANNOT} == set(EngineSpec.__struct_fields__) == set(LlamaCppPythonEngine.spellings)


def test_new_requests_do_not_kill_old_ones_and_logits_are_not_kept(model: Model) -> None:
    """Both are its defaults. The chat template is the model's own; by default the server guesses it by name."""
    parsed = python_arguments().parse_args(launch(model, "llama_cpp_python").argv[3:])
    assert (parsed.interrupt_requests, parsed.logits_all, parsed.chat_format) == (False, False, "chat_template.default")
    assert (parsed.model, parsed.model_alias, parsed.port) == (f"{model.path}/model-bf16.gguf", "smol", 9000)


def test_options_are_flags(model: Model) -> None:
    options = {"threads": 1, "threads_batch": 2, "n_gpu_layers": -1, "flash_attention": True, "logits_all": True}
    argv = launch(model, "llama_cpp_python", chat_format="chatml", **options).argv
    parsed = python_arguments().parse_args(argv[3:])
    assert (parsed.n_threads, parsed.n_threads_batch, parsed.n_gpu_layers) == (1, 2, -1)
    assert (parsed.flash_attn, parsed.logits_all, parsed.chat_format) == (True, True, "chatml")
    assert {*options, "chat_format"} == set(LlamaCppPythonEngine.Options.__struct_fields__)


def test_variables_that_it_prefers_to_its_flags_say_the_same(model: Model) -> None:
    command = launch(model, "llama_cpp_python", Deployment(program=PROGRAM, env={"PORT": "1", "OTHER": "2"}))
    assert command.env == {
        "HF_HUB_OFFLINE": "1", "HOST": "127.0.0.1", "PORT": "9000", "OTHER": "2",
    }  # fmt: skip


def test_it_is_ready_when_it_names_its_model_and_has_no_metrics(model: Model) -> None:
    assert launch(model, "llama_cpp_python").ready_path == "/v1/models"
    assert made(model, "llama_cpp_python").metrics is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_num_seqs": 2}, "it answers one request at a time"),
        ({"enable_prefix_caching": False}, "it knows True, not False"),
        ({"speculation": Speculation("draft", 3, "/m")}, "it knows ngram only"),
        ({"quantization": "q4_0"}, "it is in the GGUF file"),
        ({"kv_cache_dtype": "fp8"}, "it knows auto, f32"),
    ],
)
def test_unsupported_settings_are_refused_before_a_launch(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadOption) as caught:
        check("llama_cpp_python", {}, EngineSpec(**settings), Deployment())
    assert reason in str(caught.value)


def test_its_version_is_on_its_openapi_page(model: Model) -> None:
    async def scene() -> dict[str, Any]:
        async with running(FakeLlamaCppPython()) as url:
            return await made(model, "llama_cpp_python").describe(attached(url))

    assert asyncio.run(scene()) == {"version": "0.3.36"}
