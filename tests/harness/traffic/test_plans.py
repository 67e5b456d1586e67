"""Planned traffic: equal lengths for all engines and repeats, different words, counted before anything is sent."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bakeoff.harness.client.wire.fake import ScriptedTransport
from bakeoff.harness.client.wire.orders import Ramped
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.traffic.beginning import Beginning
from bakeoff.harness.traffic.plan_file import PlanFile
from bakeoff.harness.traffic.planner import SteadyTraffic, TrafficPlanner, VaryingTraffic, traffic_planner
from bakeoff.harness.traffic.steady import SteadyOrders
from bakeoff.results.records import Cache, Load, Pace
from bakeoff.workloads import BadOption, EndlessCache, PlannedSession, PromptReader, Session, Tokenizer, Turn
from bakeoff.workloads.plan import plan_sha256
from tests.harness.driving import ANSWER, drive, wire
from tests.workloads.small_tokenizers import checkpoint

CLOSED, OPEN = Load(concurrency=2), Load(rate_per_s=4.0, arrival="poisson")
URL = "http://127.0.0.1:9"
TWO_SERVERS = [
    {"adapter": "openai", "label": "a", "url": URL},
    {"adapter": "openai", "label": "b", "url": "http://127.0.0.1:8"},
]
ONE_SERVER = [{"adapter": "openai", "label": label, "url": URL} for label in "ab"]
CHAT = {"name": "chat", "options": {"scale": 0.1, "max_input_tokens": 120}}
RAG = {"name": "rag", "options": {"scale": 0.1}}
TALK = {"name": "multi-turn", "options": {"scale": 0.05}}
LIMITS = {"duration_s": 5.0, "max_window_s": 5.0, "timeout_s": 5.0, "min_requests": 12, "max_requests": 12}
"""Twelve sessions at the most, without the turns that a load of twenty seconds cannot reach."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(checkpoint(tmp_path_factory.mktemp("tokenizer"), bare=True, merges=800))


def make_experiment(**changes: Any) -> Experiment:
    data: dict[str, Any] = {
        "name": "t", "engines": TWO_SERVERS, "workload": CHAT, "loads": [{"concurrency": 2}], "trial": LIMITS, **changes
    }  # fmt: skip
    return experiment_from(data, "t")


@pytest.fixture
def planner_of(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    def planner(*, redraw: bool = False, **changes: Any) -> TrafficPlanner:
        return TrafficPlanner(make_experiment(**changes), tokenizer, tmp_path_factory.mktemp("plans"), redraw=redraw)

    return planner


def trial(**changes: Any) -> dict[str, Any]:
    return {"trial": LIMITS | changes}


def pools(traffic: SteadyTraffic) -> tuple[PlanFile, PlanFile]:
    return traffic.ramp_again(0).plan, traffic.tail.plan


def turns(sessions: Iterable[PlannedSession]) -> list[Turn]:
    return [turn for planned in sessions for turn in planned.session.turns]


def contents(sessions: Iterable[PlannedSession]) -> list[str]:
    return [turn.messages[-1].content if turn.messages else turn.prompt or "" for turn in turns(sessions)]


def shape(traffic: SteadyTraffic) -> list[object]:
    return [
        (
            planned.session.id,
            planned.offset_s,
            [(t.input_tokens, t.output_tokens, t.think_s) for t in planned.session.turns],
        )
        for planned in traffic.window
    ]


@pytest.mark.parametrize("workload", [CHAT, RAG, TALK, {"name": "random", "options": {"spread": 0.5}}])
@pytest.mark.parametrize("load", [CLOSED, OPEN])
def test_lengths_are_equal_for_all_repeats_and_engines_and_words_differ_between_repeats(
    planner_of: Any, workload: dict[str, Any], load: Load
):
    planner = planner_of(workload=workload)
    by_trial = {(repeat, engine): planner.traffic(load, repeat, engine) for repeat in (1, 2) for engine in "ab"}
    assert len({traffic.shape_sha256 for traffic in by_trial.values()}) == 1
    assert by_trial[1, "a"] is by_trial[1, "b"], "engines at addresses of their own get the same bytes, planned once"
    second = by_trial[2, "a"]
    again = planner_of(workload=workload).traffic(load, 1, "a")
    assert shape(again) == shape(second)
    assert all(a != b for a, b in zip(contents(again.window), contents(second.window), strict=True))
    assert again.record == by_trial[1, "a"].record
    assert again.record.sha256 != second.record.sha256
    for pool, other_pool in zip(pools(again), pools(second), strict=True):
        assert pool.shape_sha256 == other_pool.shape_sha256
        assert not set(contents(pool)) & set(contents(other_pool))


@pytest.mark.parametrize("load", [CLOSED, OPEN])
def test_traffic_can_be_drawn_anew_for_each_repeat(planner_of: Any, load: Load):
    planner = planner_of(redraw=True)
    drawn = {(repeat, engine): planner.traffic(load, repeat, engine) for repeat in (1, 2) for engine in "ab"}
    assert drawn[1, "a"] is drawn[1, "b"]
    assert shape(drawn[1, "a"]) != shape(drawn[2, "a"])
    assert not set(contents(planner.traffic(load, 1, "a").window)) & set(contents(drawn[2, "a"].window))


def test_levels_differ_in_lengths_and_words(planner_of: Any):
    planner = planner_of()
    few, many = planner.traffic(CLOSED, 1, "a"), planner.traffic(Load(concurrency=3), 1, "a")
    assert few.shape_sha256 != many.shape_sha256
    assert not set(contents(few.window)) & set(contents(many.window))


def test_engines_at_one_address_get_different_words(planner_of: Any):
    planner = planner_of(engines=ONE_SERVER)
    a, b = planner.traffic(CLOSED, 1, "a"), planner.traffic(CLOSED, 1, "b")
    assert a.shape_sha256 == b.shape_sha256
    assert not set(contents(a.window)) & set(contents(b.window))
    assert not set(contents(pools(a)[0])) & set(contents(pools(b)[0]))


@pytest.mark.parametrize("load", [CLOSED, OPEN])
def test_ramp_and_tail_are_pools_with_different_words(planner_of: Any, load: Load):
    traffic = planner_of().traffic(load, 1, "a")
    parts = [set(contents(plan)) for plan in (traffic.window, *pools(traffic))]
    assert len(parts[0]) == 12
    assert all(len(part) >= 40 for part in parts[1:])
    assert len(set.union(*parts)) == sum(map(len, parts))


PACE = Pace(ttft_s=0.2, token_s=0.05)


def begun(planner: TrafficPlanner, load: Load, pace: Pace | None = PACE) -> Beginning:
    traffic = planner.traffic(load, 1, "a")
    return traffic.begin(pace=pace)


def test_a_closed_loop_begins_with_a_session_in_progress_on_each_slot(planner_of: Any):
    beginning = begun(planner_of(workload=TALK), Load(concurrency=20))
    planned = list(beginning.plan)
    assert len(planned) == 20
    assert any(entry.numbers for entry in planned)
    offsets = [entry.offset_s or 0.0 for entry in planned]
    assert offsets == sorted(offsets)
    first = [entry.numbers[0] if entry.numbers else 0 for entry in planned]
    assert [session.turns[0].number for session in wire(planned)] == first


def test_an_open_loop_begins_with_as_many_sessions_as_its_rate_and_their_duration_say(planner_of: Any):
    """Little's law; without a known pace only pauses count."""
    planner = planner_of(workload=TALK, **trial(max_requests=40))
    law = planner.traffic(OPEN, 1, "a").law
    for pace in (PACE, None):
        expected = 4.0 * law.session_s(pace or Pace(0.0, 0.0))
        assert begun(planner, OPEN, pace).plan.sessions == pytest.approx(expected, rel=0.05), "a larger sample"


def test_the_history_of_a_session_in_progress_is_its_last_prompt(planner_of: Any):
    beginning = begun(planner_of(workload=TALK), Load(concurrency=20))
    later = [entry for entry in beginning.plan if entry.numbers]
    assert beginning.history.sessions == len(later)
    assert {turn.output_tokens for turn in turns(beginning.history)} == {1}
    plays = {planned.play: planned.session.id for planned in beginning.plan}
    assert len(plays) == beginning.plan.sessions, "each goes on under an id of its own"
    assert all(plays[seen.play] == seen.session.id for seen in beginning.history)
    for seen in beginning.history:
        ((turn,), (entry,)) = seen.session.turns, [e for e in later if e.session.id == seen.session.id][:1]
        assert entry.session.turns[0].messages[: len(turn.messages)] == turn.messages


def test_long_answers_in_the_ramp_do_not_shorten_the_plan_of_the_window(planner_of: Any):
    """The ramp meets answers in proportion to their length, so its first ones take longer than the window's."""
    planner = planner_of(**trial(duration_s=30.0, max_window_s=30.0, max_requests=None))
    traffic, pace = planner.traffic(CLOSED, 1, "a"), Pace(0.01, 0.01)
    limits = make_experiment(**trial(duration_s=30.0, max_window_s=30.0, max_requests=None)).trial
    plan = SteadyOrders(
        CLOSED, limits, traffic, traffic.begin(pace=pace), may_restart=False, sent=0,
        encode=lambda *_: iter(()), encode_window=lambda *_: iter(()), opened=lambda _: None,
    ).plan()  # fmt: skip
    mean_s = traffic.law.answer_s(pace)
    plan.window(Ramped(complete=True, ended=2, request_s=4 * mean_s, pace=pace))
    assert traffic.window.requests >= 1.5 * 2 * 30.0 / mean_s


def test_sessions_in_progress_are_written_as_far_as_the_load_needs(planner_of: Any):
    """Each call that may be due while the load lasts is there, and few others."""
    planner = planner_of(workload=TALK, trial={"ramp_s": 5.0, "duration_s": 30.0, "timeout_s": 600.0})
    traffic = planner.traffic(Load(concurrency=20), 1, "a")
    short, whole = (traffic.begin(pace=PACE, whole=is_whole) for is_whole in (False, True))
    assert whole.reach_s == math.inf
    for cut, full in zip(short.plan, whole.plan, strict=True):
        count = len(cut.session.turns)
        assert full.session.turns[:count] == cut.session.turns
        pauses_s = (cut.offset_s or 0.0) + sum(turn.think_s for turn in full.session.turns[1:count])
        assert count == len(full.session.turns) or pauses_s + full.session.turns[count].think_s > short.reach_s - 5.0
    assert short.plan.requests < whole.plan.requests
    assert short.history.requests == whole.history.requests


def test_a_load_whose_sessions_might_end_before_its_window_does_begins_again(planner_of: Any):
    changes = {"ramp_s": 5.0, "duration_s": 30.0, "timeout_s": 600.0}
    traffic = planner_of(workload=TALK, trial=changes).traffic(OPEN, 1, "a")
    limits = make_experiment(trial=changes).trial
    for whole, elapsed_s, fell_short in ((False, 6.0, False), (False, 60.0, True), (True, 60.0, False)):
        steady = SteadyOrders(
            OPEN, limits, traffic, traffic.begin(pace=PACE, whole=whole), may_restart=False, sent=0,
            encode=lambda *_: iter(()), encode_window=lambda *_: iter(()), opened=lambda _: None,
        )  # fmt: skip
        ramped = Ramped(complete=True, ended=20, request_s=0.5, pace=PACE, elapsed_s=elapsed_s)
        assert (steady.plan().window(ramped) is None) == steady.fell_short == fell_short


def test_sessions_in_progress_have_words_of_their_own_at_each_start_of_the_load(planner_of: Any):
    traffic = planner_of(workload=TALK).traffic(CLOSED, 1, "a")
    first, again = (set(contents(traffic.begin(pace=PACE, restart=number).plan)) for number in (0, 1))
    assert not first & again
    assert not first & {content for pool in (traffic.window, *pools(traffic)) for content in contents(pool)}


@pytest.mark.parametrize("load", [CLOSED, OPEN])
def test_a_ramp_has_words_of_its_own_at_each_start_of_the_load_and_equal_lengths(planner_of: Any, load: Load):
    traffic = planner_of(workload=TALK).traffic(load, 1, "a")
    first, again = (traffic.ramp_again(number).plan for number in (0, 1))
    assert traffic.ramp_again(0).plan is first
    assert not set(contents(first)) & set(contents(again))
    assert first.shape_sha256 == again.shape_sha256


def test_a_warm_cache_holds_the_sessions_in_progress_as_well(planner_of: Any):
    traffic = planner_of(**trial(cache="warm", max_requests=None)).traffic(CLOSED, 1, "a")
    beginning = traffic.begin(pace=PACE)
    assert set(contents(beginning.plan)) <= set(contents(traffic.window))
    assert not list(beginning.history)


def test_the_pool_of_an_open_loop_repeats_at_its_next_arrival(planner_of: Any, tmp_path: Path):
    ramp = planner_of(**trial(ramp_s=12.0)).traffic(STEADY, 1, "a").ramp_again(0)
    assert (ramp.plan.sessions, ramp.period_s) == (48, 12.0)
    only = written(tmp_path, Session("s", (Turn(4, 5, prompt="the the the"),)))
    alone = planner_of(workload=only).traffic(STEADY, 1, "a").tail
    assert (alone.plan.sessions, alone.period_s) == (1, 0.25), "one session has a rate, too"


def test_the_pool_of_a_load_in_bursts_has_its_rate(planner_of: Any):
    """A pool that held only a part of a burst would repeat it as a load without silences."""
    bursts = Load(rate_per_s=4.0, arrival="onoff", arrival_options=ON_OFF)
    for pool in (traffic := planner_of().traffic(bursts, 1, "a")).ramp_again(0), traffic.tail:
        assert pool.plan.sessions / pool.period_s == pytest.approx(4.0, rel=0.051)


@pytest.mark.parametrize("workload", [CHAT, RAG, TALK])
def test_a_record_counts_the_tokens_of_encoded_prompts(tokenizer: Tokenizer, planner_of: Any, workload: dict[str, Any]):
    traffic = planner_of(workload=workload).traffic(CLOSED, 1, "a")
    sent, reader, cache = turns(traffic.window), PromptReader(tokenizer), EndlessCache()
    ids = [list(reader.ids(turn)) for turn in sent]
    ramp, tail = pools(traffic)
    repeated = sum(cache.add(reader.ids(turn)) for part in (ramp, traffic.window, tail) for turn in turns(part))
    record = traffic.record
    assert record.requests == len(sent) >= 12
    assert record.sessions == len(list(traffic.window))
    assert record.prompt_tokens == sum(map(len, ids)) == sum(turn.input_tokens for turn in sent)
    assert record.output_tokens == sum(turn.output_tokens for turn in sent)
    assert (record.repeated_tokens, record.block_tokens) == (repeated, 16)
    assert record.mean_turn == traffic.law.mean_turn
    assert record.turns == pytest.approx(4.05, rel=0.1) if workload is TALK else record.turns == 1
    assert (record.off_length, record.off_example, record.cache, record.cache_reset) == (0, None, Cache.COLD, False)
    assert record.sha256 == plan_sha256(traffic.window)
    assert (record.mean_turn > 0) == (workload is TALK)


def written(tmp_path: Path, *sessions: Session) -> dict[str, Any]:
    path = tmp_path / "sessions.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(session) + b"\n" for session in sessions))
    return {"name": "sessions", "options": {"path": str(path)}}


def test_a_record_has_the_pauses_of_a_session_on_its_longest_path(planner_of: Any, tmp_path: Path):
    """Six seconds where one agent pauses for five of them while another pauses for three; and none."""
    links = (((), 0.0), ((0,), 3.0), ((0,), 5.0), ((1, 2), 1.0))
    tree = tuple(Turn(4, 5, prompt="the the the", think_s=pause_s, parents=parents) for parents, pause_s in links)
    planner = planner_of(workload=written(tmp_path, Session("tree", tree), Session("one", (tree[0],))))
    assert planner.traffic(CLOSED, 1, "a").record.session_tool_s == pytest.approx((6.0 + 0.0) / 2)
    changing = Load(rate_per_s=50.0, arrival="ramp")
    assert planner.traffic(changing, 1, "a").record.session_tool_s is None, "sessions have no long run"


def test_prompts_of_the_wrong_length_are_counted_and_the_first_is_named(planner_of: Any, tmp_path: Path):
    tokens = 1 + 3  # the model puts one before every text
    honest = Session("honest", (Turn(tokens, 5, prompt="the the the"),))
    liar = Session("liar", (Turn(tokens, 5, prompt="the the the"), Turn(99, 5, prompt="the the the")))
    record = planner_of(workload=written(tmp_path, honest, liar, liar)).traffic(CLOSED, 1, "a").record
    assert (record.sessions, record.requests, record.off_length) == (3, 5, 2)
    assert record.off_example == "liar: 4 tokens where 99 were meant"
    assert record.prompt_tokens == 5 * 4


def test_a_plan_of_a_closed_loop_can_be_extended(planner_of: Any):
    """At least ``min_requests``, and three requests per slot."""
    for slots, requests in ((2, 12), (10, 30)):
        window = planner_of(**trial(max_requests=50)).traffic(Load(concurrency=slots), 1, "a").window
        first = list(window)
        assert [planned.offset_s for planned in first] == [None] * requests
        window.write(lambda plan: plan.requests >= 40)
        assert list(window)[:requests] == first
        assert window.requests == 40
        window.write()
        assert (window.requests, window.has_ended) == (50, True)


ON_OFF = {"on_s": {"family": "uniform", "low": 4, "high": 5}, "off_s": {"family": "uniform", "low": 8, "high": 9}}
STEADY = Load(rate_per_s=4.0, arrival="constant")


def test_a_plan_of_an_open_loop_has_the_sessions_that_arrive_in_time(planner_of: Any):
    traffic = planner_of(**trial(max_requests=30)).traffic(STEADY, 1, "a")
    assert [planned.offset_s for planned in traffic.window] == [i / 4 for i in range(20)]
    assert traffic.length_s == 5.0


@pytest.mark.parametrize(
    ("limits", "sessions", "length_s"),
    [
        ({"max_requests": 7}, 7, 1.75),
        ({"max_requests": 1, "min_requests": 1}, 1, 0.25),
        ({"max_requests": 100, "min_requests": 32}, 32, 8.0),
        ({"max_requests": None, "duration_s": 300.0, "max_window_s": 300.0}, 1200, 300.0),
    ],
    ids=["cut short", "one", "longer for its requests", "no end"],
)
def test_the_window_of_an_open_loop_is_as_long_as_its_plan(
    planner_of: Any, limits: dict[str, Any], sessions: int, length_s: float
):
    random = {"name": "random", "options": {"input_tokens": 1, "output_tokens": 1}}
    traffic = planner_of(workload=random, **trial(**limits)).traffic(STEADY, 1, "a")
    assert (traffic.window.sessions, traffic.length_s) == (sessions, length_s)


def test_arrival_options_reach_the_process(planner_of: Any):
    loads = [Load(rate_per_s=4.0, arrival="gamma", arrival_options={"burstiness": b}) for b in (0.1, 1.0)]
    bursty, smooth = (planner_of(**trial(max_requests=100)).traffic(load, 1, "a") for load in loads)
    assert [p.offset_s for p in bursty.window] != [p.offset_s for p in smooth.window]


def test_a_load_without_sessions_is_refused(planner_of: Any):
    late = Load(rate_per_s=0.001, arrival="diurnal")
    with pytest.raises(BadOption, match="the workload has no session for this load; give it a longer duration_s"):
        planner_of().traffic(late, 1, "a")


def test_a_varying_load_is_one_plan(planner_of: Any):
    traffic = planner_of(**trial(max_requests=None)).traffic(Load(rate_per_s=4.0, arrival="diurnal"), 1, "a")
    assert isinstance(traffic, VaryingTraffic)
    assert max(planned.offset_s or 0.0 for planned in traffic.window) < 5.0


def test_recorded_arrivals_are_warped_with_the_pauses_between_turns(planner_of: Any):
    slow, fast = (
        list(planner_of(workload=TALK, **trial(duration_s=span_s, max_window_s=span_s)).traffic(load, 1, "a").window)
        for span_s, load in (
            (400.0, Load(arrival="workload", time_warp=2.0)),
            (80.0, Load(arrival="workload", time_warp=10.0)),
        )
    )
    assert len(slow) == len(fast) == 12
    assert slow[0].offset_s == fast[0].offset_s == 0.0
    for plan, warp in ((slow, 2.0), (fast, 10.0)):  # the preset's users think between 1 and 600 s, 45 s in the mean
        thinks_s = [turn.think_s * warp for planned in plan for turn in planned.session.turns[1:]]
        assert 1.0 <= min(thinks_s) <= max(thinks_s) <= 600.0
        assert sum(thinks_s) / len(thinks_s) == pytest.approx(45.0, rel=0.5)
        assert (plan[-1].offset_s or 0.0) * warp == pytest.approx(11.0, rel=0.7), "one session a second"


def test_a_rate_scales_recorded_arrivals_but_not_think_times(planner_of: Any):
    """The preset has one session per second."""
    traffic = planner_of(workload=TALK, **trial(duration_s=300.0, max_window_s=300.0, max_requests=60)).traffic(
        Load(arrival="workload", rate_per_s=5.0), 1, "a"
    )
    plan = list(traffic.window)
    assert len(plan) == 60
    assert (plan[-1].offset_s or 0.0) == pytest.approx(59 / 5.0, rel=0.5)
    thinks_s = [turn.think_s for planned in plan for turn in planned.session.turns[1:]]
    assert sum(thinks_s) / len(thinks_s) == pytest.approx(45.0, rel=0.4)


def test_a_workload_without_recorded_arrivals_cannot_be_replayed(planner_of: Any, tmp_path: Path):
    recorded, faster = Load(arrival="workload"), Load(arrival="workload", rate_per_s=5.0)
    timed = written(tmp_path, Session("s", (Turn(4, 5, prompt="the the the"),), start_s=1.0))
    for workload, load, message in (
        ({"name": "random"}, recorded, "has no start times; give the load an arrival process"),
        ({"name": "random"}, faster, "has no recorded rate; give the load time_warp instead of rate_per_s"),
        (timed, faster, "has no recorded rate; give the load time_warp instead of rate_per_s"),
        ({"name": "offline-batch", "options": {"scale": 0.1}}, faster, "has no recorded rate"),
    ):
        with pytest.raises(BadOption, match=message):
            planner_of(workload=workload).traffic(load, 1, "a")
    assert planner_of(workload=timed).traffic(recorded, 1, "a").record.sessions == 1


def test_a_batch_arrives_at_once(planner_of: Any):
    traffic = planner_of(workload={"name": "offline-batch", "options": {"scale": 0.1}}).traffic(
        Load(arrival="workload"), 1, "a"
    )
    assert [planned.offset_s for planned in traffic.window] == [0.0] * 12


def test_turns_that_the_load_cannot_reach_are_neither_planned_nor_counted(planner_of: Any):
    """The longest load has a ramp of 5 s, 5 s for its late requests, a window of 5 s, and a tail of 5 s."""
    short, long = (
        planner_of(workload=TALK, **trial(max_window_s=span_s, min_requests=50)).traffic(CLOSED, 1, "a")
        for span_s in (5.0, 900.0)
    )
    pairs = list(zip(short.window, long.window, strict=False))
    assert all(b.session.turns[: len(a.session.turns)] == a.session.turns for a, b in pairs)
    assert short.record.requests / short.record.sessions < long.record.requests / long.record.sessions
    for planned in short.window:
        assert sum(turn.think_s for turn in planned.session.turns[:-1]) <= 20


def test_a_parallel_agent_that_has_ended_is_kept_beside_one_that_the_load_cannot_reach(planner_of: Any, tmp_path: Path):
    """The main agent's pauses last longer than the load; a helper's call, which is written later, has ended."""
    words = {"input_tokens": 1, "output_tokens": 1, "prompt": "word"}
    calls = [
        words | {"parents": []}, words | {"parents": [0], "think_s": 900.0},
        words | {"parents": [1], "think_s": 900.0}, words | {"parents": [0], "think_s": 1.0, "agent": "helper"},
    ]  # fmt: skip
    path = tmp_path / "graphs.jsonl"
    path.write_bytes(msgspec.json.encode({"id": "s", "turns": calls}) + b"\n")
    beginning = begun(planner_of(workload={"name": "sessions", "options": {"path": str(path)}}), Load(concurrency=2))
    assert {entry.numbers[0] for entry in beginning.plan} <= {1, 2}
    waiting = sum(entry.numbers[0] == 1 for entry in beginning.plan)
    agents = [shown.session.turns[0].agent for shown in beginning.history]
    assert sorted(agents) == [""] * 2 + ["helper"] * waiting, "it has ended after the main agent's last answer"


def test_a_cold_trial_has_no_primers(planner_of: Any):
    traffic = planner_of().traffic(CLOSED, 1, "a")
    assert list(traffic.primers()) == []
    assert traffic.record.cache is Cache.COLD


def test_a_warm_trial_primes_every_prompt_once(planner_of: Any):
    traffic = planner_of(workload=TALK, **trial(cache="warm")).traffic(CLOSED, 1, "a")
    primers, sent = turns(traffic.primers()), turns(traffic.window)
    assert [primer.messages for primer in primers] == [turn.messages for turn in sent]
    assert {(primer.output_tokens, primer.think_s) for primer in primers} == {(1, 0.0)}
    assert {planned.offset_s for planned in traffic.primers()} == {None}
    assert list(traffic.primers()) == list(traffic.primers()), "they can be sent again"
    assert traffic.record.cache is Cache.WARM


LAGGING = Session(
    "s",
    (
        Turn(4, 5, prompt="the the the"),
        Turn(4, 5, prompt="the the the", think_s=6.0, parents=(0,), agent="a"),
        Turn(4, 5, prompt="the the the", think_s=8.0, parents=(0, 1), lags_s=(0.0, 40.0)),
    ),
    0.0,
)
"""A main agent that waits for a sub-agent which ends with a tool of 40 s."""


def test_primers_of_agents_wait_for_no_tool(planner_of: Any, tmp_path: Path):
    traffic = planner_of(workload=written(tmp_path, LAGGING), **trial(cache="warm")).traffic(CLOSED, 1, "a")
    primers = turns(traffic.primers())
    assert {(primer.think_s, primer.lags_s) for primer in primers} == {(0.0, ())}
    assert [primer.parents for primer in primers] == [turn.parents for turn in LAGGING.turns]


def test_a_warp_of_time_shortens_tools_of_agents_too(planner_of: Any, tmp_path: Path):
    load = Load(arrival="workload", time_warp=4.0)
    still = msgspec.structs.replace(
        LAGGING, turns=tuple(msgspec.structs.replace(turn, think_s=0.0) for turn in LAGGING.turns)
    )
    for session, thinks_s in ((LAGGING, [0.0, 1.5, 2.0]), (still, [0.0, 0.0, 0.0])):
        sent = turns(planner_of(workload=written(tmp_path, session)).traffic(load, 1, "a").window)
        assert [turn.think_s for turn in sent] == thinks_s
        assert [turn.lags_s for turn in sent] == [(), (), (0.0, 10.0)]


def test_what_primes_the_cache_counts_in_its_bound(planner_of: Any):
    """Without it, the first prompt of each group could hit nothing, and engines hit more than they could."""
    workload = {"name": "structured-output", "options": {"scale": 2.0}}
    cold, primed = (
        planner_of(workload=workload, **trial(cache=cache)).traffic(CLOSED, 1, "a").endless
        for cache in ("cold", "primed")
    )
    assert primed.hit_tokens > cold.hit_tokens


def test_a_primed_trial_primes_each_shared_system_prompt_once(planner_of: Any, tokenizer: Tokenizer):
    workload = {"name": "structured-output", "options": {"scale": 2.0}}
    traffic = planner_of(workload=workload, **trial(cache="primed")).traffic(CLOSED, 1, "a")
    primers = turns(traffic.primers())
    assert len(primers) == 20
    systems = {primer.messages[0] for primer in primers if primer.messages}
    assert {turn.messages[0] for turn in turns(traffic.window) if turn.messages} <= systems
    assert {primer.output_tokens for primer in primers} == {1}
    assert not set(contents(traffic.primers())) & set(contents(traffic.window))
    assert traffic.record.cache is Cache.PRIMED


@pytest.mark.parametrize("workload", [CHAT, {"name": "random"}])
def test_priming_needs_shared_system_prompts(planner_of: Any, workload: dict[str, Any]):
    planner = planner_of(workload=workload, **trial(cache="primed"))
    with pytest.raises(BadOption, match="shares no system prompts to prime a cache with; use cold or warm"):
        planner.traffic(CLOSED, 1, "a")


def test_primers_have_the_words_of_their_repeat(planner_of: Any):
    planner = planner_of(workload=RAG, **trial(cache="primed"))
    first = list(planner.traffic(CLOSED, 1, "a").primers())
    second = list(planner.traffic(CLOSED, 2, "a").primers())
    assert first != second


def test_files_are_deleted_after_their_repeat(tokenizer: Tokenizer, tmp_path: Path):
    folder = tmp_path / "plans"
    folder.mkdir()
    planner = TrafficPlanner(make_experiment(engines=ONE_SERVER), tokenizer, folder)
    for load in (CLOSED, OPEN):
        for engine in "ab":
            planner.traffic(load, 1, engine)
    first = set(folder.iterdir())
    assert len(first) == 4 * 3, "a window, a ramp and a tail each"
    planner.traffic(CLOSED, 2, "a")
    second = set(folder.iterdir())
    assert (len(second), second & first) == (3, set())
    planner.traffic(CLOSED, 2, "a")
    assert set(folder.iterdir()) == second


def test_a_planner_deletes_its_files(tokenizer: Tokenizer):
    with traffic_planner(make_experiment(), tokenizer) as planner:
        window = planner.traffic(OPEN, 1, "a").window
        assert list(window)
    assert list(window) == []


def test_a_plan_can_be_read_repeatedly(planner_of: Any):
    window = planner_of().traffic(OPEN, 1, "a").window
    assert list(window) == list(window) != []


def test_a_user_who_thinks_beyond_the_end_of_a_closed_loop_keeps_the_slot_until_then(planner_of: Any):
    """A plan without the unreachable turns sends the same requests as the full plan."""
    sent = []
    for span_s in (5.0, 1e6):
        limits = trial(max_window_s=span_s, min_requests=200, max_requests=None)
        plan = planner_of(workload=TALK, **limits).traffic(CLOSED, 1, "a")
        _, records, _, _ = drive(
            lambda: ScriptedTransport(ANSWER),
            lambda d, plan=plan: d.closed_loop(wire(plan.window), 2, duration_s=20.0),
        )
        sent.append([(r.session, r.turn, r.planned_ns) for r in records])
    assert sent[0] == sent[1]
