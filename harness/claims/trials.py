"""Quantities of trials, of runs and of published runs."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.claims.claim import Contrasted, Side
from harness.claims.expression import evaluate, names_in
from harness.claims.measurement import Measurement, contrasted_measurement
from results.records import Verdict
from results.run import Run, Trial

PUBLISHED = Path(__file__).parents[2] / "docs" / "results"
"""Published runs; a checkout has them, an installed package does not."""


def trial_values(metric: str, run: Run, side: Side) -> dict[int, float]:
    """Repeat → quantity, over the VALID trials of a side that have it."""
    trials = (
        trial
        for trial in run.finished
        if (trial.record.engine, trial.record.load.label) == (side.engine, side.load)
        and trial.record.verdict is Verdict.VALID
    )
    return _quantities(metric, ((trial.record.repeat, _row(trial)) for trial in trials))


def _row(trial: Trial) -> dict[str, float | None]:
    row = {name: value.value for name, value in (trial.metrics | trial.server).items()}
    return row | {"agreement": trial.quality.summary.agreement if trial.quality and trial.quality.summary else None}


def published(contrasted: Contrasted) -> Measurement:
    """Read published runs."""
    values = {side.text: _published_values(contrasted.metric, side) for side in contrasted.sides}
    names = list(dict.fromkeys(side.run for side in contrasted.sides))
    return contrasted_measurement(contrasted, values, names, _published_machine(PUBLISHED / names[0]))


def _published_values(metric: str, side: Side) -> dict[int, float]:
    with (PUBLISHED / side.run / "trials.csv").open(encoding="utf-8", newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["engine"], row["load"], row["verdict"]) == (side.engine, side.load, "VALID")
        ]
    return _quantities(metric, ((int(row["repeat"]), _numbers(row)) for row in rows))


def _numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    numbers: dict[str, float | None] = {}
    for name, text in row.items():
        try:
            numbers[name] = float(text)
        except (TypeError, ValueError):
            numbers[name] = None
    return numbers


def _published_machine(folder: Path) -> str | None:
    """Machine and date, from the third line of the page that publishing writes."""
    lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    return "; ".join(lines[2].split("; ")[:2]) if len(lines) > 2 else None


def _quantities(metric: str, rows: Iterable[tuple[int, Mapping[str, float | None]]]) -> dict[int, float]:
    wanted, values = names_in(metric), dict[int, float]()
    for repeat, row in rows:
        known = {name: value for name in wanted if (value := row.get(name)) is not None}
        if known.keys() == wanted:
            values[repeat] = evaluate(metric, known)
    return values
