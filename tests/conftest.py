"""What tests of several packages need."""

import os
from pathlib import Path

import pytest

from engines import secrets

# What the suite asks for must not depend on whether there is a GPU: what needs one is measured in benchmarks/gpu.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.pop("PYTEST_ADDOPTS", None)  # said of this session, not of those that tests of the plugin start


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process has once been told stays masked in it; tests share a process."""
    monkeypatch.setattr(secrets, "_known", set())


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The converted SmolLM2 checkpoint; tests that ask for it carry the marker ``model``."""
    folder = os.environ.get("BAKEOFF_TEST_MODEL")
    if not folder or not Path(folder, "config.json").is_file():
        pytest.fail(f"BAKEOFF_TEST_MODEL={folder!r} is no converted checkpoint: run 'make model'", pytrace=False)
    return Path(folder)
