"""docs/definitions.md agrees with the code: its metrics and numbers are those of the catalogue."""

from pathlib import Path

import pytest

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.metrics.percentiles import required_count
from bakeoff.results.report.sections.background import definitions
from bakeoff.results.statistics import log_t_interval
from bakeoff.results.statistics.distributions import t_quantile

DOCUMENT = Path(__file__).parents[3] / "docs" / "definitions.md"


def test_every_metric_is_defined_once() -> None:
    names = [name for definition in definitions() for name in definition.names]
    assert sorted(names) == sorted(CATALOGUE)


def test_the_numbers_in_the_text_are_the_codes_numbers() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    gates = " | ".join(f"{required_count(q):,}" for q in (0.5, 0.9, 0.95, 0.99, 0.999))
    assert f"| observations needed | {gates} |" in text
    for n in (3, 5, 8):
        assert f"n = {n}: {t_quantile(0.975, n - 1):.3f}" in text
    interval = log_t_interval([1, 2, 4])
    assert interval is not None
    assert interval.low == pytest.approx(0.357, abs=5e-4)
    assert interval.high == pytest.approx(11.2, abs=5e-2)
