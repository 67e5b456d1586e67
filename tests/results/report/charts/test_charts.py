"""Charts: scales place values correctly, and no drawing shows more than the data."""

import itertools
import math
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff import results
from bakeoff.results.records import TelemetryRecord
from bakeoff.results.report.charts import ecdf, frontier, labels, scales, svg, timeline, tracks
from bakeoff.results.report.charts.frontier import Point, Series
from bakeoff.results.statistics.interval import Interval

POSITIVE = st.floats(1e-6, 1e6)


def classes(markup: str) -> list[str]:
    return [element.get("class", "") for element in ET.fromstring(markup).iter()]


class TestScales:
    @given(st.lists(POSITIVE, min_size=1, max_size=20))
    def test_values_lie_inside_and_keep_their_order(self, values: list[float]) -> None:
        axis = scales.fitted_axis(values, 10, 110)
        places = [axis.at(value) for value in sorted(values)]
        assert places == sorted(places)
        assert places[0] >= 10
        assert places[-1] <= 110

    @given(st.lists(POSITIVE, min_size=1, max_size=20))
    def test_ticks_are_few_round_and_inside(self, values: list[float]) -> None:
        axis = scales.fitted_axis(values, 0, 100)
        ticks = axis.ticks()
        assert 1 <= len(ticks) <= 12
        assert all(axis.low * 0.999 <= tick <= axis.high * 1.001 for tick in ticks)
        for tick in ticks:
            digits = 0 if tick == 0 else tick / 10 ** math.floor(math.log10(tick) + 1e-9)
            assert digits == pytest.approx(round(digits, 2))

    def test_a_wide_span_asks_for_logs_and_a_zero_forbids_them(self) -> None:
        assert scales.fitted_axis([1.0, 19.0], 0, 1).log is False
        assert scales.fitted_axis([1.0, 21.0], 0, 1).log is True
        assert scales.fitted_axis([0.0, 21.0], 0, 1).log is False
        assert scales.fitted_axis([], 0, 1).high == 1.0

    def test_decades_are_thinned(self) -> None:
        assert len(scales.Axis(1e-9, 1e9, 0, 1, log=True).ticks()) <= 7


class TestLanes:
    @given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 40)), min_size=1, max_size=40))
    def test_a_lane_never_holds_two_at_once_and_none_is_wasted(self, drawn: list[tuple[int, int]]) -> None:
        spans = [(start, start + length) for start, length in drawn]
        lanes = timeline.lanes_of(spans)
        for lane in set(lanes):
            in_lane = sorted(span for span, at in zip(spans, lanes, strict=True) if at == lane)
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(in_lane))
        most = max(sum(start <= t < end for start, end in spans) for t in range(140))
        assert max(lanes) + 1 == most

    def test_in_flight_keeps_the_peaks(self) -> None:
        """[0, 10), [2, 4), [4, 10): the third takes the place of the second, so there are never 3."""
        assert timeline.in_flight(np.array([0, 2, 4]), np.array([10, 4, 10]), 0, 10, 5) == [1, 2, 2, 2, 2]
        assert timeline.in_flight(np.array([0, 2, 5]), np.array([10, 3, 9]), 0, 10, 2) == [2, 2]


class TestEcdf:
    def test_thinned_keeps_the_extremes_and_the_shares(self) -> None:
        values = np.random.default_rng(0).lognormal(size=5_000).tolist()
        steps = ecdf.thinned(values, ecdf.MAX_POINTS)
        assert len(steps) <= 400
        assert steps[0] == (min(values), 1 / 5_000)
        assert steps[-1] == (max(values), 1.0)
        for value, share in steps:
            assert share == pytest.approx(np.mean(np.asarray(values) <= value))

    def test_one_thin_line_per_repeat_and_one_bold(self) -> None:
        drawn = ecdf.ecdf("TTFT", [ecdf.Sample("a", 0, [[0.1, 0.2], [0.3]]), ecdf.Sample("b", 1, [[]])])
        assert classes(drawn).count("thin") == 2
        assert classes(drawn).count("pooled") == 1
        assert "a median 200 ms" in drawn

    def test_nothing_to_draw(self) -> None:
        assert ecdf.ecdf("TTFT", [ecdf.Sample("a", 0, [[]])]) == ""
        assert ecdf.thinned([], 5) == []


class TestFrontier:
    def test_error_bars_only_where_there_is_an_interval(self) -> None:
        sure = Point("c=1", Interval(100, 90, 110, 3), Interval(50, 45, 55, 3))
        single = Point("c=2", Interval(80, None, None, 1), Interval(70, None, None, 1))
        drawn = frontier.frontier("f", [Series("a", 0, [sure, single]), Series("b", 1, [])])
        assert classes(drawn).count("error") == 2
        assert classes(drawn).count("mark") == 2
        assert "a at c=1: 100 [90, 110] tokens/s for each user, 50.0 [45.0, 55.0] tokens/s in all" in drawn

    def test_a_hopeless_interval_does_not_set_the_scale(self) -> None:
        """Two trials may give [÷1000, ×1000]: the bar ends at the edge, the centres stay apart."""
        wide = Point("c=1", Interval(100, 0.1, 1e5, 2), Interval(50, 0.05, 5e4, 2))
        fine = Point("c=2", Interval(80, 79, 81, 3), Interval(70, 69, 71, 3))
        drawn = frontier.frontier("f", [Series("a", 0, [wide, fine])])
        marks_at = [float(circle.get("cx", "0")) for circle in ET.fromstring(drawn).iter("circle")]
        assert abs(marks_at[0] - marks_at[1]) > 40

    def test_no_closed_loop_level(self) -> None:
        assert frontier.frontier("f", [Series("a", 0, [])]) == ""


class TestMarks:
    def test_four_shapes(self) -> None:
        shapes = {svg.mark(10, 10, i, 4, "hint") for i in range(5)}
        assert len(shapes) == 4


class TestLabels:
    @given(st.lists(st.tuples(st.floats(0, 300), st.floats(0, 200)), min_size=1, max_size=12))
    def test_placed_labels_never_meet_each_other_or_a_line(self, points: list[tuple[float, float]]) -> None:
        room = labels.Labels(labels.Box(0, 0, 300, 200), [points])
        spots = [room.place("c=16", 12, labels.around(x, y)) for x, y in points]
        boxes = [spot.box("c=16", 12) for spot in spots if spot is not None]
        assert not any(a.meets(b) for i, a in enumerate(boxes) for b in boxes[:i])
        assert all(box.within(labels.Box(0, 0, 300, 200)) for box in boxes)
        assert not any(box.meets(labels.Box(x, y, x, y)) for box in boxes for x, y in points)

    def test_a_crowded_chart_still_names_every_engine(self) -> None:
        same = Point("c=1", Interval(100, 90, 110, 3), Interval(50, 45, 55, 3))
        drawn = frontier.frontier("f", [Series(f"engine-{i}", i, [same]) for i in range(12)])
        assert all(f">engine-{i}</text>" in drawn for i in range(12))
        drawn = ecdf.ecdf("TTFT", [ecdf.Sample(f"engine-{i}", i, [[0.1, 0.2, 0.3]]) for i in range(30)])
        assert all(f">engine-{i}" in drawn for i in range(30))


class TestTimeline:
    def test_every_request_is_a_bar(self, demo: results.Run) -> None:
        trial = demo.finished[0]
        drawn = timeline.timeline("t", trial, "e0", timeline.Limits(400))
        assert len(drawn.bars) == len(trial.requests)
        assert drawn.every == 1
        assert {"wait", "decode", "first", "warm", "window", "track"} <= set(classes(drawn.svg))

    def test_failures_are_drawn_apart(self, demo: results.Run) -> None:
        trial = next(t for t in demo.finished if t.record.engine == "transformers")
        assert "failed" in classes(timeline.timeline("t", trial, "e1", timeline.Limits(400)).svg)

    def test_many_requests_are_thinned_and_said(self, demo: results.Run) -> None:
        drawn = timeline.timeline("t", demo.finished[0], "e0", timeline.Limits(10))
        assert drawn.every == 3
        assert len(drawn.bars) == 9

    def test_cores_come_from_processor_seconds(self) -> None:
        """0.5 s used in 250 ms is 2 cores; a counter that falls (a process ended) is not negative."""
        samples = [(0, 1.0), (250, 1.5), (500, 1.2)]
        records = [TelemetryRecord(t * 1_000_000, "engine", {"cpu_s": used}) for t, used in samples]
        (track,) = tracks.tracks_of(records, 0, 10**9)
        assert [value for _, value in track.points] == pytest.approx([2.0, 0.0])

    def test_gpus_add_up_and_long_series_keep_their_peak(self) -> None:
        records = [
            TelemetryRecord(t, f"gpu{i}", {"power_w": 900.0 if t == 777 else 300.0})
            for t in range(1000)
            for i in (0, 1)
        ]
        (track,) = tracks.tracks_of(records, 0, 1000)
        assert track.title == "GPU power, W"
        assert "max 1,800" in tracks.draw_track(track, scales.Axis(0, 1000, 0, 1000), 0, "e0")


def test_svg_escapes_text_and_attributes() -> None:
    drawn = svg.chart("<b>", 'x"y', 1, 1, svg.label(0, 0, "<script>", "a"), class_="c", data_x='"><script>')
    assert "<script>" not in drawn
    assert ET.fromstring(drawn).find("text").text == "<script>"  # type: ignore[union-attr]


def test_colours_repeat_dashed() -> None:
    assert svg.engine_class(1) == "e1"
    assert svg.engine_class(svg.PALETTE + 1) == "e1 again"
    assert svg.polyline([], "curve") == ""
