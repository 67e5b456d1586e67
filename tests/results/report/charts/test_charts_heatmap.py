"""Heatmaps: every observation is in one cell, and every cell is drawn once, in its shade."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff import results
from bakeoff.results.records import Load
from bakeoff.results.report.charts.heatmap import BINS, SHADES, SLICES, Heat, counted, heatmap, shades_of, shared_axis
from bakeoff.results.report.charts.scales import Axis
from bakeoff.results.report.sections.basis import basis_table
from bakeoff.results.report.sections.over_time import first_tokens, later_tokens, time_panels
from bakeoff.results.requests import Requests
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.levels import levels_of
from tests.results.handmade import request, trial

OBSERVED = st.lists(st.tuples(st.floats(0, 1e3), st.floats(1e-6, 1e3)), min_size=1, max_size=60)


def heat(pairs: list[tuple[float, float]]) -> Heat:
    times, values = (np.array([pair[column] for pair in pairs]) for column in (0, 1))
    return Heat("an engine", 0, "TTFT", "requests", times, values)


def runs(svg: str) -> dict[int, int]:
    """Shade → cells drawn in it."""
    cells = svg[svg.index('class="cells"') :]
    paths = re.findall(r'<path d="([^"]+)" class="h(\d)"', cells) + [
        (d, shade) for shade, d in re.findall(r'<path class="h(\d)" d="([^"]+)"', cells)
    ]
    return {int(shade): sum(int(n) for n in re.findall(r"h(\d+)", d)) for d, shade in paths}


@given(OBSERVED)
def test_every_observation_is_in_one_cell(pairs: list[tuple[float, float]]) -> None:
    observed = heat(pairs)
    cells = counted(observed, Axis(0, max(*observed.times_s, 1e-3), 0, 1), shared_axis([observed]))
    assert cells.shape == (SLICES, BINS)
    assert cells.sum() == len(pairs)


def test_cells_lie_where_time_and_latency_say() -> None:
    observed = heat([(0.0, 0.01), (10.0, 1.0), (10.0, 1.0), (5.0, 0.1)])
    cells = counted(observed, Axis(0, 10, 0, 1), Axis(0.01, 1.0, 1, 0, log=True))
    assert cells[0, 0] == 1
    assert cells[-1, -1] == 2
    assert cells[SLICES // 2, BINS // 2] == 1
    assert np.count_nonzero(cells) == 3


def test_cells_are_drawn_once_and_the_fullest_is_darkest() -> None:
    rng = np.random.default_rng(0)
    pairs = list(zip(rng.uniform(0, 60, 4_000).tolist(), rng.lognormal(-3, 0.3, 4_000).tolist(), strict=True))
    observed = heat(pairs)
    axis = shared_axis([observed])
    svg = heatmap("t", observed, axis)
    cells = counted(observed, Axis(0, max(observed.times_s), 0, 1), axis)
    drawn = runs(svg)
    assert sum(drawn.values()) == np.count_nonzero(cells)
    assert set(drawn) == set(range(1, SHADES + 1))
    assert f">{cells.max()} requests</text>" in svg
    assert "4,000 requests; median" in svg
    assert len(svg) < 8_000


def test_a_single_observation_is_palest_and_the_fullest_cell_darkest() -> None:
    """1, 3 and 9 lie at equal steps of the logarithm; where all are alone there is one shade and no ramp."""
    assert shades_of(np.array([0, 1, 3, 9]), 9).tolist() == [0, 1, 3, SHADES]
    assert shades_of(np.array([0, 1]), 1).tolist() == [0, SHADES]
    alone = heatmap("t", heat([(0, 0.1), (9, 1.0)]), Axis(0.05, 2, 1, 0, log=True))
    assert alone.count("<rect") == 1
    assert ">1 request</text>" in alone


def test_the_scale_is_shared_and_outliers_are_held() -> None:
    fast, slow = heat([(i, 0.01 + i / 1e5) for i in range(2_000)]), heat([(i, 1.0) for i in range(2_000)])
    axis = shared_axis([fast, slow, heat([(0, 99.0)])])
    assert axis.low < 0.0101
    assert 1.0 < axis.high < 2.0
    assert axis.log


def test_nothing_is_no_chart() -> None:
    assert heatmap("t", heat([]), Axis(0.1, 1, 1, 0, log=True)) == ""


def test_worked_by_hand() -> None:
    """Load on at 100 ms; tokens at 110, 150 (four of them) and 160 ms, the last outside of the window."""
    record = trial(Load(rate_per_s=1.0), issue_start=100, issue_end=155)
    handmade_trial = Trial(record, Requests([request(105, [110, 150, 160], [1, 4, 2])]), [], {}, {}, {})
    (arrived_s,), (ttft_s,) = first_tokens(handmade_trial)
    assert (arrived_s, ttft_s) == (pytest.approx(0.01), pytest.approx(0.005))
    arrived_s, itl_s = later_tokens(handmade_trial)
    assert (arrived_s.tolist(), itl_s.tolist()) == (pytest.approx([0.05] * 4), pytest.approx([0.01] * 4))


def test_a_chart_counts_what_the_metrics_rest_on(demo: results.Run) -> None:
    table = basis_table(demo)
    rows = {title: row.counts for row in table.rows for _, title in row.metrics}
    cells = [cell for level in levels_of(demo) for cell in level.cells]
    answered = [str(sum(len(trial.answered) for trial in demo.valid_trials_of(cell))) for cell in cells]
    matches = [re.search(r"<desc>([\d,]+) (\w+);", chart.svg) for panel in time_panels(demo) for chart in panel.charts]
    counts = [(match[2], match[1]) for match in matches if match]
    assert [count for noun, count in counts if noun == "requests"] == answered
    assert [count for noun, count in counts if noun == "tokens"] == rows["ITL"]
