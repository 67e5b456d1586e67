"""TTFT against lengths and ITL against batches: medians between two edges, and the requests in flight."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from bakeoff import results
from bakeoff.results.records import Load, Outcome, TelemetryRecord
from bakeoff.results.report.charts.scatter import MAX_DOTS, Axes, Cloud, Middle, middles, scatter, spread
from bakeoff.results.report.sections import lengths
from bakeoff.results.report.sections.batches import batch_figures, in_flight_at, running_at
from bakeoff.results.report.sections.lengths import length_panels
from bakeoff.results.requests import Requests
from bakeoff.results.run.cells import Trial
from tests.results.builders import SLOW, Sheet, build_run
from tests.results.handmade import MS, request, trial

FRAME = Axes("t", spread([1.0, 8.0], "requests in flight"), "↑ ITL", "tokens")


NO_DOTS = np.empty((0, 2))


def handmade(requests: list, telemetry: list[TelemetryRecord]) -> Trial:
    record = trial(Load(rate_per_s=1.0))
    return Trial(record, Requests(requests), telemetry, {}, {}, {})


def at(*times_ms: float) -> np.ndarray:
    return np.array([round(t * MS) for t in times_ms])


def test_the_middle_half_between_edges() -> None:
    x, y = [1, 1, 1, 2, 2, 2, 2, 9], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert middles(x, y, [1, 2, 3, 10], 3) == [
        Middle(1.0, 1.5, 2.0, 2.5, 3),
        Middle(2.0, 4.75, 5.5, 6.25, 4),
    ]  # one observation at 9 is too few


def test_requests_in_flight_are_counted() -> None:
    """[0, 100), [10, 60), and one that failed; a request that was never sent does not count."""
    requests = [
        request(0, [50, 100], sent=0, ended=100),
        request(10, [60], sent=10, ended=60),
        request(20, sent=20, ended=30, outcome=Outcome.TIMEOUT),
        request(0, ended=90, outcome=Outcome.REFUSED),
    ]
    counts = in_flight_at(handmade(requests, []), at(-1, 0, 15, 25, 50, 60, 70, 100, 101))
    assert counts.tolist() == [0, 1, 2, 3, 2, 2, 1, 1, 0]


def test_a_reading_of_the_engine_holds_for_a_second() -> None:
    read = [
        TelemetryRecord(0, "server", {"running": 3}),
        TelemetryRecord(500 * MS, "server", {"running": 0}),
        TelemetryRecord(600 * MS, "server", {"running": None}),
        TelemetryRecord(900 * MS, "server", {"running": 2.5}),
        TelemetryRecord(900 * MS, "engine", {"running": 99}),
    ]
    running = running_at(handmade([], read), at(-1, 0, 499, 550, 950, 1900, 1901))
    assert np.nan_to_num(running, nan=-1).tolist() == [-1, 3, 3, -1, 2.5, 2.5, -1]
    assert np.isnan(running_at(handmade([], []), at(5))).all()


def test_bars_stand_in_for_dots() -> None:
    cloud = Cloud("an engine", 1, NO_DOTS, [Middle(1, 0.01, 0.02, 0.03, 40), Middle(8, 0.02, 0.05, 0.06, 50)])
    svg = scatter(FRAME, [cloud])
    assert svg.count('class="error"') == 2
    assert 'class="dots' not in svg
    assert "an engine at 8 requests in flight: median 50.0 ms, half of 50 tokens in 20.0 ms … 60.0 ms" in svg
    assert "an engine: median 20.0 ms at 1, 50.0 ms at 8, of 90 tokens." in svg


def test_dots_are_thinned_and_the_middles_are_not() -> None:
    dots = np.array([(float(i % 50), 0.01) for i in range(1_000)])
    svg = scatter(FRAME, [Cloud("e", 0, dots, [Middle(3, 0.01, 0.01, 0.01, 1_000)])])
    (drawn,) = re.findall(r'<path d="([^"]+)" class="dots e0"', svg)
    assert drawn.count("h0") == 250 <= MAX_DOTS
    assert "of 1,000 requests" in svg.replace("tokens", "requests")


def test_nothing_is_no_chart() -> None:
    assert scatter(FRAME, [Cloud("e", 0, NO_DOTS, [])]) == ""


def test_a_wide_span_of_lengths_is_logarithmic() -> None:
    assert spread([10, 500], "t").log
    assert not spread([100, 130], "t").log
    only = spread([128, 128], "t")
    assert only.low < 128 < only.high


def test_more_in_flight_slows_the_slow_engine(demo: results.Run) -> None:
    (figure,) = batch_figures(demo)
    client, server = figure.charts
    medians = {
        int(n): float(ms)
        for n, ms in re.findall(r"transformers at (\d+) requests in flight: median ([\d.]+) ms", client)
    }
    assert medians[8] > 3 * medians[1]
    assert "reference" in server
    assert "transformers" not in server, "it tells nothing"


def test_planned_lengths_are_named_as_such(demo: results.Run) -> None:
    panels = length_panels(demo)
    assert [panel.title for panel in panels if panel.primary] == ["c=8"]
    assert {panel.note for panel in panels} == {"Lengths as planned, since the engine did not say: transformers."}
    described = panels[0].svg[panels[0].svg.index("<desc>") : panels[0].svg.index("</desc>")]
    assert re.findall(r"of (\d+) requests\.", described) == ["72", "44"], "each is in one of the medians"


def test_a_run_without_lengths_or_tokens_says_so(tmp_path) -> None:
    from bakeoff.results.report import render_html  # noqa: PLC0415

    sheet = Sheet(engines={"slow": SLOW}, repeats=1, requests=6, tokens=1, invalid=(0, 1, 2, 3))
    page = render_html(results.load(build_run(tmp_path, sheet)))
    assert "No valid trial has a request with a known prompt length." in page
    assert "No answer of a valid trial has a second chunk, so there is no ITL." in page
    assert "TTFT of slow: no valid trial has an observation" in page


def test_prompts_from_the_cache_are_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 tokens each, none, 499, and 500 and 900 came from the cache; then no engine reports any."""
    level = SimpleNamespace(title="c=1", cells=[SimpleNamespace(engine="e")])
    monkeypatch.setattr(lengths, "levels_of", lambda _: [level])
    monkeypatch.setattr(lengths, "engines_of", lambda _: ["e"])
    monkeypatch.setattr(lengths, "primary_level", lambda _: level)

    def panel(*cached: int | None) -> lengths.LengthPanel:
        answered = [request(0, [100 + 10 * k], prompt_tokens=1_000, cached_tokens=n) for k, n in enumerate(cached)]
        trials = [SimpleNamespace(answered=Requests(answered))]
        (panel,) = length_panels(SimpleNamespace(valid_trials_of=lambda _: trials))  # type: ignore[arg-type]
        return panel

    mixed, plain = panel(0, 499, 500, 900), panel(None, None)
    drawn = dict(re.findall(r'<path d="([^"]*)" class="(dots|rings) e0"', mixed.svg))
    assert {kind: path.count("M") for path, kind in drawn.items()} == {"dots": 2, "rings": 2}
    assert mixed.note.startswith("Rings are requests")
    assert "of 4 requests" in mixed.svg
    assert "rings" not in plain.svg
    assert plain.note == ""
