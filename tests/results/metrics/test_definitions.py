"""docs/definitions.md agrees with the code: its metrics and numbers are those of the catalogue."""

import re
from pathlib import Path

import pytest

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.metrics.percentiles import required_count
from bakeoff.results.report.sections.background import definitions
from bakeoff.results.server_view import ENGINE_FIGURES
from bakeoff.results.statistics import log_t_interval
from bakeoff.results.statistics.distributions import t_quantile

DOCUMENT = Path(__file__).parents[3] / "docs" / "definitions.md"
BLOCK = re.compile(r"(<!-- metrics: [^\n]* -->\n)(.*?)(<!-- end -->)", re.DOTALL)
SEEN_BLOCK = re.compile(r"<!-- seen: [^\n]* -->\n(.*?)<!-- end -->", re.DOTALL)


def table() -> str:
    """The metric list as Markdown."""
    lines = [
        "| metric | unit | better | definition | one observation | counted over | names |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in definitions():
        names = ", ".join(f"`{name}`" for name in entry.names)
        counted = f"{entry.observation} | {entry.span}"
        lines.append(f"| {entry.title} | {entry.unit} | {entry.better} | {entry.definition} | {counted} | {names} |")
    return "\n".join(lines) + "\n"


def test_the_metric_list_is_the_catalogue() -> None:
    match = BLOCK.search(DOCUMENT.read_text(encoding="utf-8"))
    assert match is not None
    assert match[2] == table(), f"put this between the two comments of docs/definitions.md:\n{table()}"
    assert set(re.findall(r"`(\w+)`", match[2])) == set(CATALOGUE)


def seen_table() -> str:
    """The figures of the engine view as Markdown."""
    lines = ["| figure | unit | definition | name |", "|---|---|---|---|"]
    lines += [
        f"| {figure.title} | {figure.unit.value or 'count'} | {figure.definition} | `{figure.name}` |"
        for figure in ENGINE_FIGURES.values()
    ]
    return "\n".join(lines) + "\n"


def test_the_list_of_the_engines_own_figures_is_its_catalogue() -> None:
    match = SEEN_BLOCK.search(DOCUMENT.read_text(encoding="utf-8"))
    assert match is not None
    assert match[1] == seen_table(), f"put this between the two comments of docs/definitions.md:\n{seen_table()}"


def test_every_metric_is_defined_once() -> None:
    names = [name for definition in definitions() for name in definition.names]
    assert sorted(names) == sorted(CATALOGUE)


def test_the_numbers_in_the_text_are_the_codes_numbers() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    gates = " | ".join(f"{required_count(q):,}" for q in (0.5, 0.9, 0.95, 0.99, 0.999))
    assert f"| observations needed | {gates} |" in text
    for n in (2, 3, 5, 8):
        digits = 2 if n == 2 else 3
        assert f"n = {n}: {t_quantile(0.975, n - 1):.{digits}f}" in text
    interval = log_t_interval([1, 2, 4])
    assert interval is not None
    assert interval.low == pytest.approx(0.357, abs=5e-4)
    assert interval.high == pytest.approx(11.2, abs=5e-2)
