"""Fixtures: one realistic run, written once and only read."""

from pathlib import Path

import pytest

from bakeoff import results
from tests.results.builders import FAST, LOADS, Sheet, build_run


@pytest.fixture(scope="session")
def demo_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 engines × 4 loads × 3 repeats, one trial INVALID."""
    return build_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def demo(demo_path: Path) -> results.Run:
    """The same run, loaded."""
    return results.load(demo_path)


@pytest.fixture
def one_trial(tmp_path: Path) -> results.Run:
    """One engine, one load, one repeat: too few for an interval."""
    sheet = Sheet(engines={"only": FAST}, loads=LOADS[:1], repeats=1, requests=6, invalid=())
    return results.load(build_run(tmp_path, sheet))
