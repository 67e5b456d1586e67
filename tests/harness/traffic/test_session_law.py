"""The sessions in progress at a random instant, against a timeline of the same sessions."""

import itertools
import random

import pytest

from bakeoff.harness.traffic.session_law import BegunCall, SessionLaw
from bakeoff.results.records import Pace
from bakeoff.workloads import SessionShape

PACE = Pace(ttft_s=0.5, token_s=0.1)


def shape(*turns: tuple[int, float]) -> SessionShape:
    return SessionShape(tuple(tokens for tokens, _ in turns), tuple(pause for _, pause in turns))


MIXED = [shape((5, 9.0), (15, 4.0), (5, 1.0)), shape((55, 0.0)), shape((5, 0.0), (5, 30.0))]
"""The pause before a first turn counts as none."""


def calls(law: SessionLaw, count: int, pace: Pace, rng: random.Random) -> list[tuple[int, BegunCall]]:
    """The one call of each conversation in progress, with the conversation's number."""
    begun = law.in_progress(count, pace, rng.random)
    assert all(entry.ended == tuple(range(entry.calls[0].turn)) for entry in begun)
    return [(entry.number, call) for entry in begun for call in entry.calls]


def timeline(shapes: list[SessionShape]) -> list[tuple[int, int, bool, float]]:
    """Session, turn, whether it is a pause, and seconds, of sessions one after the other; written out by hand."""
    parts = []
    for number, session in enumerate(shapes):
        for turn, (tokens, pause) in enumerate(zip(session.output_tokens, session.think_s, strict=True)):
            if turn:
                parts.append((number, turn, True, pause))
            parts.append((number, turn, False, 0.5 + 0.1 * (tokens - 1)))
    return parts


def test_means_of_the_law():
    law = SessionLaw(MIXED)
    assert (law.turns, law.mean_turn) == (2.0, pytest.approx(4 / 6))
    assert law.think_s == pytest.approx(35 / 6)
    assert law.output_tokens == pytest.approx(90 / 6)
    assert law.session_s(PACE) == pytest.approx(sum(seconds for *_, seconds in timeline(MIXED)) / 3)
    assert SessionLaw.of([]) is None


def test_sessions_in_progress_are_met_in_proportion_to_their_duration():
    """Counts are those of random instants on the timeline, and rests those of uniform points."""
    begun = calls(SessionLaw(MIXED), 4600, PACE, random.Random(1))
    parts = timeline(MIXED)
    total_s = sum(seconds for *_, seconds in parts)
    for number, turn, is_pause, seconds in parts:
        met = [b for of, b in begun if (of, b.turn, b.delay_s > 0) == (number, turn, is_pause)]
        assert len(met) / len(begun) == pytest.approx(seconds / total_s, abs=0.002)
        rest = [b.delay_s / seconds if is_pause else b.part for b in met]
        assert sum(rest) / len(rest) == pytest.approx(0.5, abs=0.16), "an answer of five tokens has five rests"


def test_the_rest_of_an_answer_takes_the_rest_of_its_time():
    """Length-biased: the mean rest is E[S²] / 2 E[S], here of answers of 6 and 1 s."""
    law = SessionLaw([shape((56, 0.0)), shape((6, 0.0))])
    begun = calls(law, 700, PACE, random.Random(1))
    tokens = [round(b.part * (56, 6)[number]) for number, b in begun]
    rests_s = [0.5 + 0.1 * (count - 1) for count in tokens]
    assert sum(rests_s) / len(rests_s) == pytest.approx((36 + 1) / (2 * 7), rel=0.03)


def test_a_load_of_sessions_in_progress_sends_requests_at_its_long_run_rate_from_the_start():
    """Open loop, simulated without the product: sessions in progress and one new session per second."""
    law, rng = SessionLaw(MIXED), random.Random(1)
    sent: list[float] = []

    def run(start_s: float, session: SessionShape, turn: int, part: float = 1.0) -> None:
        for position in range(turn, len(session.output_tokens)):
            if position > turn:
                start_s += session.think_s[position]
            sent.append(start_s)
            tokens = session.output_tokens[position] * (part if position == turn else 1.0)
            start_s += 0.5 + 0.1 * (tokens - 1)

    for number, call in calls(law, round(20 * law.session_s(PACE)), PACE, rng):
        run(call.delay_s, MIXED[number], call.turn, call.part)
    for number in range(20 * 40):
        run(number / 20, rng.choice(MIXED), 0)
    for from_s in (1, 10, 20, 30):
        count = sum(from_s <= t < from_s + 10 for t in sent)
        assert count == pytest.approx(20 * 2 * 10, rel=0.1), f"from {from_s} s"


def test_sessions_that_are_all_alike_are_met_at_different_instants():
    alike = [shape((5, 0.0), (5, 10.0))] * 100
    delays = [b.delay_s for _, b in calls(SessionLaw(alike), 50, PACE, random.Random(1)) if b.delay_s]
    assert len({round(delay) for delay in delays}) >= 9


@pytest.mark.parametrize(("token_s", "count"), [(0.1, 100), (0.13, 100), (0.13, 102)])
def test_engines_of_other_paces_begin_mostly_with_the_same_turns(token_s: float, count: int):
    """Sessions of a minute, of which answers are a tenth: an independent draw would meet one turn in twenty again."""
    rng = random.Random(1)
    shapes = [shape(*((rng.randint(1, 40), rng.uniform(1.0, 40.0)) for _ in range(4))) for _ in range(2000)]
    one, other = (
        {(of, b.turn) for of, b in calls(SessionLaw(shapes), number, pace, random.Random(2))}
        for number, pace in ((100, PACE), (count, Pace(0.5, token_s)))
    )
    assert len(one & other) >= (0.9 if count == 100 else 0.5) * 100


@pytest.mark.parametrize(
    ("shapes", "closed", "off"),
    [
        ([shape((55, 0.0))], False, False),
        (MIXED, False, True),
        (MIXED, True, True),
        ([shape((5, 0.0), (5, 0.0))], True, False),
        ([shape((5, 0.0), (5, 0.0))], False, True),
        ([shape((5, 0.0), (5, 1000.0))], False, False),
    ],
    ids=["one turn", "pauses", "pauses, closed", "no pauses, closed", "no pauses", "answers are short beside pauses"],
)
def test_only_sessions_of_several_turns_depend_on_the_pace(shapes: list[SessionShape], closed: bool, off: bool):
    law = SessionLaw(shapes)
    assert law.is_off(Pace(0.5, 0.1), Pace(1.0, 0.2), closed=closed) is off
    assert not law.is_off(PACE, PACE, closed=closed)


def test_sessions_that_take_no_time_are_begun_anew():
    law = SessionLaw(list(itertools.repeat(shape((5, 0.0)), 2)))
    assert [b.number for b in law.in_progress(3, Pace(0.0, 0.0), random.random)] == [0, 1, 0]


def test_a_pace_of_few_different_answers_is_not_held_against_the_assumed_one():
    law = SessionLaw(MIXED)
    assumed, measured = Pace(0.5, 0.1), Pace(0.65, 0.13)
    assert law.is_off(assumed, measured, closed=False, error=0.01)
    assert not law.is_off(assumed, measured, closed=False, error=0.3)
    assert law.is_off(Pace(0.0, 0.0), measured, closed=False, error=0.3), "nothing was known of it"
