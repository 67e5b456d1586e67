"""Report, ``compare``, gate and dashboard give each row one judgement."""

import contextlib
import random
from pathlib import Path

import pytest
from hypothesis import settings

from bakeoff.results.compare.comparison import EngineComparison, compare_sides
from bakeoff.results.compare.config import ComparisonConfig, agreed
from bakeoff.results.compare.gate import judge
from bakeoff.results.compare.sides import select
from bakeoff.results.dashboard.compare_page import compare_page
from bakeoff.results.errors import NoEvidence
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.report.summary_table import Layout, summary_metrics, summary_tables
from bakeoff.results.report.verdict import verdict
from bakeoff.results.run.levels import levels_of
from bakeoff.results.run.run import Run, load
from bakeoff.results.show.table import Tone
from bakeoff.results.statistics import COMPARE_ALPHA, DETECT, Judgement
from tests.results.builders import LOADS, Sheet, Speed, build_run

Rows = dict[tuple[str, str], Judgement]
MIRRORED = {Judgement.BETTER: Judgement.WORSE, Judgement.WORSE: Judgement.BETTER}


def sheet(seed: int) -> Sheet:
    """Two engines that are nearly alike, at one or two loads, with two to six repeats, some of them INVALID."""
    rng = random.Random(seed)

    def speed() -> Speed:
        return Speed(rng.uniform(0.02, 0.03), rng.uniform(0.004, 0.005), rng.uniform(0.0, 0.3), rng.uniform(1e9, 2e9))

    repeats, loads = rng.randint(2, 6), LOADS[: rng.randint(1, 2)]
    return Sheet(
        engines={"a": speed(), "b": speed()}, loads=loads, repeats=repeats, requests=6, tokens=6, seed=seed,
        invalid=tuple(rng.sample(range(2 * repeats * len(loads)), rng.randint(0, min(2, repeats - 1)))), regret=None,
    )  # fmt: skip


def judged(compared: EngineComparison) -> Rows:
    return {(one.level, one.metric): one.judgement for one in compared.comparisons}


def bold(run: Run, engine: str) -> set[tuple[str, str]]:
    """Load and metric of the figures of an engine that the report prints in bold."""
    (table,) = summary_tables(run, Layout.BY_ENGINE)
    metrics = {column.anchor: number for number, column in enumerate(table.columns) if "p90" not in column.title}
    rows = [row for row in table.rows if row[1].text == engine]
    return {
        (level.load.label, metric.name)
        for level, row in zip(levels_of(run), rows, strict=True)
        for metric in summary_metrics(run)
        if (number := metrics.get(f"metric-{metric.family}")) is not None
        and not metric.name.endswith(("_p90_s", "_p99_s"))
        and row[number].tone is Tone.BETTER
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(settings().max_examples // 2))  # of random runs: 10, or 250 nightly
def test_every_surface_gives_each_row_one_judgement(tmp_path: Path, seed: int) -> None:
    path = build_run(tmp_path, sheet(seed))
    run = load(path)
    sides = select(f"{path}@a"), select(f"{path}@b")
    compared = compare_sides(*sides, agreed(None, None, COMPARE_ALPHA, None))
    rows = judged(compared)

    mirrored = judged(compare_sides(*sides[::-1], agreed(None, None, COMPARE_ALPHA, None)))
    assert mirrored == {at: MIRRORED.get(judgement, judgement) for at, judgement in rows.items()}
    with contextlib.suppress(NoEvidence):
        assert judged(judge(*sides, ComparisonConfig(alpha=COMPARE_ALPHA, detect=DETECT)).compared) == rows
    page = compare_page(path.parent, f"{path.name}@a", f"{path.name}@b", "")
    assert [row["judgement"] for row in page.tables[0].entries()] == list(rows.values())
    for engine, wanted in (("a", Judgement.WORSE), ("b", Judgement.BETTER)):
        assert bold(run, engine) == {
            at for at, judgement in rows.items() if judgement is wanted and CATALOGUE[at[1]] in summary_metrics(run)
        }
    line = verdict(run)
    if line.decided:
        assert compared.primary.judgement is (Judgement.BETTER if ", b " in line.sentence else Judgement.WORSE)
    elif not any(one.judgement is Judgement.UNCLEAR for one in compared.tallies):
        assert compared.primary.judgement in {Judgement.SAME, Judgement.UNCLEAR}, line.sentence
