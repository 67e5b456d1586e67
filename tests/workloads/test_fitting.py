"""From a trace to a preset, and how well the preset fits."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
import pytest

from bakeoff.workloads.arrivals import arrival
from bakeoff.workloads.distributions import Distribution, Exponential, Fixed, Lognormal, Quantiles, Uniform
from bakeoff.workloads.errors import BadTrace, NoTokenizer, WorkloadError
from bakeoff.workloads.fitting import Comparison, Fit, fit
from bakeoff.workloads.outline import SessionOutline, TurnOutline
from bakeoff.workloads.presets import NaturalArrival, Preset, PresetTraffic, Shared, SubAgents
from bakeoff.workloads.presets.preset import preset_from
from bakeoff.workloads.presets.toml import preset_toml
from bakeoff.workloads.profile import profile_workload
from bakeoff.workloads.rng import Rng, Seed
from bakeoff.workloads.tokenizer import Tokenizer
from bakeoff.workloads.types import Session

SEED = Seed.of("7")
INPUTS = Quantiles((0, 0.5, 0.500001, 1), (100, 200, 1000, 4000))
OUTPUTS = Lognormal(4.0, 0.5)
SYSTEM = ("system", 256)


class Recorded:
    """Sessions in memory."""

    def __init__(self, recorded: Iterable[SessionOutline]) -> None:
        self.recorded = list(recorded)

    def outlines(self, seed: Seed) -> Iterator[SessionOutline]:
        del seed
        return iter(self.recorded)

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        raise NotImplementedError

    def notes(self) -> list[str]:
        return []


def starts_of(process: str, rate: float, options: dict[str, Any], count: int) -> list[float]:
    return list(islice(arrival(process, rate, options).offsets_s("3"), count))


def turn(name: str, input_tokens: int, output_tokens: int, think_s: float = 0.0) -> TurnOutline:
    return TurnOutline(input_tokens, output_tokens, think_s, ((name, input_tokens),))


def single_turns(starts_s: Iterable[float | None], inputs: Distribution, outputs: Distribution) -> Recorded:
    rng = Rng("single turns")
    return Recorded(
        SessionOutline(
            f"s{i}", start_s, (turn(f"s{i}", max(1, round(inputs.sample(rng))), max(2, round(outputs.sample(rng)))),)
        )
        for i, start_s in enumerate(starts_s)
    )


def growing_sessions(starts_s: Iterable[float], turns: Distribution, append: Distribution) -> Iterator[SessionOutline]:
    """Prompts that grow by the last answer and the appended text; all sessions share 256 tokens."""
    rng = Rng("sessions")
    for number, start_s in enumerate(starts_s):
        segments, made = [SYSTEM, (f"first {number}", 100 + rng.below(2900))], list[TurnOutline]()
        for k in range(max(1, round(turns.sample(rng)))):
            if k:
                segments.append((f"more {number}.{k}", max(1, round(append.sample(rng)))))
            output = 2 + rng.below(200)
            think_s = Lognormal(3.0, 0.8).sample(rng) if k else 0.0
            made.append(TurnOutline(sum(tokens for _, tokens in segments), output, think_s, tuple(segments)))
            segments.append((f"answer {number}.{k}", output))
        yield SessionOutline(f"s{number}", start_s, tuple(made))


def figures_of(fitted: Fit) -> dict[str, Comparison]:
    return {figure.name: figure for figure in fitted.figures}


def test_single_requests():
    fitted = fit(single_turns(starts_of("gamma", 5.0, {"burstiness": 0.4}, 3_000), INPUTS, OUTPUTS), SEED)
    preset = fitted.preset
    assert (fitted.requests, fitted.sessions) == (3_000, 3_000)
    assert preset.arrival.process == "gamma"
    assert preset.arrival.options["burstiness"] == pytest.approx(0.4, rel=0.15)
    assert preset.arrival.rate_per_s == pytest.approx(5.0, rel=0.1)
    assert preset.input.at(0.25) == pytest.approx(150, rel=0.05)
    assert preset.input.share_up_to(600) == pytest.approx(0.5, abs=0.02)
    assert preset.output.mean() == pytest.approx(OUTPUTS.mean(), rel=0.03)
    assert preset.turns == Fixed(1.0)
    assert (preset.shared, preset.correlation) == (None, 0.0)
    assert (fitted.poor, fitted.notes) == ((), ())


@pytest.mark.slow
def test_sessions_meet_their_anchors_and_survive_the_file():
    turns = Quantiles((0, 0.4, 0.400001, 1), (1, 1, 3, 6))
    recorded = Recorded(growing_sessions(starts_of("poisson", 0.5, {}, 1_000), turns, Exponential(80.0)))
    fitted = fit(recorded, SEED, "made")
    preset = fitted.preset
    assert fitted.requests == sum(len(session.turns) for session in recorded.recorded)
    assert preset.arrival.process == "poisson" or preset.arrival.options["burstiness"] == pytest.approx(1, abs=0.15)
    assert preset.shared == Shared(256)
    assert preset.turns.share_up_to(1) == pytest.approx(0.4, abs=0.04)
    assert preset.append.mean() == pytest.approx(80, rel=0.06)
    assert preset.think_s.at(0.5) == pytest.approx(20, rel=0.08)
    assert fitted.poor == ()
    assert preset_from(preset_toml(preset), "written") == preset
    profile = profile_workload("made", PresetTraffic("made", preset), SEED, sessions=1_000, arrivals=20_000)
    assert {anchor.metric for anchor in preset.anchors} >= {"rate_per_s", "gap_cv", "input_mean", "turns_mean"}
    assert [anchor.metric for anchor in profile.anchors if not anchor.met] == []


def test_bursts_that_a_renewal_process_lacks_are_a_poor_fit():
    """The rate drifts, but neighbouring gaps do not tell."""
    options = {"sigma": 0.7, "memory_s": 120.0, "burstiness": 1.0}
    fitted = fit(single_turns(starts_of("drift", 5.0, options, 3_000), INPUTS, OUTPUTS), SEED)
    assert "dispersion_10s" in fitted.poor
    assert not set(fitted.poor) & {"rate_per_s", "input_mean", "output_mean"}
    assert any("replay the trace" in note for note in fitted.notes)
    assert fitted.notes[0] in fitted.preset.summary


def test_differences_are_relative_to_the_trace():
    assert Comparison("gap_cv", 1.0, 1.2, 0.26).is_within
    assert not Comparison("gap_cv", 1.0, 1.3, 0.26).is_within
    assert Comparison("prefix_bound", 0.0, 0.0, 0.18).is_within
    assert not Comparison("prefix_bound", 0.0, 0.1, 0.18).is_within


@pytest.mark.parametrize("sign", [1, -1])
def test_input_and_output_go_together_where_they_did(sign: int):
    rng = Rng("together")
    turns = [turn(f"s{i}", 10 + rng.below(1_000), 0) for i in range(2_000)]
    turns = [msgspec.structs.replace(each, output_tokens=2_000 + sign * each.input_tokens) for each in turns]
    recorded = Recorded(SessionOutline(f"s{i}", float(i), (each,)) for i, each in enumerate(turns))
    assert sign * fit(recorded, SEED).preset.correlation > 0.98


@pytest.mark.parametrize(
    ("starts_s", "expected", "words"),
    [
        ([None] * 200, NaturalArrival("poisson"), "has no start times"),
        ([0.0] * 200, NaturalArrival("at-once"), "start at once"),
        ([0.5 * i for i in range(200)], NaturalArrival("constant", 2.0), "all equal"),
    ],
)
def test_times_that_are_no_random_process(starts_s: list[float | None], expected: NaturalArrival, words: str):
    fitted = fit(single_turns(starts_s, INPUTS, OUTPUTS), SEED)
    assert fitted.preset.arrival == expected
    assert words in fitted.arrivals


def test_a_few_starts_are_only_a_rate():
    turns = tuple(turn(f"t{k}", 100 + 50 * k, 10, 1.0) for k in range(3))
    fitted = fit(Recorded(SessionOutline(f"s{i}", 2.0 * i + i % 3, turns) for i in range(20)), SEED)
    assert fitted.preset.arrival == NaturalArrival("poisson", 0.4872)
    assert "20 starts determine only a rate: Poisson is used" in fitted.preset.summary


def test_what_a_preset_cannot_keep_is_said():
    turns = (turn("a", 1_000, 100), turn("b", 1_050, 100), turn("c", 900, 100))
    notes = "; ".join(fit(Recorded(SessionOutline(f"s{i}", i * 1.5, turns) for i in range(200)), SEED).notes)
    assert "50 % of later prompts are not longer than the previous one" in notes
    assert "50 % of later prompts leave out part of the previous answer" in notes
    assert "pauses between turns are unknown" in notes


@pytest.mark.nightly
@pytest.mark.slow
def test_contexts_that_are_compacted_in_the_trace_are_in_the_preset():
    rng, recorded = Rng("compacted"), list[SessionOutline]()
    for number in range(30):
        held, turns = 1_000 + rng.below(500), list[TurnOutline]()
        for k in range(20):
            turns.append(turn(f"{number}.{k}", held, 100))
            held += 100 + rng.below(400)
            held = 2_000 if held > 7_000 else held
        recorded.append(SessionOutline(f"s{number}", None, tuple(turns)))
    fitted = fit(Recorded(recorded), SEED)
    assert 5_500 < fitted.preset.max_input_tokens < 7_000
    assert figures_of(fitted)["input_mean"].is_within


@pytest.mark.parametrize("count", [0, 49])
def test_too_few_requests_are_refused(count: int):
    with pytest.raises(BadTrace, match=f"has {count} requests; a fit needs at least 50"):
        fit(single_turns([float(i) for i in range(count)], INPUTS, OUTPUTS), SEED)


def test_times_must_not_decrease():
    with pytest.raises(WorkloadError, match="in the order of their start"):
        fit(single_turns([*map(float, range(60)), 0.0], INPUTS, OUTPUTS), SEED)


def test_text_without_lengths_needs_a_tokenizer():
    class Text(Recorded):
        def outlines(self, seed: Seed) -> Iterator[SessionOutline]:
            del seed
            raise NoTokenizer("the trace has text but no lengths; give a tokenizer's folder")

    with pytest.raises(NoTokenizer):
        fit(Text([]), SEED)


def test_fifty_requests_are_enough_and_the_same_seed_gives_the_same_fit():
    few = single_turns(starts_of("poisson", 5.0, {}, 50), Uniform(10, 90), OUTPUTS)
    result = fit(few, SEED)
    assert result.requests == 50
    assert fit(few, SEED) == result


SUB_AGENTS = SubAgents(
    start_share=0.3,
    at_once=Quantiles((0, 0.5, 0.500001, 1), (1, 1, 2, 2)),
    input=Uniform(400, 500),
    output=Uniform(20, 40),
    last_output=Uniform(200, 300),
    turns=Uniform(2, 4),
    append=Uniform(10, 30),
    think_s=Exponential(4.0),
    start_pause_s=Fixed(0.5),
    join_pause_s=Uniform(6, 8),
    background_share=0.2,
    shared=Shared(350),
)
WITH_SUB_AGENTS = Preset(
    summary="made",
    source="nobody",
    arrival=NaturalArrival("poisson", 0.1),
    input=Uniform(1_000, 2_000),
    output=Uniform(50, 150),
    turns=Uniform(3, 5),
    append=Uniform(100, 200),
    think_s=Exponential(20.0),
    shared=Shared(900),
    sub_agents=SUB_AGENTS,
)


@pytest.mark.slow
def test_sub_agents_are_fitted_apart_from_the_main_agent():
    fitted = fit(Recorded(islice(PresetTraffic("made", WITH_SUB_AGENTS).outlines(SEED), 400)), Seed.of("8"))
    preset, found = fitted.preset, fitted.preset.sub_agents
    assert found is not None
    assert found.start_share == pytest.approx(0.3, abs=0.03)
    assert found.at_once.mean() == pytest.approx(1.5, rel=0.05)
    assert found.background_share == pytest.approx(0.2, abs=0.02)
    assert (found.shared, preset.shared) == (Shared(350), Shared(900))
    assert found.start_pause_s == Fixed(0.5)
    for name in ("input", "output", "last_output", "turns", "append", "think_s", "join_pause_s"):
        assert getattr(found, name).mean() == pytest.approx(getattr(SUB_AGENTS, name).mean(), rel=0.05), name
    for name in ("input", "output", "turns", "append", "think_s"):
        assert getattr(preset, name).mean() == pytest.approx(getattr(WITH_SUB_AGENTS, name).mean(), rel=0.05), name
    assert fitted.poor == ()
    assert {"sub_agent_share", "sub_agents_mean"} <= {anchor.metric for anchor in preset.anchors}
    assert preset_from(preset_toml(preset), "written") == preset


def call(agent: str, *parents: int, lags_s: tuple[float, ...] = (), think_s: float = 1.0) -> TurnOutline:
    return TurnOutline(100, 10, think_s, (("x", 100),), parents, lags_s, agent)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("turns", "note"),
    [
        ((call(""), call("a", 0), call("a/b", 1), call("", 0, 1, 2)), "50 % of sub-agents are not started by the main"),
        ((call(""), call("", 0), call("", 0), call("", 1, 2)), "25 % of requests run beside others of their agent"),
        ((call(""), call("a", 0)), "no sub-agent starts before the main agent's last request; sub-agents are left out"),
    ],
)
def test_graphs_that_a_preset_cannot_draw_are_noted(turns: tuple[TurnOutline, ...], note: str):
    fitted = fit(Recorded(SessionOutline(f"s{i}", None, turns) for i in range(30)), SEED)
    assert any(found.startswith(note) for found in fitted.notes), fitted.notes
    assert note in fitted.preset.summary


def test_the_pause_before_a_join_counts_from_the_end_of_a_sub_agent_behind_its_last_answer():
    turns = (call(""), call("a", 0), call("", 0, 1, lags_s=(0.0, 5.0), think_s=2.0))
    fitted = fit(Recorded(SessionOutline(f"s{i}", None, turns) for i in range(30)), SEED)
    assert fitted.preset.sub_agents is not None
    assert fitted.preset.sub_agents.join_pause_s == Fixed(7.0)
