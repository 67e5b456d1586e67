"""Settings and fixtures that tests of several packages share."""

import gc
import os
import shutil
import signal
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
from hypothesis import settings

from bakeoff.engines import secrets

_MEMORY = Path("/dev/shm")
_MEMORY_NEEDED_BYTES = 8 << 30

# The suite must need the same with and without a GPU; benchmarks/gpu measures what runs on one.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported, which transformers does
# Read when NumPy is first imported. The suite's matrices are small: further threads of OpenBLAS would only spin.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.pop("PYTEST_ADDOPTS", None)  # meant for this session, not for those that tests of the plugin start
# Runs sync often; a sync takes milliseconds on a disk and no time in memory. Durability is tested by
# tests/acceptance/crash.
if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _MEMORY_NEEDED_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

os.fsync = lambda _: None  # takes milliseconds in some sandboxes, even in memory

gc.disable()  # until all tests are collected: each garbage collection would walk every test found so far

settings.register_profile("ci", max_examples=20, deadline=None, derandomize=True, database=None)
settings.register_profile("nightly", max_examples=500, deadline=None)
settings.load_profile("ci")  # instead of it: pytest --hypothesis-profile=nightly


_HEAVY = ("torch", "transformers", "playwright")
_STARTS = {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"}
"""Audit events of a new process."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--quick``."""
    parser.addoption("--quick", action="store_true", help="skip tests that start a process or importorskip torch")


def pytest_collection(session: pytest.Session) -> None:
    """Hide what quick tests do without: importorskip of it, or the start of a process, skips a test."""
    config = session.config
    starts_workers = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if config.getoption("--quick") and not starts_workers:
        sys.meta_path.insert(0, _NothingHeavy())
        sys.addaudithook(_skip_processes)


class _NothingHeavy(MetaPathFinder):
    """Finds some packages nowhere, as if they were not installed."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.partition(".")[0] in _HEAVY:
            raise ModuleNotFoundError(f"{fullname} is heavy", name=fullname)


def _skip_processes(event: str, _: object) -> None:
    if event in _STARTS:
        pytest.skip("it starts a process")


def pytest_collection_finish() -> None:
    """Leave what collection has made, and all imported modules, out of the garbage collections of the tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process masks every secret it has ever read, and tests share a process."""
    monkeypatch.setattr(secrets, "_known", set())


@pytest.fixture(scope="session", autouse=True)
def _children_ignore_no_signals() -> None:
    """Under nohup or as a background job, handle the signals that this process inherited as ignored.

    Children inherit ignored signals, but start with the default action of handled ones.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The converted SmolLM2 checkpoint; tests that ask for it carry the marker ``model``."""
    folder = os.environ.get("BAKEOFF_TEST_MODEL")
    if not folder or not Path(folder, "config.json").is_file():
        pytest.fail(f"BAKEOFF_TEST_MODEL={folder!r} is no converted checkpoint: run 'make model'", pytrace=False)
    return Path(folder)
