"""From a trace to a preset, and how well the preset fits."""

from itertools import islice
from typing import Any

import msgspec
import pytest

from bakeoff.workloads.distributions import Exponential, Fixed, Lognormal, Quantiles, Uniform
from bakeoff.workloads.errors import BadTrace
from bakeoff.workloads.fitting import Distance, Figure, Fit, Goodness, fit, preset_toml, redrawn
from bakeoff.workloads.fitting.goodness import goodness
from bakeoff.workloads.fitting.observed import observe
from bakeoff.workloads.presets import NaturalArrival, PresetTraffic, Shared
from bakeoff.workloads.presets.preset import preset_from
from bakeoff.workloads.profile import profile_workload
from bakeoff.workloads.rng import Rng
from bakeoff.workloads.traces.row import TraceRow
from tests.workloads.fitting.synthetic import SEED, Rows, sessions, single_turns, starts_of

BUDGET = 40_000
INPUTS = Quantiles((0, 0.5, 0.500001, 1), (100, 200, 1000, 4000))
OUTPUTS = Lognormal(4.0, 0.5)
SINGLE = single_turns(starts_of("gamma", 5.0, {"burstiness": 0.4}, 6_000, "4"), INPUTS, OUTPUTS)
GROWING = sessions(
    starts_of("poisson", 0.5, {}, 1_500),
    turns=Quantiles((0, 0.4, 0.400001, 1), (1, 1, 3, 6)),
    first=Uniform(100, 3_000),
    append=Exponential(80.0),
    think=Lognormal(3.0, 0.8),
)


def fitted(trace: Rows, name: str = "made") -> Fit:
    return fit(trace, SEED, name, budget=BUDGET)


@pytest.fixture(scope="module")
def single() -> Fit:
    return fitted(SINGLE)


@pytest.fixture(scope="module")
def growing() -> Fit:
    return fitted(GROWING)


def figure_named(goodness_of_fit: Goodness, name: str) -> Any:
    return next(figure for figure in (*goodness_of_fit.distances, *goodness_of_fit.figures) if figure.name == name)


def test_single_requests(single: Fit):
    preset = single.preset
    assert (single.requests, single.sessions) == (6_000, 6_000)
    assert preset.arrival.process == "gamma"
    assert preset.input.at(0.25) == pytest.approx(150, rel=0.05)
    assert preset.input.share_up_to(600) == pytest.approx(0.5, abs=0.02)
    assert preset.output.mean() == pytest.approx(OUTPUTS.mean(), rel=0.03)
    assert preset.turns == Fixed(1.0)
    assert (preset.shared, preset.correlation) == (None, 0.0)
    assert single.goodness.complaints == ()
    assert {distance.name for distance in single.goodness.distances} == {"input", "output", "gaps_s"}
    assert all(distance.ks < 0.03 for distance in single.goodness.distances)
    assert single.notes == ()


def test_sessions(growing: Fit):
    preset = growing.preset
    assert growing.sessions == 1_500
    assert growing.requests == len(GROWING.trace_rows)
    assert preset.arrival.process == "poisson"
    assert preset.arrival.rate_per_s == pytest.approx(0.5, rel=0.1)
    assert preset.shared == Shared(256)
    assert preset.turns.share_up_to(1) == pytest.approx(0.4, abs=0.04)
    assert preset.append.mean() == pytest.approx(80, rel=0.06)
    assert preset.think_s.at(0.5) == pytest.approx(20, rel=0.08)
    assert growing.goodness.complaints == ()
    assert figure_named(growing.goodness, "prefix_bound").preset == pytest.approx(
        figure_named(growing.goodness, "prefix_bound").trace, rel=0.1
    )
    assert {"first_input", "append", "think_s", "turns"} < {distance.name for distance in growing.goodness.distances}


def test_traffic_of_the_preset_meets_its_anchors_and_survives_the_file(growing: Fit):
    preset = preset_from(preset_toml(growing.preset), "written")
    assert preset == growing.preset
    profile = profile_workload("made", PresetTraffic("made", preset), SEED, sessions=1_500, arrivals=20_000)
    assert {anchor.metric for anchor in preset.anchors} >= {"rate_per_s", "gap_cv", "input_mean", "turns_mean"}
    assert [anchor.metric for anchor in profile.anchors if not anchor.met] == []


@pytest.mark.parametrize(
    ("change", "off"),
    [
        ({"input": Fixed(900.0)}, {"input"}),
        ({"input": Quantiles((0, 1), (200, 9000))}, {"input", "input_mean", "input_per_output"}),
        ({"output": Lognormal(5.0, 0.5)}, {"output", "output_mean", "input_per_output"}),
        ({"arrival": NaturalArrival("poisson", 5.0)}, {"gaps_s", "gap_cv", "dispersion_1s", "dispersion_10s"}),
        ({"arrival": NaturalArrival("gamma", 8.0, {"burstiness": 0.4})}, {"gaps_s", "rate_per_s"}),
    ],
)
def test_a_wrong_preset_is_found_out_where_it_is_wrong(single: Fit, change: dict[str, Any], off: set[str]):
    wrong = msgspec.structs.replace(single.preset, **change)
    goodness_of_fit = goodness(observe(SINGLE, SEED), wrong, SEED, BUDGET)
    failing = {figure.name for figure in (*goodness_of_fit.distances, *goodness_of_fit.figures) if not figure.is_within}
    assert off <= failing
    assert not failing & ({"input", "output", "gaps_s", "rate_per_s", "output_mean"} - off)
    assert all(any(name in complaint for complaint in goodness_of_fit.complaints) for name in off)


def test_differences_within_single_draws_are_no_complaint():
    tolerated, off = Figure("gap_cv", 1.0, 1.2, 0.0, 0.26), Figure("gap_cv", 1.0, 1.3, 0.05, 0.26)
    by_chance = Figure("dispersion_60s", 10.0, 16.0, 2.1, 0.26)
    assert (tolerated.is_within, off.is_within, by_chance.is_within) == (True, False, False)
    assert (off.could_be_chance, by_chance.could_be_chance) == (False, True)
    complaints = Goodness(
        (Distance("input", 0.2, 0.1), Distance("output", 0.1, 0.1)), (tolerated, off, by_chance)
    ).complaints
    assert complaints == (
        "KS of input is 0.200 (at most 0.100)",
        "gap_cv is 1.3, in the trace 1 (+30 %, tolerance 26 %)",
    )


@pytest.mark.parametrize(
    ("change", "off"),
    [
        ({"turns": Fixed(4.0)}, {"turns", "turns_mean"}),
        ({"append": Fixed(500.0)}, {"append", "append_mean"}),
        ({"think_s": Fixed(1.0)}, {"think_s", "think_mean_s"}),
        ({"shared": None, "turns": Fixed(1.0)}, {"prefix_bound", "turns"}),
    ],
)
def test_wrong_sessions_are_found_out_too(growing: Fit, change: dict[str, Any], off: set[str]):
    wrong = msgspec.structs.replace(growing.preset, **change)
    goodness_of_fit = goodness(observe(GROWING, SEED), wrong, SEED, BUDGET)
    assert off <= {
        figure.name for figure in (*goodness_of_fit.distances, *goodness_of_fit.figures) if not figure.is_within
    }


def test_input_and_output_go_together_where_they_did():
    rng = Rng("together")
    pairs = [(level, Uniform(10, 1_000).at(level)) for level in (rng.uniform() for _ in range(2_000))]
    rows = [TraceRow(float(i), round(value), max(2, round(300 * level))) for i, (level, value) in enumerate(pairs)]
    same_order = fitted(Rows(rows))
    assert same_order.preset.correlation > 0.98
    opposite = [msgspec.structs.replace(row, output_tokens=310 - (row.output_tokens or 0)) for row in rows]
    assert fitted(Rows(opposite)).preset.correlation < -0.98


def test_sessions_without_a_clock_and_without_names():
    unclocked = [
        msgspec.structs.replace(row, at_s=None) for row in sorted(GROWING.trace_rows, key=lambda row: row.session or "")
    ]
    without_clock = fitted(Rows(unclocked))
    assert without_clock.sessions == 1_500
    assert without_clock.preset.arrival == NaturalArrival("poisson")
    assert "has no start times" in without_clock.preset.summary
    nameless = fitted(Rows(msgspec.structs.replace(row, session=None) for row in GROWING.trace_rows))
    assert nameless.sessions == nameless.requests
    assert any("because its sessions are unknown" in note for note in nameless.notes)
    assert any("prefix_bound" in complaint for complaint in nameless.goodness.complaints)


def test_what_a_preset_cannot_keep_is_said():
    def rows() -> list[TraceRow]:
        trace_rows: list[TraceRow] = []
        for number, start_s in enumerate(starts_of("poisson", 0.2, {}, 200)):
            trace_rows += [
                TraceRow(start_s, 1_000, 100, f"s{number}"),
                TraceRow(start_s + 30, 1_050, 100, f"s{number}"),
            ]
            trace_rows += [TraceRow(start_s + 60, 900, 100, f"s{number}")]
        return sorted(trace_rows, key=lambda row: row.at_s or 0.0)

    notes = "; ".join(fitted(Rows(rows())).notes)
    assert "50 % of later prompts are no longer than the previous one" in notes
    assert "50 % of later prompts leave out part of the previous answer" in notes
    assert "from request to request" in notes
    whole_seconds = [msgspec.structs.replace(row, at_s=float(int(row.at_s or 0))) for row in SINGLE.trace_rows[:2_000]]
    coarse = fitted(Rows(whole_seconds))
    assert "clock has a resolution of 1 s" in coarse.preset.summary
    assert figure_named(coarse.goodness, "gaps_s").is_within


def test_contexts_that_are_compacted_in_the_trace_are_in_the_preset(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(redrawn, "_CANDIDATE_REQUESTS", 5_000)
    rng, rows = Rng("compacted"), list[TraceRow]()
    for number in range(60):
        held = 1_000 + rng.below(500)
        for _ in range(40):
            rows.append(TraceRow(None, held, 100, f"s{number}"))
            held = held + 100 + rng.below(400)
            held = 2_000 if held > 7_000 else held
    compacted = fitted(Rows(rows))
    assert 5_500 < compacted.preset.max_input_tokens <= 7_000
    assert figure_named(compacted.goodness, "input_mean").is_within
    endless = msgspec.structs.replace(compacted.preset, max_input_tokens=100_000)
    assert not figure_named(goodness(observe(Rows(rows), SEED), endless, SEED, BUDGET), "input_mean").is_within


def test_all_at_once():
    burst = fitted(Rows(TraceRow(0.0, 100 + number, 10 + number % 7) for number in range(200)))
    assert burst.preset.arrival == NaturalArrival("at-once")
    assert not any(distance.name == "gaps_s" for distance in burst.goodness.distances)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "has 0 requests"),
        ([TraceRow(float(i), 10, 10) for i in range(49)], "has 49 requests; a fit needs at least 50"),
        ([TraceRow(float(i), None, None, prompt="why?") for i in range(80)], "request 1 of the trace has no lengths"),
        ([*SINGLE.trace_rows[:60], TraceRow(1e4, 10, None)], "request 61 of the trace has no lengths"),
        ([*SINGLE.trace_rows[:60], TraceRow(0.0, 10, 10)], "the times of the trace are not valid arrivals"),
    ],
)
def test_what_cannot_be_fitted(rows: list[TraceRow], words: str):
    with pytest.raises(BadTrace, match=words):
        fitted(Rows(rows))


def test_fifty_rows_are_enough_and_the_same_seed_gives_the_same_fit():
    few = Rows(islice(SINGLE.trace_rows, 50))
    result = fit(few, SEED, budget=2_000)
    assert result.requests == 50
    assert fit(few, SEED, budget=2_000) == result
