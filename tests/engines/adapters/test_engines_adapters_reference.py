"""The reference engine's command line, option by option."""

import asyncio
import importlib.util
import sys

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from engines import Launch, Model, attached
from engines.adapters.reference import ReferenceEngine, ReferenceOptions
from engines.errors import ModelNotFound, NotInstalled
from reference_engine.__main__ import build_parser

MODEL = Model("smol", "/models/smol", "0" * 64)
FIXED = ("serve", "--model", "/models/smol", "--served-model-name", "smol", "--host", "127.0.0.1", "--port", "9000")
VALUES = {
    "dtype": "float32",
    "device": "cpu",
    "max_model_len": 2048,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "block_size": 32,
    "num_blocks": 100,
    "kv_cache_memory_bytes": 1 << 20,
    "policy": "static",
    "enable_prefix_caching": False,
    "threads": 2,
}


def launch(**options: object) -> Launch:
    made = ReferenceEngine(MODEL, msgspec.convert(options, ReferenceOptions)).launch(9000)
    assert made is not None
    return made


def test_without_options_only_what_it_must_know() -> None:
    assert launch().argv == (sys.executable, "-m", "reference_engine", *FIXED)
    assert launch().port == 9000
    assert launch().ready_path == "/health"


@pytest.mark.parametrize(("name", "value"), VALUES.items())
def test_each_option_is_one_flag_with_its_value(name: str, value: object) -> None:
    flag = name.replace("_", "-")
    shown = (f"--no-{flag}",) if value is False else (f"--{flag}", str(value))
    assert launch(**{name: value}).argv[3:] == (*FIXED, *shown)


def test_a_switch_that_is_on_is_a_flag_without_a_value() -> None:
    assert launch(enable_prefix_caching=True).argv[3:] == (*FIXED, "--enable-prefix-caching")


def test_every_option_but_the_address_is_a_flag_that_the_engine_knows() -> None:
    """The adapter cannot import the engine, so this test compares the two."""
    assert set(VALUES) == set(ReferenceOptions.__struct_fields__) - {"url"}
    parsed = vars(build_parser().parse_args(launch(**VALUES).argv[3:]))
    assert {name: parsed[name] for name in VALUES} == VALUES
    assert (parsed["model"], parsed["served_model_name"], parsed["port"]) == ("/models/smol", "smol", 9000)


def test_requests_use_the_name_that_it_is_started_with() -> None:
    assert ReferenceEngine(MODEL, ReferenceOptions()).model_id == "smol"


def test_given_an_address_it_is_not_launched_and_needs_no_folder() -> None:
    engine = ReferenceEngine(Model("smol"), ReferenceOptions(url="http://127.0.0.1:8000/v1/"))
    assert engine.url == "http://127.0.0.1:8000"
    assert engine.launch(9000) is None


def test_without_folder_or_address_it_says_what_is_missing() -> None:
    engine = ReferenceEngine(Model("smol"), ReferenceOptions())
    assert engine.url is None
    with pytest.raises(ModelNotFound, match=r"needs a model folder; set path in \[model\]"):
        engine.launch(9000)


def test_it_is_described_by_its_own_version_endpoint() -> None:
    told = {"version": "0.1.0", "torch_version": "2.13", "max_num_seqs": 64}

    async def version(_: web.Request) -> web.Response:
        return web.json_response(told)

    async def ask() -> dict[str, object]:
        app = web.Application()
        app.router.add_get("/version", version)
        async with TestServer(app) as server:
            return await ReferenceEngine(MODEL, ReferenceOptions()).describe(
                attached(str(server.make_url("")).rstrip("/"))
            )

    assert asyncio.run(ask()) == told


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(NotInstalled) as caught:
        launch()
    assert str(caught.value) == "the reference engine is not installed here; run: pip install 'bakeoff[engine]'"
