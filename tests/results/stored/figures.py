"""Figures and verdicts of the stored runs, as plain data: ``python figures.py FOLDER > figures.json``."""

import json
import sys
from pathlib import Path
from typing import Any

from bakeoff.harness.cli.stored import read
from bakeoff.results.compare.comparison import compare_sides
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.gate import judge
from bakeoff.results.compare.sides import side_of

Figures = dict[str, dict[str, Any]]


def figures_of(folder: Path) -> Figures:
    """The metrics of each trial by run and trial, what the search found, and the verdicts of compare and gate."""
    found: Figures = {}
    for path in sorted(folder.iterdir()):
        run = read(path)
        name = run.manifest.name
        for trial in [*run.finished, *run.profiled]:
            values = {key: value.value for key, value in trial.metrics.items() if value.value is not None}
            found[f"{name}/{trial.record.id}"] = {"verdict": trial.record.verdict.value, **values}
        if run.search is not None:
            found[name] = {each.engine: [each.low, each.level, each.high] for each in run.search.engines}
        engines = list(dict.fromkeys(plan.engine for plan in run.manifest.trials))
        if len(engines) == 2:
            a, b = (side_of(run, engine) for engine in engines)
            compared = compare_sides(a, b, ComparisonConfig())
            found[f"{name}/compare"] = {
                f"{pair.metric} {pair.level}": [pair.judgement.value, None if pair.ratio is None else pair.ratio.centre]
                for pair in compared.comparisons
            }
            found[f"{name}/gate"] = {"outcome": judge(a, b, ComparisonConfig()).outcome.value}
    return {place: {name: _rounded(value) for name, value in values.items()} for place, values in found.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


if __name__ == "__main__":
    print(json.dumps(figures_of(Path(sys.argv[1])), indent=1))
