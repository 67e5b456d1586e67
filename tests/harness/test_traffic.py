"""What a trial sends: one shape for all engines and repeats, words of its own, counted before anything is sent."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.client.fake import ScriptedTransport
from harness.experiment import Experiment, experiment_from
from harness.traffic import Traffic, TrafficPlanner, traffic_planner
from results.records import Cache, Load
from tests.harness.driving import ANSWER, drive, wire
from tests.workloads.small_tokenizers import checkpoint
from workloads import BadOption, EndlessCache, PlannedSession, PromptReader, Session, Tokenizer, Turn
from workloads.plan import plan_sha256

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


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(checkpoint(tmp_path_factory.mktemp("tokenizer"), bare=True, merges=800))


def made(**changes: Any) -> Experiment:
    data: dict[str, Any] = {
        "name": "t",
        "engines": TWO_SERVERS,
        "workload": CHAT,
        "loads": [{"concurrency": 2}],
        "trial": {"duration_s": 5.0, "max_requests": 12, "warmup_requests": 2},
        **changes,
    }
    return experiment_from(data, "t")


@pytest.fixture
def planner_of(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    def planner(**changes: Any) -> TrafficPlanner:
        return TrafficPlanner(made(**changes), tokenizer, tmp_path_factory.mktemp("plans"))

    return planner


def trial(**changes: Any) -> dict[str, Any]:
    return {"trial": {"duration_s": 5.0, "max_requests": 12, "warmup_requests": 2, **changes}}


def turns(sessions: Iterator[PlannedSession]) -> list[Turn]:
    return [turn for planned in sessions for turn in planned.session.turns]


def contents(sessions: Iterator[PlannedSession]) -> list[str]:
    return [turn.messages[-1].content if turn.messages else turn.prompt or "" for turn in turns(sessions)]


def shape(traffic: Traffic) -> list[object]:
    return [
        (
            planned.session.id,
            planned.offset_s,
            [(t.input_tokens, t.output_tokens, t.think_s) for t in planned.session.turns],
        )
        for planned in traffic.sessions()
    ]


@pytest.mark.parametrize("workload", [CHAT, RAG, TALK, {"name": "random", "options": {"spread": 0.5}}])
@pytest.mark.parametrize("load", [CLOSED, OPEN])
def test_repeats_and_engines_have_one_shape_and_words_are_new_in_every_repeat(
    planner_of: Any, workload: dict[str, Any], load: Load
):
    planner = planner_of(workload=workload)
    found = {(repeat, side): planner.traffic(load, repeat, side) for repeat in (1, 2) for side in "ab"}
    assert len({traffic.shape_sha256 for traffic in found.values()}) == 1
    assert found[1, "a"] is found[1, "b"], "engines at addresses of their own get the same bytes, planned once"
    second = found[2, "a"]
    again = planner_of(workload=workload).traffic(load, 1, "a")
    assert shape(again) == shape(second)
    assert all(a != b for a, b in zip(contents(again.sessions()), contents(second.sessions()), strict=True))
    assert again.record == found[1, "a"].record
    assert again.record.sha256 != second.record.sha256
    assert contents(iter(again.warmup)) != contents(iter(second.warmup))


def test_levels_have_shapes_and_words_of_their_own(planner_of: Any):
    planner = planner_of()
    few, many = planner.traffic(CLOSED, 1, "a"), planner.traffic(Load(concurrency=3), 1, "a")
    assert few.shape_sha256 != many.shape_sha256
    assert not set(contents(few.sessions())) & set(contents(many.sessions()))


def test_engines_at_one_address_share_its_cache_so_each_has_words_of_its_own(planner_of: Any):
    planner = planner_of(engines=ONE_SERVER)
    a, b = planner.traffic(CLOSED, 1, "a"), planner.traffic(CLOSED, 1, "b")
    assert a.shape_sha256 == b.shape_sha256
    assert not set(contents(a.sessions())) & set(contents(b.sessions()))
    assert not set(contents(iter(a.warmup))) & set(contents(iter(b.warmup)))


def test_warming_up_is_a_first_turn_in_words_of_its_own(planner_of: Any):
    traffic = planner_of(workload=TALK).traffic(CLOSED, 1, "a")
    assert [len(planned.session.turns) for planned in traffic.warmup] == [1, 1]
    assert {planned.offset_s for planned in traffic.warmup} == {None}
    measured = set(contents(traffic.sessions()))
    assert len(measured) > 12
    assert not measured & set(contents(iter(traffic.warmup)))
    assert planner_of(**trial(warmup_requests=0)).traffic(CLOSED, 1, "a").warmup == ()


@pytest.mark.parametrize("workload", [CHAT, RAG, TALK])
def test_a_record_counts_what_is_sent_by_encoding_it(tokenizer: Tokenizer, planner_of: Any, workload: dict[str, Any]):
    traffic = planner_of(workload=workload).traffic(CLOSED, 1, "a")
    sent, reader, cache = turns(traffic.sessions()), PromptReader(tokenizer), EndlessCache()
    ids = [list(reader.ids(turn)) for turn in sent]
    repeated = sum(cache.add(prompt) for prompt in ids)
    record = traffic.record
    assert (record.sessions, record.requests) == (12, len(sent))
    assert record.prompt_tokens == sum(map(len, ids)) == sum(turn.input_tokens for turn in sent)
    assert record.output_tokens == sum(turn.output_tokens for turn in sent)
    assert (record.repeated_tokens, record.block_tokens) == (repeated, 16)
    assert record.repeated_share == repeated / record.prompt_tokens
    assert (record.off_length, record.off_example, record.cache, record.cache_reset) == (0, None, Cache.COLD, False)
    assert record.sha256 == plan_sha256(traffic.sessions())
    assert (record.repeated_share > 0.1) == (workload is not CHAT)


def written(tmp_path: Path, *sessions: Session) -> dict[str, Any]:
    path = tmp_path / "sessions.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(session) + b"\n" for session in sessions))
    return {"name": "sessions", "options": {"path": str(path)}}


def test_prompts_that_are_not_as_long_as_they_say_are_counted_and_the_first_is_named(planner_of: Any, tmp_path: Path):
    tokens = 1 + 3  # the model puts one before every text
    honest = Session("honest", (Turn(tokens, 5, prompt="the the the"),))
    liar = Session("liar", (Turn(tokens, 5, prompt="the the the"), Turn(99, 5, prompt="the the the")))
    record = planner_of(workload=written(tmp_path, honest, liar, liar)).traffic(CLOSED, 1, "a").record
    assert (record.sessions, record.requests, record.off_length) == (3, 5, 2)
    assert record.off_example == "liar: 4 tokens where 99 were meant"
    assert record.prompt_tokens == 5 * 4


def test_a_closed_loop_has_all_its_sessions_and_an_open_one_those_that_arrive_in_time(planner_of: Any):
    closed = list(planner_of(**trial(max_requests=30)).traffic(CLOSED, 1, "a").sessions())
    assert [planned.offset_s for planned in closed] == [None] * 30
    steady = Load(rate_per_s=4.0, arrival="constant")
    opened = list(planner_of(**trial(max_requests=30)).traffic(steady, 1, "a").sessions())
    assert [planned.offset_s for planned in opened] == [i / 4 for i in range(20)]
    few = planner_of(**trial(max_requests=7)).traffic(steady, 1, "a")
    assert few.record.sessions == 7


def test_options_of_an_arrival_process_reach_it(planner_of: Any):
    loads = [Load(rate_per_s=4.0, arrival="gamma", arrival_options={"burstiness": b}) for b in (0.1, 1.0)]
    bursty, smooth = (planner_of(**trial(max_requests=100)).traffic(load, 1, "a") for load in loads)
    assert [p.offset_s for p in bursty.sessions()] != [p.offset_s for p in smooth.sessions()]


def test_a_load_that_gets_no_session_is_refused(planner_of: Any):
    rare = Load(rate_per_s=0.001, arrival="poisson")
    with pytest.raises(BadOption, match="the workload has no session for this load; give it a longer duration_s"):
        planner_of().traffic(rare, 1, "a")


def test_recorded_arrivals_are_warped_with_the_pauses_between_turns(planner_of: Any):
    slow, fast = (
        list(planner_of(workload=TALK, **trial(duration_s=span_s)).traffic(load, 1, "a").sessions())
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


def test_a_rate_of_ones_own_moves_the_arrivals_and_leaves_users_their_pauses(planner_of: Any):
    """The preset has one session a second."""
    traffic = planner_of(workload=TALK, **trial(duration_s=300.0, max_requests=60)).traffic(
        Load(arrival="workload", rate_per_s=5.0), 1, "a"
    )
    plan = list(traffic.sessions())
    assert len(plan) == 60
    assert (plan[-1].offset_s or 0.0) == pytest.approx(59 / 5.0, rel=0.5)
    thinks_s = [turn.think_s for planned in plan for turn in planned.session.turns[1:]]
    assert sum(thinks_s) / len(thinks_s) == pytest.approx(45.0, rel=0.4)


def test_a_workload_that_has_no_times_of_its_own_cannot_be_recorded(planner_of: Any, tmp_path: Path):
    recorded, faster = Load(arrival="workload"), Load(arrival="workload", rate_per_s=5.0)
    timed = written(tmp_path, Session("s", (Turn(4, 5, prompt="the the the"),), start_s=1.0))
    for workload, load, message in (
        ({"name": "random"}, recorded, "does not say when its sessions start; give the load an arrival process"),
        ({"name": "random"}, faster, "does not know its own rate; give the load time_warp instead of rate_per_s"),
        (timed, faster, "does not know its own rate; give the load time_warp instead of rate_per_s"),
        ({"name": "offline-batch", "options": {"scale": 0.1}}, faster, "does not know its own rate"),
    ):
        with pytest.raises(BadOption, match=message):
            planner_of(workload=workload).traffic(load, 1, "a")
    assert planner_of(workload=timed).traffic(recorded, 1, "a").record.sessions == 1


def test_a_batch_comes_at_once(planner_of: Any):
    traffic = planner_of(workload={"name": "offline-batch", "options": {"scale": 0.1}}).traffic(
        Load(arrival="workload"), 1, "a"
    )
    assert [planned.offset_s for planned in traffic.sessions()] == [0.0] * 12


def test_turns_that_the_load_cannot_reach_are_neither_planned_nor_counted(planner_of: Any):
    short, long = (planner_of(workload=TALK, **trial(duration_s=span_s)).traffic(CLOSED, 1, "a") for span_s in (5, 900))
    pairs = list(zip(short.sessions(), long.sessions(), strict=True))
    assert all(b.session.turns[: len(a.session.turns)] == a.session.turns for a, b in pairs)
    assert short.record.requests < long.record.requests
    for planned in short.sessions():
        assert sum(turn.think_s for turn in planned.session.turns[:-1]) <= 5


def test_a_cold_trial_sends_nothing_before_itself(planner_of: Any):
    traffic = planner_of().traffic(CLOSED, 1, "a")
    assert list(traffic.primers()) == []
    assert traffic.record.cache is Cache.COLD


def test_a_warm_trial_sends_every_prompt_once_before(planner_of: Any):
    traffic = planner_of(workload=TALK, **trial(cache="warm")).traffic(CLOSED, 1, "a")
    primers, sent = turns(traffic.primers()), turns(traffic.sessions())
    assert [primer.messages for primer in primers] == [turn.messages for turn in sent]
    assert {(primer.output_tokens, primer.think_s) for primer in primers} == {(1, 0.0)}
    assert {planned.offset_s for planned in traffic.primers()} == {None}
    assert list(traffic.primers()) == list(traffic.primers()), "they can be sent again"
    assert traffic.record.cache is Cache.WARM


def test_a_primed_trial_sends_each_shared_system_prompt_once_before(planner_of: Any, tokenizer: Tokenizer):
    workload = {"name": "structured-output", "options": {"scale": 2.0}}
    traffic = planner_of(workload=workload, **trial(cache="primed")).traffic(CLOSED, 1, "a")
    primers = turns(traffic.primers())
    assert len(primers) == 20
    systems = {primer.messages[0] for primer in primers if primer.messages}
    assert {turn.messages[0] for turn in turns(traffic.sessions()) if turn.messages} <= systems
    assert {primer.output_tokens for primer in primers} == {1}
    assert not set(contents(traffic.primers())) & set(contents(traffic.sessions()))
    assert traffic.record.cache is Cache.PRIMED


@pytest.mark.parametrize("workload", [CHAT, {"name": "random"}])
def test_nothing_can_be_primed_where_nothing_is_shared(planner_of: Any, workload: dict[str, Any]):
    planner = planner_of(workload=workload, **trial(cache="primed"))
    with pytest.raises(BadOption, match="shares no system prompts to prime a cache with; use cold or warm"):
        planner.traffic(CLOSED, 1, "a")


def test_primers_have_the_words_of_their_repeat(planner_of: Any):
    planner = planner_of(workload=RAG, **trial(cache="primed"))
    first = list(planner.traffic(CLOSED, 1, "a").primers())
    second = list(planner.traffic(CLOSED, 2, "a").primers())
    assert first != second


def test_files_go_with_their_repeat_and_with_the_planner(tokenizer: Tokenizer):
    with traffic_planner(made(engines=ONE_SERVER), tokenizer) as planner:
        first = [planner.traffic(load, 1, side).plan for load in (CLOSED, OPEN) for side in "ab"]
        folder = first[0].parent
        assert sorted(folder.iterdir()) == sorted(set(first))
        assert len(set(first)) == 4
        second = planner.traffic(CLOSED, 2, "a").plan
        assert list(folder.iterdir()) == [second]
        assert planner.traffic(CLOSED, 2, "a").plan == second
    assert not folder.exists()


def test_a_plan_is_read_from_its_file_as_often_as_it_is_asked_for(planner_of: Any):
    traffic = planner_of().traffic(OPEN, 1, "a")
    assert traffic.plan.is_file()
    assert list(traffic.sessions()) == list(traffic.sessions())


def test_a_user_who_thinks_beyond_the_end_of_a_closed_loop_keeps_the_slot_until_then(planner_of: Any):
    """A plan without the turns out of reach is driven as one that has them all."""
    sent = []
    for span_s in (20.0, 1e6):
        limits = trial(duration_s=span_s, max_requests=200)
        plan = planner_of(workload=TALK, **limits).traffic(CLOSED, 1, "a")
        _, records, _, _ = drive(
            lambda: ScriptedTransport(ANSWER),
            lambda d, plan=plan: d.closed_loop(wire(plan.sessions()), 2, duration_s=20.0, ramp_s=0),
        )
        sent.append([(r.session, r.turn, r.planned_ns) for r in records])
    assert sent[0] == sent[1]
