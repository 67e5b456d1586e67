"""Quantities of trials, of runs and of published runs."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bakeoff.results.export.published import published_rows
from bakeoff.results.records import Verdict
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.run import Run
from bakeoff.results.text.findings import sentence
from benchmarks.claims.interpreter.claim import Contrasted, Side
from benchmarks.claims.interpreter.expression import evaluate, names_in
from benchmarks.claims.interpreter.measurement import Measurement, contrasted_measurement

PUBLISHED = Path(__file__).resolve().parents[3] / "docs" / "results"
"""Published runs; a checkout has them, an installed package does not."""

_Row = tuple[int, Mapping[str, float | None]]
"""Repeat, and quantities by name."""


def trial_values(metric: str, run: Run, side: Side) -> dict[int, float]:
    """Repeat → quantity, over the VALID trials of a side that have it."""
    valid = (trial for trial in _trials_of(run, side) if trial.record.verdict is Verdict.VALID)
    return _quantities(metric, ((trial.record.repeat, _row(trial)) for trial in valid))


def failure(run: Run, side: Side) -> str | None:
    """Why a side has no VALID trial: its engine was lost, or its first trial is INVALID; None if neither."""
    lost = [event for event in run.log.lost if event.engine == side.engine]
    if lost:
        return lost[-1].reason.splitlines()[0]
    findings = (finding for trial in _trials_of(run, side) for finding in trial.record.invalidating)
    return next(map(sentence, findings), None)


def _trials_of(run: Run, side: Side) -> list[Trial]:
    """Finished trials of a side."""
    wanted = (side.engine, side.load)
    return [trial for trial in run.finished if (trial.record.engine, trial.record.load.label) == wanted]


def _row(trial: Trial) -> dict[str, float | None]:
    row = {name: value.value for name, value in (trial.metrics | trial.server).items()}
    return row | {"agreement": trial.quality.summary.agreement if trial.quality and trial.quality.summary else None}


def published(contrasted: Contrasted) -> Measurement:
    """Read published runs."""
    values = {side.text: _published_values(contrasted.metric, side) for side in contrasted.sides}
    names = list(dict.fromkeys(side.run for side in contrasted.sides))
    folder = _trials(names[0]).parent if _trials(names[0]).is_file() else _offline(names[0]).parent
    return contrasted_measurement(contrasted, values, names, _published_machine(folder))


def is_published(run: str) -> bool:
    """Whether the trials or the offline figures of a run are in this installation."""
    return _trials(run).is_file() or _offline(run).is_file()


def published_digest(run: str) -> str | None:
    """SHA-256 of a published run's figures; None if they are not in this installation."""
    file = next((file for file in (_trials(run), _offline(run)) if file.is_file()), None)
    return None if file is None else hashlib.sha256(file.read_bytes()).hexdigest()


def _trials(run: str) -> Path:
    return PUBLISHED / run / "trials.csv"


def _offline(run: str) -> Path:
    """Output of ``benchmarks/gpu/offline.py``: one JSON object a line."""
    return PUBLISHED / f"{run}.jsonl"


def _published_values(metric: str, side: Side) -> dict[int, float]:
    return _quantities(metric, _offline_rows(side) if _offline(side.run).is_file() else _trial_rows(side))


def _trial_rows(side: Side) -> list[_Row]:
    return [
        (int(row["repeat"]), _numbers(row))
        for row in published_rows(_trials(side.run), ("repeat", "engine", "load", "verdict"))
        if (row["engine"], row["load"], row["verdict"]) == (side.engine, side.load, "VALID")
    ]


def _offline_rows(side: Side) -> list[_Row]:
    """The load of a side is a cell in the form of the benchmark's ``--cells``: requests, prompt and output tokens."""
    rows: list[_Row] = []
    for line in _offline(side.run).read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        load = ",".join(map(str, record["cell"] or []))
        if (record["engine"], load) == (side.engine, side.load) and "seconds" in record:
            requests, prompt, output = record["cell"]
            tokens = {"output_tokens_per_s": requests * output, "prompt_tokens_per_s": requests * prompt}
            rows.append((record["repeat"], {name: count / record["seconds"] for name, count in tokens.items()}))
    return rows


def _numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    numbers: dict[str, float | None] = {}
    for name, text in row.items():
        try:
            numbers[name] = float(text)
        except (TypeError, ValueError):
            numbers[name] = None
    return numbers


def _published_machine(folder: Path) -> str | None:
    """Machine and date, from the third line of the published page."""
    lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    return "; ".join(lines[2].split("; ")[:2]) if len(lines) > 2 else None


def _quantities(metric: str, rows: Iterable[_Row]) -> dict[int, float]:
    wanted, values = names_in(metric), dict[int, float]()
    for repeat, row in rows:
        present = {name: value for name in wanted if (value := row.get(name)) is not None}
        if present.keys() == wanted:
            values[repeat] = evaluate(metric, present)
    return values
