"""`make demo` in a fresh clone without any cache, and its numbers."""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from bakeoff import results
from bakeoff.results.metrics import CATALOGUE, HEADLINE
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.run import Run, by_repeat
from bakeoff.results.statistics import compare_runs
from bakeoff.results.statistics.comparison import Criteria
from benchmarks.bars import Bars
from tests.acceptance.clone import fresh_clone, timed_make


def open_page(page_path: Path) -> tuple[list[str], list[str], str]:
    """Open the report in Chromium; returns console messages, requests beyond the page itself, and its table's text."""
    console: list[str] = []
    requests: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        page.on("console", lambda message: console.append(message.text))
        page.on("pageerror", lambda error: console.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(page_path.as_uri())
        table = page.locator("main").inner_text()
        browser.close()
    return console, requests[1:], table


def missing(run: Run, cells: list[Cell]) -> list[str]:
    """One line for each engine, level and headline metric without a 95 % interval."""
    lines: list[str] = []
    for cell in cells:
        for name in HEADLINE:
            interval = cell.intervals.get(name)
            if interval is None or interval.low is None:
                lines.append(f"{cell.engine} {cell.load} {name}: {cell.reasons.get(name)}")
    expected = len(run.manifest.experiment["engines"]) * len(run.manifest.experiment["loads"])
    return lines + ["a cell is missing"] * (expected - len(cells))


def ratio_at(run: Run, level: str) -> tuple[float, str]:
    """Output tokens/s of the reference engine over Transformers, and the interval of that ratio."""

    def values(engine: str) -> dict[int, float]:
        trials = (trial for trial in run.finished if trial.record.engine == engine)
        return by_repeat(trials, level, "output_tokens_per_s")

    comparison = compare_runs(
        CATALOGUE["output_tokens_per_s"],
        level,
        values("transformers"),
        values("reference"),
        interleaved=True,
        criteria=Criteria(alpha=0.05),
    )
    if comparison.ratio is None:
        return 0.0, "no run"
    low, high = comparison.ratio.low, comparison.ratio.high
    return comparison.ratio.centre, f"[{low:.2f}, {high:.2f}]" if low and high else "no interval"


def main() -> None:
    with fresh_clone() as (folder, environment):
        status, minutes = timed_make("demo", folder, environment)
        runs = sorted(folder.glob("runs/*/run.jsonl"))
        if not runs:
            sys.exit("make demo left no run")
        run = results.load(runs[-1].parent)
        missing_intervals = missing(run, run.cells)
        console, requests, table = open_page(run.path / "report.html")
        shown = all(cell.engine in table and cell.load in table for cell in run.cells)
        ratio, interval = ratio_at(run, "c=4")
    print(
        "without interval:",
        missing_intervals or "nothing",
        "\nconsole:",
        console or "silent",
        "\nrequests:",
        requests or "none",
    )
    valid = sum(cell.valid for cell in run.cells)
    print(f"{valid} of {len(run.manifest.trials)} trials VALID")
    print(f"output tokens/s at c=4, reference over transformers: {ratio:.2f} {interval}")
    bars = Bars()
    bars.add("demo_exit_code", status, "==", 0)
    bars.add("demo_minutes", minutes, "<=", 5)
    bars.add("cells_without_interval", len(missing_intervals), "==", 0)
    bars.add("cells_shown_in_page", shown, "==", 1)
    bars.add("console_messages", len(console), "==", 0)
    bars.add("network_requests", len(requests), "==", 0)
    bars.add("tokens_ratio_c4", ratio, ">=", 1.0)
    bars.finish()


if __name__ == "__main__":
    main()
