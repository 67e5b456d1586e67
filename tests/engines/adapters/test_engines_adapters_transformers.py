"""``transformers serve``'s command line, option by option."""

import asyncio
import sys
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from engines import Launch, Model, attached
from engines.adapters.transformers import TransformersEngine, TransformersOptions
from engines.errors import ModelNotFound, NotInstalled

MODEL = Model("smol", "/models/smol")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which transformers is installed beside Python."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "transformers").touch()
    return tmp_path / "transformers"


def launch(**options: object) -> Launch:
    made = TransformersEngine(MODEL, msgspec.convert(options, TransformersOptions)).launch(9000)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({}, ()),
        ({"dtype": "bfloat16"}, ("--dtype", "bfloat16")),
        ({"device": "cpu"}, ("--device", "cpu")),
        ({"continuous_batching": True}, ("--continuous-batching",)),
        ({"continuous_batching": False}, ()),
        ({"attn_implementation": "sdpa"}, ("--attn-implementation", "sdpa")),
    ],
)
def test_each_option_is_one_flag(program: Path, options: dict[str, object], flags: tuple[str, ...]) -> None:
    fixed = (str(program), "serve", "/models/smol", "--host", "127.0.0.1", "--port", "9000")
    assert launch(**options).argv == (*fixed, *flags)


def test_a_local_folder_is_never_looked_up_on_a_hub(program: Path) -> None:
    assert launch().env == {"HF_HUB_OFFLINE": "1"}
    assert launch().port == 9000


def test_requests_use_the_folder_since_it_refuses_any_other_name() -> None:
    assert TransformersEngine(MODEL, TransformersOptions()).model_id == "/models/smol"
    assert TransformersEngine(Model("smol"), TransformersOptions(url="http://x")).model_id == "smol"


def test_given_an_address_it_is_not_launched_and_this_machines_versions_are_not_claimed_for_it() -> None:
    engine = TransformersEngine(Model("smol"), TransformersOptions(url="http://127.0.0.1:8000/v1"))
    assert engine.url == "http://127.0.0.1:8000"
    assert engine.launch(9000) is None
    assert asyncio.run(engine.describe(attached(engine.url))) == {}


def test_launched_it_is_described_by_the_packages_it_runs_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {"transformers": "5.23.0", "torch": "2.13.0"}.__getitem__)
    engine = TransformersEngine(MODEL, TransformersOptions())
    assert asyncio.run(engine.describe(attached("http://127.0.0.1:1"))) == {"version": "5.23.0", "torch": "2.13.0"}


def test_without_folder_or_address_it_says_what_is_missing() -> None:
    with pytest.raises(ModelNotFound, match=r"needs a model folder; set path in \[model\]"):
        TransformersEngine(Model("smol"), TransformersOptions()).launch(9000)


def test_without_the_package_it_says_how_to_install_it(program: Path) -> None:
    program.unlink()
    with pytest.raises(NotInstalled) as caught:
        launch()
    assert str(caught.value) == "transformers is not installed here; run: pip install 'bakeoff[hf]'"
