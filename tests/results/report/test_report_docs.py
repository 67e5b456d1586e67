"""docs/report.md agrees with the page: its sections, its budgets, and code examples that run."""

from pathlib import Path

from bakeoff import results
from bakeoff.results.report.charts.scatter import MAX_DOTS
from bakeoff.results.report.sections import batches, trials, waterfalls

TEXT = (Path(__file__).parents[3] / "docs" / "report.md").read_text(encoding="utf-8")


def test_the_budgets_are_the_codes() -> None:
    text = TEXT.replace("\n", " ")
    for phrase in (
        f"{trials.BAR_BUDGET:,} bars",
        f"{trials.POINT_BUDGET:,} points of telemetry lines",
        f"{waterfalls.CHUNK_BUDGET:,} chunk times",
        f"{waterfalls.TEXT_BUDGET:,} characters of answers",
        f"{MAX_DOTS} dots for each engine",
        f"of at least {batches.MIN_TOKENS} tokens",
    ):
        assert phrase in text, phrase


def test_the_way_to_everything_works(demo: results.Run) -> None:
    """The steps of the page and of the document; synthetic runs have no raw reads, so the stream log is empty."""
    assert {"trial", "request", "t_ns", "tokens"} == set(demo.chunks.columns)
    assert "trial, request, t_ns, tokens" in TEXT
    assert list(demo.folder.trial("r1-e0-1").read_streams()) == []
