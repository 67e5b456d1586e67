"""The doctor's findings for all kinds of adapters and machines."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from bakeoff.engines import registry
from bakeoff.engines.dialects import OpenAiDialect
from bakeoff.engines.doctor import Finding, State, examine
from bakeoff.engines.environments import lookup
from bakeoff.engines.errors import NotInstalled, UnknownEngine
from bakeoff.engines.machine import Gpus, Machine, Runtime, gpus, runtime
from bakeoff.engines.server_engine import ServerEngine
from bakeoff.installation import how_to_install
from tests.engines.environments.tiny_packages import pretend, recipe

BARE = Machine(Gpus(reason="NVML sees no GPU"), (Runtime("docker", reason="it is not on PATH"),))
WITH_GPU = Machine(Gpus(("H200",)), ())


class Tiny(ServerEngine):
    """An adapter with two environments, one of them for GPUs."""

    adapter = "tiny"
    recipes = ("tiny-gpu", "tiny-cpu")
    distributions = ("tiny-engine", "tiny-engine-cpu")
    programs = ("tiny-serve",)

    @classmethod
    def dialect_for(cls, setup):  # noqa: ARG003
        return OpenAiDialect()

    def command(self) -> Sequence[str]:
        return (str(self.environment().python), "-m", "tiny")


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two recipes, nothing installed, nothing on PATH, no GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(lookup, "has_gpu", lambda: False)
    recipe(monkeypatch, "tiny-gpu", ("tiny-engine==3.1",), needs_gpu=True, note="from another index")
    recipe(monkeypatch, "tiny-cpu", ("tiny-engine-cpu==3.0",))


def examined(kind: type, machine: Machine, patch: pytest.MonkeyPatch) -> Finding:
    patch.setitem(registry._OWN, "tiny", kind)
    return examine(["tiny"], machine)[0]


def test_one_that_is_not_installed_gets_the_command_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = examined(Tiny, BARE, monkeypatch)
    assert (finding.state, finding.place, finding.version) == (State.MISSING, None, None)
    assert finding.missing == ["tiny-engine or tiny-engine-cpu or tiny-serve is not installed"]
    assert finding.fix == "bakeoff engines install tiny-cpu"
    monkeypatch.setattr(lookup, "has_gpu", lambda: True)
    finding = examined(Tiny, WITH_GPU, monkeypatch)
    assert (finding.fix, finding.notes) == ("bakeoff engines install tiny-gpu", ["from another index"])


def test_one_that_is_installed_says_where_and_which_version(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(lookup.RECIPES["tiny-cpu"], tiny_engine_cpu="3.0")
    expected = Finding(adapter="tiny", state=State.READY, place="environment tiny-cpu", version="3.0")
    assert examined(Tiny, BARE, monkeypatch) == expected


def test_one_whose_recipe_has_moved_on_runs_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(lookup.RECIPES["tiny-cpu"], tiny_engine_cpu="3.0")
    recipe(monkeypatch, "tiny-cpu", ("tiny-engine-cpu==3.1",))
    finding = examined(Tiny, BARE, monkeypatch)
    assert (finding.state, finding.version) == (State.READY, "3.0")
    assert finding.notes == ["outdated; renew it with: bakeoff engines install tiny-cpu"]


def test_one_for_gpus_on_a_machine_without_is_sent_to_its_other_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(lookup.RECIPES["tiny-gpu"], tiny_engine="3.1")
    finding = examined(Tiny, BARE, monkeypatch)
    assert (finding.state, finding.place, finding.version) == (State.MISSING, "environment tiny-gpu", "3.1")
    assert (finding.missing, finding.fix) == (["an NVIDIA GPU"], "bakeoff engines install tiny-cpu")
    assert examined(Tiny, WITH_GPU, monkeypatch).state is State.READY


def test_no_command_helps_where_there_is_only_a_kind_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnlyGpu(Tiny):
        recipes = ("tiny-gpu",)

    finding = examined(OnlyGpu, BARE, monkeypatch)
    assert (finding.state, finding.fix) == (State.MISSING, None)
    assert finding.missing[-1] == "an NVIDIA GPU"


def test_a_program_on_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Program(Tiny):
        recipes = ()
        distributions = ()
        needs_gpu = True

        def command(self) -> Sequence[str]:
            return ("tiny-serve",)

    assert examined(Program, WITH_GPU, monkeypatch).missing == ["tiny-serve is not installed"]
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "tiny-serve"
    program.touch(mode=0o755)
    expected = Finding(adapter="tiny", state=State.READY, place=str(program))
    assert examined(Program, WITH_GPU, monkeypatch) == expected
    assert examined(Program, BARE, monkeypatch).missing == ["an NVIDIA GPU"]


def test_an_adapter_s_own_complaint_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Tiny):
        def command(self) -> Sequence[str]:
            raise NotInstalled("tiny has no wheels", "tiny fetch-wheels")

    pretend(lookup.RECIPES["tiny-cpu"], tiny_engine_cpu="3.0")
    finding = examined(Refusing, BARE, monkeypatch)
    assert (finding.state, finding.missing, finding.fix) == (State.MISSING, ["tiny has no wheels"], "tiny fetch-wheels")


def test_one_that_says_only_its_command_is_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnlyCommand(ServerEngine):
        adapter = "tiny"
        dialect_for = Tiny.dialect_for

        def command(self) -> Sequence[str]:
            return (sys.executable, "-m", "tiny")

    expected = Finding(adapter="tiny", state=State.READY, place="this environment")
    assert examined(OnlyCommand, BARE, monkeypatch) == expected


def test_one_that_is_only_an_address_needs_nothing_here() -> None:
    assert examine(["openai"], BARE) == [Finding(adapter="openai", state=State.ADDRESS)]


def test_the_reference_engine_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert examine(["reference"], BARE)[0].state is State.READY
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    finding = examine(["reference"], BARE)[0]
    assert (finding.state, finding.fix) == (State.MISSING, how_to_install("engine"))


class NoBase:
    """An adapter of another package that implements the protocol and nothing else."""

    adapter, model_id, notes, url, access, metrics = "tiny", "tiny", (), None, None, None
    gpus = launch = reset_cache = describe = staticmethod(lambda *_: None)
    dialect_for = Tiny.dialect_for

    class Options(__import__("msgspec").Struct, frozen=True):
        """None."""

    def __init__(self, setup):
        self.dialect = self.dialect_for(setup)


class Raising(NoBase):
    """An adapter with a bug, whose distribution is installed."""

    distributions: ClassVar = ("msgspec",)

    def __init__(self, setup):
        raise ZeroDivisionError("division by zero")


def test_adapters_of_other_packages_break_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert examined(NoBase, BARE, monkeypatch).state is State.UNKNOWN
    finding = examined(Raising, BARE, monkeypatch)
    assert finding.missing == ["its adapter fails: ZeroDivisionError: division by zero"]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An entry point to a missing module."""
    info = tmp_path / "nothing-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nothing\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{registry.ENTRY_POINTS}]\nnothing = no_module_of_that_name:Engine\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry._others.cache_clear()
    yield
    registry._others.cache_clear()


@pytest.mark.usefixtures("broken")
def test_one_that_cannot_be_loaded_stands_beside_all_others() -> None:
    findings = {finding.adapter: finding for finding in examine([], BARE)}
    assert set(findings) == set(registry.adapter_names())
    assert findings["nothing"].state is State.MISSING
    assert "cannot be loaded" in findings["nothing"].missing[0]


def test_an_unknown_name_is_an_error_with_the_nearest() -> None:
    with pytest.raises(UnknownEngine, match="unknown engine 'referense'; did you mean 'reference'"):
        examine(["transformers", "referense"], BARE)


class Nvml:
    """A machine with two GPUs."""

    def nvmlInit(self) -> None:
        """It is there."""

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes | str:
        return ("H200", b"H100")[handle]


def test_gpus_are_named_and_their_absence_has_a_reason() -> None:
    assert gpus(Nvml()) == Gpus(("H200", "H100"))

    class NoGpu(Nvml):
        def nvmlDeviceGetCount(self) -> int:
            return 0

    assert gpus(NoGpu()) == Gpus(reason="NVML sees no GPU")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (None, Runtime("docker", reason="it is not on PATH")),
        ("echo 28.1", Runtime("docker", "28.1")),
        ("echo; echo 'no daemon' >&2; exit 1", Runtime("docker", reason="no daemon")),
        ("exit 1", Runtime("docker", reason="it does not answer")),
    ],
)
def test_a_container_runtime_counts_only_when_it_answers(script: str | None, expected: Runtime, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    if script is not None:
        (tmp_path / "bin" / "docker").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / "docker").chmod(0o755)
    assert runtime("docker") == expected
