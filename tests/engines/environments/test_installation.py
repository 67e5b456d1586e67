"""Installation of environments with real venvs and a pip that sees only tiny packages."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bakeoff.engines.environments import RECIPES, Environment, find, install, installation, installed, remove
from bakeoff.engines.environments.installation import LOG, is_current
from bakeoff.engines.environments.lookup import MARKER, environments_folder, record
from bakeoff.engines.errors import InstallFailed, NotInstalled
from tests.engines.environments.tiny_packages import (
    QUICK_VENV,
    endless_sdist,
    only_from,
    pretend,
    recipe,
    wheel,
)
from tests.engines.processes import Held


def quiet(words: str, seconds: float) -> None:
    """Ignore progress."""


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as pip's only source, a separate cache, and venvs that are made quickly."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    only_from(folder, tmp_path / "cache", monkeypatch)
    (tmp_path / "quick_venv.py").write_text(QUICK_VENV)
    monkeypatch.setattr(installation, "_VENV", (sys.executable, str(tmp_path / "quick_venv.py")))
    return folder


@pytest.fixture(scope="class")
def progress(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[str, float]]]:
    """The progress reports of an installation, whose environment lasts as long as the class."""
    progress: list[tuple[str, float]] = []
    with pytest.MonkeyPatch.context() as patch:
        wheels = tmp_path_factory.mktemp("wheels")
        wheel(wheels, "tiny-base")
        wheel(wheels, "tiny-base", "2.0")
        wheel(wheels, "tiny-engine", "3.1", "tiny-base", "tiny-clash")
        wheel(wheels, "tiny-clash")
        only_from(wheels, tmp_path_factory.mktemp("cache"), patch)
        recipe(patch, "tiny", ("tiny-base==1.0",), ("tiny-engine==3.1",), remove=("tiny-clash",))
        assert install("tiny", lambda words, seconds: progress.append((words, seconds))).name == "tiny"
        yield progress


class TestOneThatSucceeds:
    def test_each_group_is_installed_in_its_order_and_what_clashes_is_taken_out(
        self, progress: list[tuple[str, float]]
    ) -> None:
        assert [words for words, seconds in progress if seconds == 0] == [
            "tiny: making a venv (1 of 4)",
            "tiny: pip install tiny-base==1.0 (2 of 4)",
            "tiny: pip install tiny-engine==3.1 (3 of 4)",
            "tiny: pip uninstall tiny-clash (4 of 4)",
        ]
        versions = Environment("tiny", environments_folder() / "tiny").versions()
        assert (versions["tiny-base"], versions["tiny-engine"], "tiny-clash" in versions) == ("1.0", "3.1", False)

    def test_it_holds_nothing_of_ours(self, progress: list[tuple[str, float]]) -> None:
        python = find(None, ["tiny"]).python
        code = "import importlib.util, tiny_engine; print(tiny_engine.version, importlib.util.find_spec('msgspec'))"
        done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "3.1 None\n"

    def test_its_marker_says_what_is_in_it(self, progress: list[tuple[str, float]]) -> None:
        made = record("tiny")
        assert made is not None
        assert made.requirements == RECIPES["tiny"].requirements
        assert made.removed == ("tiny-clash",)
        assert made.versions.items() >= {"tiny-engine": "3.1", "tiny-base": "1.0"}.items()
        assert made.python == ".".join(map(str, sys.version_info[:3]))
        assert made.size_bytes > 1_000_000  # pip alone

    def test_its_log_has_what_pip_said(self, progress: list[tuple[str, float]]) -> None:
        log = (environments_folder() / "tiny" / LOG).read_text()
        assert "Successfully installed tiny-clash-1.0 tiny-engine-3.1" in log
        assert "Successfully uninstalled tiny" in log

    def test_the_next_one_says_so_at_once(self, progress: list[tuple[str, float]]) -> None:
        before = (environments_folder() / "tiny" / MARKER).stat()
        again: list[str] = []
        assert install("tiny", lambda words, _: again.append(words)) == installed("tiny")
        assert again == ["tiny is installed already"]
        assert (environments_folder() / "tiny" / MARKER).stat() == before


def test_one_that_failed_says_why_in_one_line_and_the_next_begins_anew(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe(monkeypatch, "tiny", ("tiny-engine==3.1",), note="ask your index")
    wheel(wheels, "tiny-engine", "2.0")
    with pytest.raises(InstallFailed) as caught:
        install("tiny", quiet)
    folder = environments_folder() / "tiny"
    assert str(caught.value) == (
        "tiny could not be installed: ERROR: No matching distribution found for tiny-engine==3.1 (ask your index); "
        f"see {folder / LOG}"
    )
    assert "tiny-engine==3.1 (from versions: 2.0)" in (folder / LOG).read_text()
    assert installed("tiny") is None
    (folder / "left-behind").touch()
    wheel(wheels, "tiny-engine", "3.1")
    assert install("tiny", quiet).version("tiny-engine") == "3.1"
    assert not (folder / "left-behind").exists()


def test_it_is_made_anew_when_that_is_asked_for_or_the_recipe_has_changed(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = recipe(monkeypatch, "tiny", ("tiny-engine==3.1",))
    folder = pretend(old, tiny_engine="3.1")
    wheel(wheels, "tiny-engine", "3.1")
    wheel(wheels, "tiny-engine", "3.2")
    (folder / "of-the-first").touch()
    assert install("tiny", quiet, again=True).version("tiny-engine") == "3.1"
    assert not (folder / "of-the-first").exists()
    new = recipe(monkeypatch, "tiny", ("tiny-engine==3.2",))
    assert not is_current(new)
    assert install("tiny", quiet).version("tiny-engine") == "3.2"
    assert is_current(new)


def test_what_was_installed_can_be_removed(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pretend(recipe(monkeypatch, "tiny", ("tiny-engine==3.1",)), tiny_engine="3.1")
    assert remove("tiny") > 0
    assert not folder.exists()
    with pytest.raises(NotInstalled, match="tiny is not installed; installed: none"):
        remove("tiny")
    with pytest.raises(NotInstalled, match="unknown environment 'tinny'"):
        remove("tinny")


def test_an_environment_without_its_engine_is_not_marked(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe(monkeypatch, "tiny", ("tiny-base==1.0",), distribution="tiny-engine")
    wheel(wheels, "tiny-base")
    with pytest.raises(InstallFailed, match=r"tiny could not be installed: pip left no tiny-engine in "):
        install("tiny", quiet)
    assert installed("tiny") is None


@pytest.mark.usefixtures("wheels")
def test_a_full_disk_is_found_before_anything_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    old = recipe(monkeypatch, "tiny", ("tiny-engine==3.1",))
    pretend(old, tiny_engine="3.1")
    recipe(monkeypatch, "tiny", ("tiny-engine==3.2",), disk_bytes=10**18)
    progress: list[str] = []
    with pytest.raises(InstallFailed, match=r"tiny needs 1000000000\.0 GB of disk, and .*environments has .* GB free"):
        install("tiny", lambda words, _: progress.append(words))
    assert progress == []
    assert installed("tiny") is not None  # the old one


@pytest.mark.usefixtures("wheels")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe(monkeypatch, "tiny", ("tiny-engine==3.1",))
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(InstallFailed, match=r"tiny could not be installed: .*; XDG_CACHE_HOME moves the folder"):
        install("tiny", quiet)


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(NotInstalled, match=r"unknown environment 'vllm_cpu'; did you mean 'vllm-cpu'\? known: "):
        install("vllm_cpu", quiet)


INSTALLER = """
import sys
from bakeoff.engines.environments import RECIPES, Recipe, install, installation
installation._VENV = (sys.executable, sys.argv[1])
RECIPES["tiny"] = Recipe("tiny", "tiny", (("endless==1.0",),), "endless")
install("tiny", lambda words, seconds: None)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_two_at_once_are_refused_and_whatever_ends_one_ends_its_compiler(
    number: signal.Signals, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless_sdist(wheels, "endless")
    recipe(monkeypatch, "tiny", ("endless==1.0",), disk_bytes=10**18)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    monkeypatch.setenv("BAKEOFF_TEST_FIFO", str(fifo))
    argv = [sys.executable, "-c", INSTALLER, str(tmp_path / "quick_venv.py")]
    root = Path(__file__).parents[3]
    with (
        subprocess.Popen(argv, cwd=root, stderr=subprocess.DEVNULL) as installer,
        Held(int(fifo.read_text())) as compiler,
    ):
        with pytest.raises(InstallFailed, match="tiny is being installed by another process; wait for it"):
            install("tiny", quiet)
        installer.send_signal(number)
        assert installer.wait(20) != 0
        assert compiler.gone_within(20)
    assert installed("tiny") is None
    _until_unlocked()
    with pytest.raises(InstallFailed, match="of disk"):  # and not: is being installed
        install("tiny", quiet)


def _until_unlocked() -> None:
    """Wait for the lock, which the guard holds until it has ended, later than the compiler."""
    with (environments_folder() / ".tiny.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def test_markers_of_today_are_read(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments outlive versions of Bakeoff: this test fails if the marker changes incompatibly."""
    folder = pretend(recipe(monkeypatch, "tiny", ("tiny-engine==3.1",)), tiny_engine="3.1")
    assert record("tiny") is not None
    marker = msgspec.json.decode((folder / MARKER).read_bytes())
    (folder / MARKER).write_bytes(msgspec.json.encode({**marker, "of_tomorrow": 1}))
    assert record("tiny") is not None
    (folder / MARKER).write_text("{")
    assert record("tiny") is None
