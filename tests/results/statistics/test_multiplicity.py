"""Several metrics at once: Holm, worked by hand."""

import pytest

from bakeoff.results.statistics.multiplicity import holm


def test_holm_worked_by_hand() -> None:
    """0.01, 0.02 and 0.03 of three: 0.03, 0.04, and 0.03 raised to the previous value."""
    assert holm({"b": 0.02, "a": 0.01, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.04, "c": 0.04})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}
    assert holm({}) == {}
