"""A workload profile's figures, against traffic whose figures are known."""

from collections.abc import Iterator

import msgspec
import pytest

from bakeoff.workloads import NoTokenizer, Random, Seed, Session, Tokenizer, WorkloadError
from bakeoff.workloads.dispersion import ArrivalCounts
from bakeoff.workloads.outline import SessionOutline, TurnOutline
from bakeoff.workloads.presets.preset import Anchor
from bakeoff.workloads.profile import WorkloadProfile, check_anchor, profile_workload

SEED = Seed.of("1")


class FixedSessions:
    """Fixed sessions without words."""

    def __init__(self, *sessions: SessionOutline) -> None:
        self._sessions = sessions

    def outlines(self, seed: Seed) -> Iterator[SessionOutline]:
        return iter(self._sessions)

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        raise AssertionError("no prompt is written if the workload can be outlined")

    def notes(self) -> list[str]:
        return ["known"]


def turn(*segments: tuple[str, int], output: int = 100, think_s: float = 0.0) -> TurnOutline:
    return TurnOutline(sum(tokens for _, tokens in segments), output, think_s, segments)


def session(name: str, start_s: float | None, *turns: TurnOutline) -> SessionOutline:
    return SessionOutline(name, start_s, turns)


SYSTEM = ("system", 160)
TALK = (turn(SYSTEM, ("q0", 40)), turn(SYSTEM, ("q0", 40), ("a0", 100), ("q1", 20), output=60, think_s=8.0))
TRAFFIC = FixedSessions(
    session("a", 0.0, *TALK),
    session("b", 4.0, turn(SYSTEM, ("b", 90), output=50)),
    session("c", 6.0, turn(("c", 320), output=40)),
    session("d", 14.0, turn(SYSTEM, ("d", 40), output=150)),
)


def profiled(source: FixedSessions = TRAFFIC) -> WorkloadProfile:
    return profile_workload("known", source, SEED)


def test_figures_are_those_of_the_sample() -> None:
    profile = profiled()
    figures = profile.figures
    assert (profile.name, profile.notes, profile.anchors) == ("known", ("known",), ())
    assert (profile.sessions, profile.requests) == (4, 5)
    assert (profile.turns.total, profile.turns.mean, profile.turns.max) == (4, 5 / 4, 2)
    assert (profile.think_s.total, profile.think_s.mean) == (1, 8.0)
    assert (profile.input_tokens.total, profile.input_tokens.mean, profile.input_tokens.p50) == (5, 258, 250)
    assert (profile.output_tokens.total, profile.output_tokens.mean, profile.output_tokens.max) == (5, 80, 150)
    assert (figures["input_min"], figures["input_p50"], figures["input_max"]) == (200, 250, 320)
    assert figures["output_mean"] == 80
    assert figures["turns_mean"] == 5 / 4
    assert figures["single_turn_share"] == 3 / 4
    assert figures["input_per_output"] == 1290 / 400
    assert (figures["think_p50_s"], figures["think_mean_s"]) == (8.0, 8.0)
    assert figures["rate_per_s"] == pytest.approx(3 / 14)
    assert figures["longest_gap_s"] == 8
    assert figures["prompt_tokens"] == 1290


def test_the_prefix_bound_counts_tokens_of_earlier_prompts() -> None:
    """In order of time: a's second turn comes at 10 s, after b and c, with 200 tokens of its first turn."""
    figures = profiled().figures
    assert figures["prefix_bound"] == (0 + 160 + 0 + 200 + 160) / 1290
    assert figures["new_tokens_p50"] == 120, "of 200, 90, 320, 120 and 40"


def test_the_curve_rises_to_the_bound_in_whole_blocks() -> None:
    profile = profiled()
    curve = profile.prefix_cache
    shares = [point.hit_share for point in curve.points]
    assert shares == sorted(shares)
    assert curve.points[0].capacity_tokens == 320, "the longest prompt"
    assert shares[-1] == (160 + 192 + 160) / 1290


def test_figures_that_cannot_be_computed_are_missing() -> None:
    at_once = profiled(FixedSessions(*(session(str(k), 0.0, turn((str(k), 5))) for k in range(3))))
    silent = profiled(FixedSessions(*(session(str(k), None, turn((str(k), 5))) for k in range(3))))
    for profile in (at_once, silent):
        assert not {"rate_per_s", "gap_cv", "longest_gap_s", "think_p50_s"} & set(profile.figures)
        assert profile.arrivals == ArrivalCounts(0, ())


def test_sub_agents_are_counted_and_a_session_sends_several_calls_at_once() -> None:
    """Two sub-agents start when the main agent's first answer ends; it waits for one of them."""
    start, end = turn(("q", 100)), turn(("q", 100), ("r", 20))
    inner = [msgspec.structs.replace(turn((name, 60)), parents=(0,), agent=name) for name in ("agent_1", "agent_2")]
    family = (msgspec.structs.replace(start, parents=()), *inner, msgspec.structs.replace(end, parents=(0, 1)))
    figures = profiled(FixedSessions(session("a", 0.0, *family), session("b", 9.0, start, end))).figures
    assert figures["sub_agent_share"] == 2 / 6
    assert figures["sub_agents_mean"] == 1
    assert figures["calls_at_once_max"] == 2
    assert figures["prompt_tokens_per_session"] == (340 + 220) / 2
    assert "sub_agent_share" not in profiled().figures


def test_an_anchor_is_met_missed_or_not_checked() -> None:
    figures = profiled().figures
    assert check_anchor(Anchor("turns_mean", 1.25, 1.3, "x"), figures).met is True
    assert check_anchor(Anchor("turns_mean", 1.3, 1.4, "x"), figures).met is False
    assert check_anchor(Anchor("gap_cvv", 0, 1, "x"), figures).met is None
    assert check_anchor(Anchor("turns_mean", 1.25, 1.3, "x"), figures, rescaled=True).met is None


def test_a_workload_without_sessions_is_refused() -> None:
    with pytest.raises(WorkloadError, match="known has no session; check its options, such as max_input_tokens"):
        profiled(FixedSessions())


def test_sessions_out_of_order_are_refused() -> None:
    with pytest.raises(WorkloadError, match="sessions must be in the order of their start"):
        profiled(FixedSessions(session("a", 5.0, turn(("a", 5))), session("b", 4.0, turn(("b", 5)))))


def test_a_workload_without_outlines_needs_a_tokenizer(small: Tokenizer) -> None:
    with pytest.raises(NoTokenizer):
        profile_workload("random", Random(), SEED)
    profile = profile_workload("random", Random(40, 3), SEED, tokenizer=small, sessions=5)
    assert (profile.input_tokens.total, profile.input_tokens.mean, profile.input_tokens.max) == (5, 40, 40)
    assert profile.figures["prefix_bound"] == 0
