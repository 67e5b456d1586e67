"""Threads of a parallel loop that wait for each other."""

import pytest

from bakeoff.reference_engine.engine.waiting import spin_briefly


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_settings_of_the_environment_have_precedence(given, spins, monkeypatch):
    environment = dict(given)
    monkeypatch.setattr("os.environ", environment)
    spin_briefly()
    assert environment.get("GOMP_SPINCOUNT") == spins
