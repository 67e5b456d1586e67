"""Adapter of ``transformers serve``: command line."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bakeoff.engines import Deployment, EngineSpec, Launch, Model, Setup, attached
from bakeoff.engines.adapters.transformers import TransformersEngine, TransformersOptions
from bakeoff.engines.errors import BadOption, ModelNotFound, NotInstalled
from bakeoff.installation import how_to_install

MODEL = Model("smol", "/models/smol")


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment with package transformers and those of its server."""
    (tmp_path / "bin").mkdir()
    for name in ("python", "transformers"):
        (tmp_path / "bin" / name).touch()
    server = {"fastapi": "0.163.2", "openai": "3.51.0", "uvicorn": "0.54.0"}
    for name, version in {"transformers": "5.23.0", "torch": "2.13.0", **server}.items():
        info = tmp_path / f"lib/python3.11/site-packages/{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return tmp_path


def made(model: Model = MODEL, deployment: Deployment = Deployment(), **settings: Any) -> TransformersEngine:  # noqa: B008
    spec = {name: value for name, value in settings.items() if name in EngineSpec.__struct_fields__}
    own = {name: value for name, value in settings.items() if name not in spec}
    return TransformersEngine(Setup(model, EngineSpec(**spec), msgspec.convert(own, TransformersOptions), deployment))


def launch(venv: Path, **settings: Any) -> Launch:
    command = made(deployment=Deployment(environment=str(venv)), **settings).launch(9000)
    assert command is not None
    return command


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({}, ()),
        ({"dtype": "bfloat16"}, ("--dtype", "bfloat16")),
        ({"quantization": "bnb-4bit"}, ("--quantization", "bnb-4bit")),
        ({"seed": 7}, ("--default-seed", "7")),
        ({"device": "cpu"}, ("--device", "cpu")),
        ({"continuous_batching": True}, ("--continuous-batching",)),
        ({"continuous_batching": False}, ()),
        ({"attn_implementation": "sdpa"}, ("--attn-implementation", "sdpa")),
        ({"cb_block_size": 32}, ("--cb-block-size", "32")),
        ({"cb_num_blocks": 100}, ("--cb-num-blocks", "100")),
        ({"max_num_batched_tokens": 512}, ("--cb-max-batch-tokens", "512")),
        ({"memory_fraction": 0.5}, ("--cb-max-memory-percent", "0.5")),
    ],
)
def test_each_setting_is_one_flag(venv: Path, settings: dict[str, object], flags: tuple[str, ...]) -> None:
    fixed = (str(venv / "bin/transformers"), "serve", "/models/smol", "--host", "127.0.0.1", "--port", "9000")
    assert launch(venv, **settings).argv == (*fixed, *flags)


@pytest.mark.parametrize("settings", [{"max_num_seqs": 8}, {"tensor_parallel_size": 2}, {"quantization": "awq"}])
def test_unsupported_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(BadOption, match=f"engine 'transformers' cannot be told {next(iter(settings))}: "):
        made(**settings)


def test_a_local_folder_is_never_looked_up_on_a_hub(venv: Path) -> None:
    assert launch(venv).env["HF_HUB_OFFLINE"] == "1"
    assert launch(venv).port == 9000


def test_a_given_program_is_started_instead(tmp_path: Path) -> None:
    started = made(deployment=Deployment(program=str(tmp_path / "own"))).launch(9000)
    assert started is not None
    assert started.argv[:3] == (str(tmp_path / "own"), "serve", "/models/smol")


def test_requests_use_the_folder_since_it_refuses_any_other_name() -> None:
    assert made().model_id == "/models/smol"
    assert made(Model("smol"), Deployment(url="http://x")).model_id == "smol"
    assert made(deployment=Deployment(url="http://x", served_model_name="hf/smol")).model_id == "hf/smol"


def test_given_an_address_it_is_not_launched_and_this_machines_versions_are_not_claimed_for_it() -> None:
    engine = made(Model("smol"), Deployment(url="http://127.0.0.1:8000/v1"))
    assert engine.url == "http://127.0.0.1:8000"
    assert engine.launch(9000) is None
    assert asyncio.run(engine.describe(attached(engine.url))) == {}


def test_launched_it_is_described_by_the_packages_it_runs_with(venv: Path) -> None:
    engine = made(deployment=Deployment(environment=str(venv)))
    description = asyncio.run(engine.describe(attached("http://127.0.0.1:1")))
    assert description == {"version": "5.23.0", "torch": "2.13.0"}


def test_without_folder_or_address_it_says_what_is_missing(venv: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"engine 'transformers' needs a model's files; set path in \[model\]"):
        made(Model("smol"), Deployment(environment=str(venv))).launch(9000)


def test_without_the_program_it_says_how_to_install_it(venv: Path) -> None:
    (venv / "bin/transformers").unlink()
    with pytest.raises(NotInstalled) as caught:
        launch(venv)
    assert str(caught.value) == f"transformers is not installed here; run: {how_to_install('hf')}"


def test_without_packages_of_the_server_it_names_them(venv: Path) -> None:
    for name in ("fastapi", "uvicorn"):
        shutil.rmtree(next(venv.glob(f"lib/*/site-packages/{name}-*.dist-info")))
    with pytest.raises(NotInstalled) as caught:
        launch(venv)
    assert str(caught.value) == f"transformers serve also needs fastapi, uvicorn; run: {how_to_install('hf')}"
