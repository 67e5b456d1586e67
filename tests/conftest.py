"""What tests of several packages need."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from engines import secrets

_MEMORY = Path("/dev/shm")
_MEMORY_NEEDED_BYTES = 8 << 30

# What the suite asks for must not depend on whether there is a GPU: what needs one is measured in benchmarks/gpu.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported, which transformers does
# Read when NumPy is first imported. The suite's matrices are small: further threads of OpenBLAS only wait, and busily.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.pop("PYTEST_ADDOPTS", None)  # said of this session, not of those that tests of the plugin start
# A sync to a disk costs milliseconds, one to memory nothing, and a run syncs often. What is durable is tested by
# benchmarks/crash.
if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _MEMORY_NEEDED_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

settings.register_profile("ci", max_examples=20, deadline=None, derandomize=True, database=None)
settings.register_profile("nightly", max_examples=500, deadline=None)
settings.load_profile("ci")  # instead of it: pytest --hypothesis-profile=nightly


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process has once been told stays masked in it; tests share a process."""
    monkeypatch.setattr(secrets, "_known", set())


@pytest.fixture(scope="session", autouse=True)
def _children_ignore_no_signals() -> None:
    """Under nohup or as a background job, handle what this process was told to ignore.

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
