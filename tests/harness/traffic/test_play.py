"""Loads by rules of play: points, primers, warm-up calls and rests, against timelines written out by hand."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bakeoff.harness.rules.rule_set import Rules, rules_named
from bakeoff.harness.traffic.plan_file import PlanFile
from bakeoff.harness.traffic.play import Play, lane_of, planned_play
from bakeoff.workloads import BadOption, EndlessCache, PlannedSession, Session, Turn, prompt_reader
from bakeoff.workloads.approximate import ApproximateTokenizer

AGENTX = rules_named("agentx-harness-1.0")


def turn(name: str, recorded_s: float, think_s: float, parents: tuple[int, ...] | None = None, agent: str = "") -> Turn:
    return Turn(
        1, 5, prompt=name, think_s=think_s, parents=parents, agent=agent, recorded_s=recorded_s
    )  # fmt: skip


CHAIN = tuple(turn(f"c{number}", 1.0, 9.0 if number else 0.0) for number in range(21))
"""Calls at 0, 10, … 200 s, each answered after a second."""
TREE = (
    turn("root", 2.0, 0.0, ()),
    turn("child", 4.0, 1.0, (0,), "a"),
    turn("child", 3.0, 1.0, (1,), "a"),
    turn("join", 1.0, 9.0, (0, 2)),
)
"""Calls at 0, 3, 8 and 20 s."""


def at_share(share: float, **changes: object) -> Rules:
    """AgentX's rules with the point at a share of the recorded time."""
    return msgspec.structs.replace(AGENTX, start_share=(share, share), **changes)


def play_of(tmp_path: Path, rules: Rules, sessions: Iterator[Session], lanes: int, duration_s: float = 100.0) -> Play:
    endless, reader = EndlessCache(), prompt_reader(ApproximateTokenizer())

    def file_of(name: str, plan: Iterator[PlannedSession]) -> PlanFile:
        return PlanFile(tmp_path / name, plan, reader, endless)

    return planned_play(rules, sessions, lanes, seed=7, duration_s=duration_s, file_of=file_of)


def named(number: int, turns: tuple[Turn, ...] = CHAIN) -> Session:
    return Session(f"s{number}", turns)


def test_a_point_is_drawn_for_session_and_lane():
    lane = lane_of(named(3), msgspec.structs.replace(AGENTX, warm_up_calls=0), 5, 42)
    digest = hashlib.sha256(b"42:s3:5").digest()
    point_s = 200 * np.random.default_rng(int.from_bytes(digest[:8], "big")).uniform(0.25, 0.75)
    (call,) = lane.begun.calls
    assert len(lane.begun.ended) == int(point_s // 10) + 1 == call.turn
    assert call.delay_s == pytest.approx(10 * call.turn - point_s)


def test_calls_before_the_point_have_been_answered_and_warm_up_calls_follow():
    lane = lane_of(named(0), at_share(0.5), 0, 1)
    assert lane.warm_up == tuple(range(10, 20))
    assert lane.begun.ended == tuple(range(20))
    (call,) = lane.begun.calls
    assert (call.turn, call.delay_s) == (20, 9.0)  # the recorded pause after the last warm-up call


def test_at_least_one_call_is_left():
    lane = lane_of(named(0), at_share(1.0), 0, 1)
    assert (lane.warm_up, lane.begun.calls[0].turn) == ((), 20)


def test_the_point_of_a_tree_cuts_its_agents():
    lane = lane_of(named(0, TREE), at_share(0.3, warm_up_calls=0), 0, 1)
    assert lane.begun.ended == (0, 1)
    assert [(call.turn, call.delay_s) for call in lane.begun.calls] == [(2, 2.0)]
    warm = lane_of(named(0, TREE), at_share(0.3, warm_up_calls=1), 0, 1)
    assert warm.warm_up == (2,)
    assert [(call.turn, call.delay_s) for call in warm.begun.calls] == [(3, 9.0)]


def test_what_is_sent_before_the_load(tmp_path: Path):
    play = play_of(tmp_path, at_share(0.3, warm_up_calls=1), iter([named(0, TREE), named(1)]), 2)
    primers = [(planned.session.turns[0].prompt, planned.session.turns[0].output_tokens) for planned in play.primers]
    assert primers == [("root", 1), ("child", 1), ("c5", 1)]
    warm_up = [[(t.prompt, t.output_tokens, t.think_s) for t in planned.session.turns] for planned in play.warm_up]
    assert warm_up == [[("child", 1, 0.0)], [("c6", 1, 0.0)]]
    plays = [[planned.play for planned in part] for part in (play.primers, play.warm_up, play.sessions())]
    assert plays == [["b0", "b0", "b1"], ["b0", "b1"], ["b0", "b1"]]


def test_the_first_call_of_the_load_goes_out_at_once(tmp_path: Path):
    rules = at_share(0.52, warm_up_calls=0)  # 104 s of the chain, 10.4 of the tree
    offsets_s = [
        planned.offset_s for planned in play_of(tmp_path, rules, iter([named(0), named(1, TREE)]), 2).sessions()
    ]
    assert offsets_s == pytest.approx([0.0, 3.6])
    later = msgspec.structs.replace(rules, first_at_once=False)
    (tmp_path / "later").mkdir()
    sessions = iter([named(0), named(1, TREE)])
    assert [p.offset_s for p in play_of(tmp_path / "later", later, sessions, 2).sessions()] == pytest.approx([6.0, 9.6])


def test_lanes_go_on_with_whole_sessions_for_the_length_of_the_load(tmp_path: Path):
    """The rest of the tree takes at least 9.6 s, a whole tree 14; a chain 21 calls of at least 0.01 s and 180 s."""
    play = play_of(tmp_path, at_share(0.52, warm_up_calls=0), (named(n, TREE) for n in range(99)), 1, duration_s=40.0)
    planned = list(play.sessions())
    assert [entry.offset_s for entry in planned] == [0.0, *[None] * (len(planned) - 1)]
    assert [entry.session.id for entry in planned] == [f"s{number}" for number in range(len(planned))]
    assert all(len(entry.session.turns) == 4 for entry in planned[1:])
    assert len(planned) == 4


def test_by_count_each_session_is_played_once_from_its_first_call(tmp_path: Path):
    rules = rules_named("mlperf-endpoints")
    play = play_of(tmp_path, rules, iter([named(0), named(1, TREE), named(2)]), 2)
    assert [(p.session.id, len(p.session.turns)) for p in play.sessions()] == [("s0", 21), ("s1", 4), ("s2", 21)]
    assert not list(play.primers)
    assert not list(play.warm_up)


def test_sessions_without_end_cannot_be_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bakeoff.harness.traffic.play._MAX_REQUESTS", 100)
    with pytest.raises(BadOption, match=r"trial\.max_requests"):
        play_of(tmp_path, rules_named("mlperf-endpoints"), (named(n, TREE) for n in range(10**9)), 2)
