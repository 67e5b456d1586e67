"""Figures of workload profiles as text, and the options that name a workload."""

import msgspec
import numpy as np
import pytest

from bakeoff.harness.traffic.profile import figures
from bakeoff.harness.traffic.profile.charts import arrival_charts, session_charts
from bakeoff.harness.traffic.profile.selection import parse_options
from bakeoff.workloads import BadOption, Seed, WorkloadError
from bakeoff.workloads.presets import Anchor
from bakeoff.workloads.profile import profile_workload
from tests.harness.profile_scenes import Scripted, dialogues, profiled, shown_profile, singles


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
        lines = {line.title: line.text for line in figures.arrival_lines(profiled(dialogues(400)))}
        assert lines["sessions"] == "0.250 /s"
        assert lines["requests"] == "0.625 /s"
        assert lines["prompt tokens"] == "125 tok/s"
        assert lines["answer tokens"] == "12.5 tok/s"

    def test_figures_without_a_section_are_extra(self) -> None:
        assert figures.extra_lines(profiled(dialogues(50))) == []
        own = profiled(Scripted(dialogues(3).script, {"tenant_cv_p50": 1.22}))
        assert [(line.title, line.text) for line in figures.extra_lines(own)] == [("tenant_cv_p50", "1.22")]


class TestAbsence:
    def test_missing_arrivals_have_a_reason(self) -> None:
        assert profiled(singles(30)).no_arrivals_reason == ""
        assert "all sessions are waiting when the load begins" in profiled(singles(30, 0.0)).no_arrivals_reason
        assert "has no start times" in profiled(singles(30, None)).no_arrivals_reason

    def test_short_samples_have_no_dispersion_over_long_windows(self) -> None:
        lines = {line.title: line for line in figures.arrival_lines(profiled(singles(200)))}
        assert lines["dispersion, 10 s"].text == "0"
        too_few = ("–", "fewer than 10 windows of 60 s")
        assert (lines["dispersion, 60 s"].text, lines["dispersion, 60 s"].note) == too_few
        assert (lines["peak / mean, 60 s"].text, lines["peak / mean, 60 s"].note) == too_few

    def test_prompts_without_a_common_prefix_are_reported(self) -> None:
        assert figures.curve_notes(profiled(singles(30)))[0].startswith("No two prompts share a prefix")
        assert "no shared prefixes" in figures.summary(profiled(singles(30)))

    def test_shared_prefixes_can_be_shorter_than_a_block(self) -> None:
        profile = profiled(Scripted(((0.0, ((0.0, 10, 1), (0.0, 300, 1))),)))
        assert profile.figures["prefix_bound"] > 0
        assert figures.curve_notes(profile) == ["Shared prefixes are shorter than a block of 16 tokens."]

    def test_json_has_the_reason_for_every_missing_figure(self) -> None:
        assert profiled(singles(30)).absent["dispersion_60s"] == "fewer than 10 windows of 60 s"
        assert "all sessions are waiting" in profiled(singles(30, 0.0)).absent["gap_cv"]
        assert "dispersion_1s" not in profiled(singles(30)).absent

    def test_sessions_without_pauses(self) -> None:
        assert [line.title for line in figures.session_lines(profiled(dialogues(9, 0.0)))][-1] == "pauses"
        assert list(figures.session_lines(profiled(singles(9)))) == session_charts(profiled(singles(9))) == []

    def test_an_anchor_without_a_figure_is_neither_met_nor_missed(self) -> None:
        anchors = (Anchor("gap_cv", 0, 1, ""), Anchor("input_p50", 1, 9, ""), Anchor("input_p99", 100, 999, ""))
        profile = shown_profile(singles(30, None), anchors=anchors)
        assert [anchor["met"] for anchor in msgspec.to_builtins(profile)["anchors"]] == [None, False, True]
        assert figures.anchors_text(profile) == "1 of 3 met"

    def test_anchors_do_not_apply_to_scaled_lengths(self) -> None:
        profile = shown_profile(singles(30), anchors=(Anchor("input_p50", 1, 9, ""),), rescaled=True)
        assert [anchor.met for anchor in profile.anchors] == [None]
        assert figures.anchors_text(profile).startswith("not checked")


class TestProfile:
    def test_the_first_arrivals_get_a_chart_of_their_own(self) -> None:
        many = profile_workload("many", singles(3000, 0.5), Seed.of("1"), sessions=3000)
        assert (sum(many.arrivals.counts), many.arrivals.bin_s) == (3000, 13)
        assert (sum(many.opening.counts), many.opening.bin_s) == (2000, 9)
        whole, closer = arrival_charts(many)
        assert "whole sample" in whole
        assert "the first 16 min 39 s" in closer
        assert len(arrival_charts(profiled(singles(2000, 0.5)))) == 1
        assert arrival_charts(profiled(singles(240, 0.0))) == []
        assert profiled(singles(240, 0.0)).opening.counts == (240,)
        assert profiled(singles(240, None)).opening.counts == ()

    def test_an_incomplete_last_bin_is_not_drawn(self) -> None:
        (chart,) = arrival_charts(profiled(singles(121)))
        assert "120 sessions in bins of 2 s; at most 1 /s, mean 1 /s." in chart

    def test_turns_and_pauses(self) -> None:
        assert (profiled(singles(240)).turns.total, profiled(singles(240)).turns.max) == (240, 1)
        profile = profiled(dialogues(4))
        assert [(bin_.low, bin_.count) for bin_ in profile.turns.bins] == [(2, 2), (3, 2)]
        assert (profile.think_s.total, profile.think_s.p50, profile.think_s.max) == (6, 2.0, 6.0)
        assert profiled(Scripted(((0.0, ()), (1.0, ((0.0, 5, 5),))))).turns.total == 1

    def test_a_workload_without_sessions_or_out_of_order_is_refused(self) -> None:
        with pytest.raises(WorkloadError, match="nothing has no session"):
            profile_workload("nothing", singles(0), Seed.of("1"))
        backwards = Scripted(tuple(reversed(singles(3).script)))
        with pytest.raises(WorkloadError, match="in the order of their start"):
            profile_workload("backwards", backwards, Seed.of("1"))

    def test_the_sufficient_cache_lies_on_the_curve(self) -> None:
        curve = profiled(dialogues(400)).prefix_cache
        sufficient = figures.sufficient_tokens(curve)
        assert sufficient is not None
        below = [point for point in curve.points if point.capacity_tokens < 0.99 * sufficient]
        assert all(point.hit_share < 0.9 * curve.points[-1].hit_share for point in below)
        assert np.all(np.diff([point.hit_share for point in curve.points]) >= 0)
        assert figures.sufficient_tokens(profiled(singles(30)).prefix_cache) is None


class TestOptions:
    def test_values_are_toml_where_they_can_be(self) -> None:
        options = [
            "scale=0.25",
            "path=a/b=c.csv",
            "api='chat'",
            "n=8",
            "on=true",
            "format_options={block_tokens = 64}",
            "x=",
        ]
        assert parse_options(options) == {
            "scale": 0.25, "path": "a/b=c.csv", "api": "chat", "n": 8, "on": True,
            "format_options": {"block_tokens": 64}, "x": "",
        }  # fmt: skip

    def test_a_value_of_several_lines_stays_one_value(self) -> None:
        assert parse_options(["path=1\nscale = 2"]) == {"path": "1\nscale = 2"}

    @pytest.mark.parametrize(("options", "words"), [(["scale"], "needs key=value"), (["a=1", "a=2"], "given twice")])
    def test_mistakes(self, options: list[str], words: str) -> None:
        with pytest.raises(BadOption, match=words):
            parse_options(options)
