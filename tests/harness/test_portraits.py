"""What a portrait says: bins lose nothing, plots keep their proportions, and what is absent has a reason."""

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.portraits import as_data, figures
from harness.portraits.bins import SHORTEST_S, second_bins, whole_bins
from harness.portraits.choosing import options_of
from harness.portraits.plots import GUTTER, column_plot, density, tick_line
from harness.portraits.scales import bins_scale, time_scale
from harness.portraits.spreads import session_spreads
from results.report.charts.scales import Scale
from tests.harness.portrait_scenes import Scripted, dialogues, drawn, singles, subject
from workloads import BadOption, Seed, WorkloadError
from workloads.portrait import portrait
from workloads.presets import Anchor


class TestBins:
    @given(st.lists(st.integers(1, 10**6), min_size=1, max_size=200))
    def test_every_token_count_lies_in_one_bin_of_whole_tokens(self, values: list[int]) -> None:
        binned = whole_bins(values)
        assert sum(one.count for one in binned.bins) == binned.total == len(values)
        assert all(a.high == b.low for a, b in itertools.pairwise(binned.bins))
        assert all(one.high - one.low >= 1 and one.low == int(one.low) for one in binned.bins)
        assert binned.bins[0].low == min(values)
        assert binned.bins[-1].high > max(values)

    @given(st.lists(st.floats(0, 1e5), min_size=1, max_size=200))
    def test_pauses_are_binned_but_for_those_that_are_none(self, values: list[float]) -> None:
        binned = second_bins(values)
        assert sum(one.count for one in binned.bins) == sum(value >= SHORTEST_S for value in values)
        assert binned.total == len(values)

    def test_heights_are_comparable_areas(self) -> None:
        """A quarter of the sample over 1…2 is as high as a quarter over 512…1024, not 512 times as high."""
        binned = whole_bins([1] * 500 + list(range(512, 1024)) * 10)
        area = sum(
            height * math.log2(one.high / one.low) for height, one in zip(binned.heights, binned.bins, strict=True)
        )
        assert area == pytest.approx(100)
        assert whole_bins([100, 120, 150]).log is False
        assert sum(whole_bins([100, 120, 150]).heights) == pytest.approx(100)

    def test_evenly_spread_lengths_are_drawn_even_to_their_end(self) -> None:
        counts = [one.count for one in whole_bins(list(range(252, 902)) * 3).bins]
        assert min(counts) == max(counts)

    def test_nothing_and_one_value(self) -> None:
        assert whole_bins([]).bins == second_bins([0.0, 0.0]).bins == ()
        assert [(one.low, one.high, one.count) for one in whole_bins([128] * 9).bins] == [(128, 129, 9)]


class TestPlots:
    @given(st.lists(st.integers(0, 50), min_size=1, max_size=300), st.integers(1, 120), st.booleans())
    def test_no_arrival_is_lost_between_bins_and_characters(self, counts: list[int], width: int, log: bool) -> None:
        edges = [10.0 * 1.1**i if log else 10.0 * i for i in range(len(counts) + 1)]
        found = density(edges, counts, Scale(edges[0], edges[-1], (), "", log), width)
        assert len(found) == width
        assert found.sum() == pytest.approx(sum(counts))
        assert found.min() >= -1e-9

    def test_columns_are_drawn_in_eighths(self) -> None:
        assert column_plot([0, 1, 8, 12, 16], 2, 16, "16") == [
            "    16 ┤   ▄█", "       │ ▁███", "     0 └─────",
        ]  # fmt: skip

    def test_the_smallest_is_not_nothing(self) -> None:
        assert column_plot([0, 1e-9, 1], 1, 1, "1")[0].endswith("┤ ▁█")

    @given(st.floats(1, 1e7), st.integers(20, 120))
    def test_ticks_never_touch_and_stay_within_the_plot(self, length_s: float, width: int) -> None:
        scale = time_scale(length_s)
        line = tick_line(scale, width)
        assert len(line) <= GUTTER + width
        shown = re.findall(r"\S+ \S+", line)
        assert shown
        assert set(shown) <= {text for _, text in scale.ticks}

    def test_ticks_stand_below_their_values(self) -> None:
        scale = bins_scale(whole_bins(list(range(1, 1001))), "tokens")
        line = tick_line(scale, 61)
        assert line.index("10", GUTTER) - GUTTER == pytest.approx(19, abs=1)  # a third of three decades of 20


class TestFigures:
    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("rate_per_s", 5.0947, "5.09 /s"),
            ("gap_cv", 1.11, "1.11"),
            ("dispersion_60s", 16.59, "16.6"),
            ("peak_to_mean_60s", 1.868, "1.87"),
            ("longest_gap_s", 215.984, "3 min 36 s"),
            ("input_p99", 4116.01, "4,116"),
            ("input_per_output", 6.0653, "6.07"),
            ("output_mean", 194.05, "194"),
            ("prefix_bound", 0.2939, "29.4 %"),
            ("top10_tenants_share", 0.6849, "68.5 %"),
            ("new_tokens_p50", 721.0, "721"),
            ("think_p50_s", 10.0, "10.0 s"),
            ("prefix_bound", None, "–"),
        ],
    )
    def test_units_follow_names(self, name: str, value: float | None, text: str) -> None:
        assert figures.figure_text(name, value) == text

    @pytest.mark.parametrize(
        ("anchor", "value", "texts"),
        [
            (Anchor("prefix_bound", 0.94, 0.98, ""), 0.9691, ("96.9 %", "94 – 98 %")),
            (Anchor("longest_gap_s", 60, 240, ""), 215.98, ("216 s", "60 – 240 s")),
            (Anchor("new_tokens_p95", 6000, 10_500, ""), 8624.3, ("8,624", "6,000 – 10,500")),
            (Anchor("rate_per_s", 5.0, 6.1, ""), 5.0947, ("5.09 /s", "5 – 6.1 /s")),
            (Anchor("day_swing", 3.2, 4.8, ""), None, ("–", "3.2 – 4.8")),
        ],
    )
    def test_an_anchor_is_written_in_the_unit_of_its_figure(
        self, anchor: Anchor, value: float | None, texts: tuple[str, str]
    ) -> None:
        assert figures.anchor_texts(anchor, value) == texts

    def test_offered_tokens_are_those_of_all_requests(self) -> None:
        """A session every 4 s, of 2 or 3 requests: 0.25 × 2.5 requests of 210 tokens each second."""
        lines = {line.title: line.text for line in figures.arrival_lines(drawn(dialogues(400)))}
        assert lines["sessions"] == "0.250 /s"
        assert lines["requests"] == "0.625 /s"
        assert lines["prompt tokens"] == "125 tok/s"
        assert lines["answer tokens"] == "12.5 tok/s"

    def test_every_figure_has_a_place(self) -> None:
        portrait = drawn(dialogues(50))
        assert figures.other_lines(portrait) == []
        own = drawn(Scripted(dialogues(3).script, {"tenant_cv_p50": 1.22}))
        assert [(line.title, line.text) for line in figures.other_lines(own)] == [("tenant_cv_p50", "1.22")]


class TestAbsence:
    def test_no_arrivals_has_a_reason(self) -> None:
        assert figures.why_no_arrivals(drawn(singles(30))) == ""
        assert "all sessions wait when the load begins" in figures.why_no_arrivals(drawn(singles(30, 0.0)))
        assert "does not say when" in figures.why_no_arrivals(drawn(singles(30, None)))

    def test_short_samples_have_no_dispersion_over_long_windows(self) -> None:
        lines = {line.title: line for line in figures.arrival_lines(drawn(singles(200)))}
        assert lines["dispersion, 10 s"].text == "0"
        assert (lines["dispersion, 60 s"].text, lines["dispersion, 60 s"].note) == ("–", "under 10 windows")
        assert (lines["peak / mean, 60 s"].text, lines["peak / mean, 60 s"].note) == ("–", "under 10 windows")

    def test_no_shared_prefix_is_said(self) -> None:
        assert figures.curve_notes(drawn(singles(30)))[0].startswith("no prompt begins as an earlier one does")
        assert "no shared prefixes" in figures.in_a_sentence(drawn(singles(30)))

    def test_what_is_shared_may_be_less_than_a_block(self) -> None:
        portrait = drawn(Scripted(((0.0, ((0.0, 10, 1), (0.0, 300, 1))),)))
        assert portrait.figures["prefix_bound"] > 0
        assert figures.curve_notes(portrait) == ["what prompts share is shorter than a block of 16 tokens"]

    def test_programs_are_told_why_a_figure_is_absent(self) -> None:
        assert figures.absent(drawn(singles(30)))["dispersion_60s"] == "there are fewer than 10 windows of 60 s"
        assert "all sessions wait" in figures.absent(drawn(singles(30, 0.0)))["gap_cv"]
        assert "dispersion_1s" not in figures.absent(drawn(singles(30)))

    def test_sessions_that_never_pause_say_so(self) -> None:
        assert [line.title for line in figures.session_lines(drawn(dialogues(9, 0.0)))][-1] == "pauses"
        assert session_spreads(drawn(singles(9))) == []

    def test_an_anchor_whose_figure_is_absent_is_neither_met_nor_missed(self) -> None:
        anchors = (Anchor("gap_cv", 0, 1, ""), Anchor("input_p50", 1, 9, ""), Anchor("input_p99", 100, 999, ""))
        shown = subject(singles(30, None), anchors=anchors)
        assert [one["met"] for one in as_data(shown)["anchors"]] == [None, False, True]
        assert figures.anchors_text(shown) == "1 of 3 met"

    def test_anchors_of_real_lengths_are_not_held_against_scaled_ones(self) -> None:
        shown = subject(singles(30), anchors=(Anchor("input_p50", 1, 9, ""),), judged=False)
        assert [one["met"] for one in as_data(shown)["anchors"]] == [None]
        assert figures.anchors_text(shown).startswith("not judged")


class TestPortrait:
    def test_the_first_starts_are_a_closer_look(self) -> None:
        many = portrait("many", singles(3000, 0.5), Seed.of("1"), sessions=3000)
        assert (sum(many.arrivals_per_bin), many.bin_s) == (3000, 13)
        assert (sum(many.opening_per_bin), many.opening_bin_s) == (2000, 9)
        assert [view.title for view in figures.arrival_views(many)] == [
            "all that was drawn", "closer: the first 16 min 39 s",
        ]  # fmt: skip
        assert len(figures.arrival_views(drawn(singles(2000, 0.5)))) == 1
        assert figures.arrival_views(drawn(singles(240, 0.0))) == []
        assert drawn(singles(240, 0.0)).opening_per_bin == (240,)
        assert drawn(singles(240, None)).opening_per_bin == ()

    def test_the_last_bin_is_cut_short_and_left_out(self) -> None:
        (view,) = figures.arrival_views(drawn(singles(121)))
        assert set(view.counts) == {2}

    def test_turns_and_pauses_are_kept(self) -> None:
        assert drawn(singles(240)).turns == (1,) * 240
        assert drawn(dialogues(4)).turns == (2, 3, 2, 3)
        assert drawn(dialogues(4)).think_s == (2.0, 2.0, 6.0, 2.0, 2.0, 6.0)
        assert drawn(dialogues(4)).curve_sample_share == 1
        assert drawn(Scripted(((0.0, ()), (1.0, ((0.0, 5, 5),))))).turns == (1,)

    def test_a_workload_without_sessions_or_out_of_order_is_refused(self) -> None:
        with pytest.raises(WorkloadError, match="nothing has no session"):
            portrait("nothing", singles(0), Seed.of("1"))
        backwards = Scripted(tuple(reversed(singles(3).script)))
        with pytest.raises(WorkloadError, match="in the order of their start"):
            portrait("backwards", backwards, Seed.of("1"))

    def test_the_cache_that_is_large_enough_lies_on_the_curve(self) -> None:
        portrait = drawn(dialogues(400))
        enough = figures.enough_tokens(portrait)
        assert enough is not None
        below = [point for point in portrait.curve if point.capacity_tokens < 0.99 * enough]
        assert all(point.hit_share < 0.9 * portrait.curve[-1].hit_share for point in below)
        assert np.all(np.diff([point.hit_share for point in portrait.curve]) >= 0)
        assert figures.enough_tokens(drawn(singles(30))) is None


class TestOptions:
    def test_values_are_toml_where_they_can_be(self) -> None:
        given = [
            "scale=0.25",
            "path=a/b=c.csv",
            "api='chat'",
            "n=8",
            "on=true",
            "format_options={block_tokens = 64}",
            "x=",
        ]
        assert options_of(given) == {
            "scale": 0.25, "path": "a/b=c.csv", "api": "chat", "n": 8, "on": True,
            "format_options": {"block_tokens": 64}, "x": "",
        }  # fmt: skip

    def test_a_value_of_several_lines_stays_one_value(self) -> None:
        assert options_of(["path=1\nscale = 2"]) == {"path": "1\nscale = 2"}

    @pytest.mark.parametrize(("given", "words"), [(["scale"], "wants key=value"), (["a=1", "a=2"], "given twice")])
    def test_mistakes(self, given: list[str], words: str) -> None:
        with pytest.raises(BadOption, match=words):
            options_of(given)
