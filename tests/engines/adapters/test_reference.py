"""Adapter of the reference engine: command line."""

import asyncio
import dataclasses
import importlib.util
import sys
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bakeoff.engines import Deployment, EngineSpec, Launch, Model, Setup, Speculation, attached
from bakeoff.engines.adapters.reference import ReferenceEngine, ReferenceOptions
from bakeoff.engines.errors import BadOption, ModelNotFound, NotInstalled
from bakeoff.installation import how_to_install
from bakeoff.reference_engine.__main__ import build_parser
from bakeoff.reference_engine.core.config import EngineConfig

MODEL = Model("smol", "/models/smol", "0" * 64)
FIXED = ("serve", "--model", "/models/smol", "--served-model-name", "smol", "--host", "127.0.0.1", "--port", "9000")
OPTIONS = {
    "load_format": "dummy",
    "generation_config": "none",
    "device": "cpu",
    "block_size": 32,
    "num_blocks": 100,
    "kv_cache_memory_bytes": 1 << 20,
    "preemption": "swap",
    "swap_memory_bytes": 1 << 20,
    "priority_patience_steps": 9,
    "max_queue": 5,
    "attention_window": 64,
    "attention_sinks": 4,
    "cuda_graphs": False,
    "batch_invariant": False,
    "adaptive_speculation": False,
    "overlap": False,
    "threads": 2,
    "data_parallel_size": 2,
    "context_parallel_size": 2,
    "expert_parallel": False,
    "max_mixed_tokens": 512,
    "drain_timeout_s": 3,
    "profile_dir": "/profiles",
    "step_log_dir": "/steps",
    "ablation": "static_batching,slow:0.1",
}
SPEC = {
    "dtype": "float32",
    "quantization": "none",
    "kv_cache_dtype": "int8",
    "max_model_len": 2048,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "enable_prefix_caching": False,
    "cpu_offload_gb": 4.5,
}


def made(model: Model = MODEL, **settings: Any) -> ReferenceEngine:
    spec = {name: value for name, value in settings.items() if name in EngineSpec.__struct_fields__}
    own = {name: value for name, value in settings.items() if name not in spec}
    return ReferenceEngine(Setup(model, EngineSpec(**spec), msgspec.convert(own, ReferenceOptions)))


def launch(**settings: Any) -> Launch:
    command = made(**settings).launch(9000)
    assert command is not None
    return command


def test_without_settings_only_what_it_must_know() -> None:
    assert launch().argv == (sys.executable, "-m", "bakeoff.reference_engine", *FIXED)
    assert launch().port == 9000
    assert launch().ready_path == "/health"


@pytest.mark.parametrize(("name", "value"), {**OPTIONS, **SPEC}.items())
def test_each_setting_is_one_flag_with_its_value(name: str, value: object) -> None:
    flag = name.replace("_", "-")
    shown = (f"--no-{flag}",) if value is False else (f"--{flag}", str(value))
    assert launch(**{name: value}).argv[3:] == (*FIXED, *shown)


def test_every_setting_of_the_engine_is_an_option() -> None:
    settings = {field.name for field in dataclasses.fields(EngineConfig)}
    known = {*ReferenceOptions.__struct_fields__, *EngineSpec.__struct_fields__}
    assert settings - known == {"model", "served_model_name", "host", "port", "gpu_memory_utilization"}


def test_a_switch_that_is_on_is_a_flag_without_a_value() -> None:
    assert launch(enable_prefix_caching=True).argv[3:] == (*FIXED, "--enable-prefix-caching")


def test_chunked_prefill_is_a_switch() -> None:
    assert launch(enable_chunked_prefill=True).argv[3:] == (*FIXED, "--enable-chunked-prefill")
    assert launch(enable_chunked_prefill=False).argv[3:] == (*FIXED, "--no-enable-chunked-prefill")


def test_the_fraction_of_memory_has_another_name() -> None:
    argv = launch(memory_fraction=0.8).argv[3:]
    assert argv == (*FIXED, "--gpu-memory-utilization", "0.8")
    assert build_parser().parse_args(argv).gpu_memory_utilization == 0.8


@pytest.mark.parametrize(
    ("speculation", "text"),
    [
        (Speculation("ngram", 4), "ngram:4"),
        (Speculation("draft", 3, "/models/a:b"), "draft:3:/models/a:b"),
        (Speculation("eagle3", 4, "/models/head"), "eagle:4:/models/head"),
    ],
)
def test_speculation_is_one_flag(speculation: Speculation, text: str) -> None:
    argv = launch(speculation=speculation).argv[3:]
    assert argv == (*FIXED, "--speculation", text)
    assert build_parser().parse_args(argv).speculation == text


@pytest.mark.parametrize(
    ("speculation", "reason"),
    [
        (Speculation("mtp", 2), "it knows the methods ngram, draft, eagle3, not 'mtp'"),
        (Speculation("ngram", 2, "/m"), "ngram does not take the folder of a draft model"),
        (Speculation("draft", 2), "draft needs the folder of a draft model, speculation.model"),
    ],
)
def test_speculation_that_it_does_not_know_is_refused(speculation: Speculation, reason: str) -> None:
    with pytest.raises(BadOption, match=reason):
        made(speculation=speculation)


def test_a_cache_dtype_of_other_engines_is_refused_with_its_own() -> None:
    with pytest.raises(BadOption, match="cannot be told kv_cache_dtype: it knows auto, int8, fp8, int4, not 'q8_0'"):
        made(kv_cache_dtype="q8_0")


def test_every_setting_is_a_flag_that_the_engine_knows() -> None:
    """The adapter cannot import the engine, so this test compares the two."""
    assert set(OPTIONS) == set(ReferenceOptions.__struct_fields__)
    spelt = {name for name, spelling in ReferenceEngine.spellings.items() if callable(spelling)}
    assert set(SPEC) == spelt - {"enable_chunked_prefill", "memory_fraction", "speculation"}
    values = {**OPTIONS, **SPEC}
    parsed = vars(build_parser().parse_args(launch(**values).argv[3:]))
    assert {name: parsed[name] for name in values} == values
    assert (parsed["model"], parsed["served_model_name"], parsed["port"]) == ("/models/smol", "smol", 9000)


def test_requests_use_the_name_that_it_is_started_with() -> None:
    assert made().model_id == "smol"
    setup = Setup(MODEL, options=ReferenceOptions(), deployment=Deployment(served_model_name="other"))
    started = ReferenceEngine(setup).launch(9000)
    assert started is not None
    assert ReferenceEngine(setup).model_id == "other"
    assert started.argv[started.argv.index("--served-model-name") + 1] == "other"


def test_given_an_address_it_is_not_launched_and_needs_no_folder() -> None:
    deployment = Deployment(url="http://127.0.0.1:8000/v1/")
    engine = ReferenceEngine(Setup(Model("smol"), options=ReferenceOptions(), deployment=deployment))
    assert engine.url == "http://127.0.0.1:8000"
    assert engine.launch(9000) is None


def test_without_folder_or_address_it_says_what_is_missing() -> None:
    engine = made(Model("smol"))
    assert engine.url is None
    with pytest.raises(ModelNotFound, match=r"engine 'reference' needs a model's files; set path in \[model\]"):
        engine.launch(9000)


def test_it_is_described_and_its_cache_emptied_by_its_own_endpoints() -> None:
    description = {"version": "0.1.0", "torch_version": "2.13", "max_num_seqs": 64}
    resets: list[str] = []

    async def version(_: web.Request) -> web.Response:
        return web.json_response(description)

    async def reset(request: web.Request) -> web.Response:
        resets.append(request.path)
        return web.Response()

    async def ask() -> None:
        app = web.Application()
        app.router.add_get("/version", version)
        app.router.add_post("/reset_prefix_cache", reset)
        async with TestServer(app) as server:
            engine_server = attached(str(server.make_url("")).rstrip("/"))
            assert await made().describe(engine_server) == description
            assert await made().reset_cache(engine_server)
        assert await made().describe(engine_server) == {}, "what is wrong with it shows in the trial"
        assert not await made().reset_cache(engine_server)

    asyncio.run(ask())
    assert resets == ["/reset_prefix_cache"]


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(NotInstalled) as caught:
        launch()
    assert str(caught.value) == f"the reference engine is not installed here; run: {how_to_install('engine')}"
