"""The prefix cache under sessions of a workload: worked numbers, what devices find, lengths, and mistakes."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import bakeoff
from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.errors import BadPlan
from bakeoff.harness.sizing import prefix_cache
from bakeoff.harness.sizing.plan import Plan, Question, make_plan
from bakeoff.harness.sizing.prefix_cache import PrefixCachePlan, SessionLoad
from bakeoff.workloads import Random, Seed, Session, Tokenizer
from bakeoff.workloads.outline import SessionOutline, TurnOutline

KV_BYTES = {"smollm2-135m": 23_040, "llama-3.1-8b": 131_072}


class Talks:
    """Sessions without a common prefix, each of a prompt and another that goes on with it.

    Args:
        count: number of sessions.
        tokens: of the first prompt; the second has twice as many.
        pause_s: between them.
    """

    def __init__(self, count: int, tokens: int = 100, pause_s: float = 0.0) -> None:
        self._count, self._tokens, self._pause_s = count, tokens, pause_s

    def outlines(self, seed: Seed) -> Iterator[SessionOutline]:
        tokens = self._tokens
        for number in range(self._count):
            first, rest = (str(number), tokens), (f"{number}, rest", tokens)
            yield SessionOutline(
                str(number),
                None,
                (TurnOutline(tokens, 50, 0.0, (first,)), TurnOutline(2 * tokens, 50, self._pause_s, (first, rest))),
            )

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        raise AssertionError("no prompt is written if the workload can be outlined")

    def notes(self) -> list[str]:
        return []


def planned(talks: Talks, sessions: int, **options: object) -> Plan:
    load = SessionLoad("talks", (), talks, sessions)
    return make_plan(Question(**{"model": "smollm2-135m", "gpu": ["h200"], "load": load, **options}))


def cache_of(plan: Plan) -> PrefixCachePlan:
    assert plan.prefix_cache is not None
    return plan.prefix_cache


def run(*arguments: str) -> int:
    return guarded(make_app(), ["plan", *arguments])


def test_worked_numbers_of_one_session_at_a_time() -> None:
    """16 sessions of two answers of 1 s: the last starts at 30 s, calls from 11.25 s to then count.

    The second call finds 6 blocks of 16 of the first 100 tokens, of 300 in both prompts. They were the last used ones,
    so that the cache needs room for just them. Calls hold 100 + 50 and 200 + 50 tokens.
    """
    plan = planned(Talks(16), 1)
    cache = cache_of(plan)
    assert (cache.drawn_sessions, cache.calls, cache.longest_prompt_tokens) == (16, 18, 200)
    assert cache.unlimited_share == 96 / 300
    assert (cache.held_mean_tokens, cache.held_max_tokens) == (200, 250)
    assert {percent: size.tokens for percent, size in cache.enough.items()} == {90: 96, 95: 96, 99: 96}
    assert cache.enough[90].bytes == 96 * KV_BYTES["smollm2-135m"]
    room = cache.devices[0].room
    assert room is not None
    assert room.tokens == int(plan.devices[0].memory.for_kv / KV_BYTES["smollm2-135m"])
    assert room.hit_share == 96 / 300


def test_sizes_are_powers_of_two_of_bytes_until_nothing_more_is_found() -> None:
    cache = cache_of(planned(Talks(64), 4))
    assert [size.tokens for size in cache.sizes] == [2**power // KV_BYTES["smollm2-135m"] for power in (22, 23, 24, 25)]
    shares = [size.hit_share for size in cache.sizes]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1] == cache.unlimited_share


def test_more_sessions_in_progress_need_a_larger_cache() -> None:
    needed = [cache_of(planned(Talks(200, pause_s=4.0), sessions)).enough[99].tokens for sessions in (1, 4, 16)]
    assert needed[0] < needed[1] < needed[2]


def test_lengths_are_means_of_the_workload_unless_they_are_given() -> None:
    means = planned(Talks(16), 1)
    assert (means.traffic.input_tokens, means.traffic.output_tokens) == (150, 50)
    assert (means.traffic.cached_tokens, cache_of(means).is_planned) == (48, True)
    given = planned(Talks(16), 1, input_tokens=1000, output_tokens=7, cached_share=0.25)
    assert (given.traffic.input_tokens, given.traffic.output_tokens, given.traffic.cached_tokens) == (1000, 7, 250)
    assert not cache_of(given).is_planned
    assert cache_of(given).unlimited_share == 96 / 300, "lengths of the plan do not change the sessions"


def test_each_device_computes_what_its_own_cache_does_not_find() -> None:
    """An A10G has room for 30 thousand tokens beside the weights, an H200 for 900 thousand."""
    options = {"model": "llama-3.1-8b", "gpu": ["a10g", "h200"]}
    plan = planned(Talks(24, 9000, pause_s=30.0), 3, **options)
    small, large = (device.room for device in cache_of(plan).devices)
    assert small is not None
    assert large is not None
    assert 0 < small.hit_share < large.hit_share == cache_of(plan).unlimited_share
    for device, room in zip(plan.devices, (small, large), strict=True):
        alone = bakeoff.plan(
            "llama-3.1-8b",
            gpu=device.gpu.name,
            input_tokens=plan.traffic.input_tokens,
            output_tokens=plan.traffic.output_tokens,
            cached_share=room.hit_share,
        )
        assert alone.devices[0] == device


def test_candidates_for_an_slo_have_their_own_cache_too() -> None:
    """The reason why one request alone is too slow has its predicted TTFT."""
    slo = {"slo": "ttft_p90<1us", "rate": 0.1, "tensor_parallel": 1, "model": "llama-3.1-8b", "gpu": ["a10g"]}
    talks = Talks(24, 9000, pause_s=30.0)
    found = planned(talks, 3, **slo)
    room = cache_of(found).devices[0].room
    assert room is not None
    same, nothing = (planned(talks, 3, cached_share=share, **slo) for share in (room.hit_share, 0.0))
    assert found.sizing is not None
    assert found.sizing == same.sizing != nothing.sizing


def test_table_json_and_page_have_the_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_cache, "SESSIONS", 16)
    arguments = [
        "smollm2-135m",
        "--gpu",
        "a10g",
        "--workload",
        "multi-turn",
        "--option",
        "scale=0.5",
        "--sessions",
        "2",
    ]
    assert run(*arguments, "--out", str(tmp_path / "plan.html")) == 0
    text, page = capsys.readouterr().out, (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert run(*arguments, "--json") == 0
    cache = json.loads(capsys.readouterr().out)["prefix_cache"]
    assert (cache["workload"], cache["options"], cache["sessions"]) == ("multi-turn", ["scale=0.5"], 2)
    assert cache["unlimited_share"] > 0
    for shown in (text, page):
        assert "multi-turn (scale=0.5), 2 sessions in progress" in shown
        assert f"an unlimited prefix cache finds {100 * cache['unlimited_share']:.1f} %" in shown
        assert "of the possible" in shown
    assert "prompt tokens found" in page


def test_prompts_without_a_common_prefix_have_no_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_cache, "SESSIONS", 16)
    assert run("smollm2-135m", "--gpu", "a10g", "--workload", "chat", "--sessions", "2") == 0
    text = capsys.readouterr().out
    assert "an unlimited prefix cache finds 0 % of the prompt tokens" in text
    assert "of the possible" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "nothing"], "unknown workload 'nothing'"),
        (["--workload", "none.jsonl"], "none.jsonl does not exist"),
        (["--workload", "chat", "--option", "x=1"], "has no option 'x'"),
        (["--workload", "chat", "--sessions", "0"], "--sessions must be at least 1"),
        (["--workload", "random"], "the lengths of random are known only once its prompts are written"),
        (["--sessions", "4"], "--sessions belongs to a --workload"),
        (["--option", "scale=2"], "--option belongs to a --workload"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("smollm2-135m", "--gpu", "a10g", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_too_few_sessions_are_refused() -> None:
    with pytest.raises(
        BadPlan, match="talks has 9 sessions to simulate, too few for 8 in progress; lower --sessions to 4, or"
    ):
        planned(Talks(9), 8)
    with pytest.raises(BadPlan, match="talks has 1 session to simulate, too few for 1 in progress; repeat a trace"):
        planned(Talks(1), 1)


class FirstTurns(Talks):
    """The sessions without their second prompts."""

    def outlines(self, seed: Seed) -> Iterator[SessionOutline]:
        return (msgspec.structs.replace(session, turns=session.turns[:1]) for session in super().outlines(seed))


def test_sessions_are_too_few_if_no_call_counts() -> None:
    """The only call before the last session's starts with the load."""
    with pytest.raises(BadPlan, match="talks has 2 sessions to simulate, too few for 1 in progress; repeat a trace"):
        planned(FirstTurns(2), 1)
    assert cache_of(planned(FirstTurns(3), 1)).calls == 1


def test_a_workload_that_must_be_written_is_refused_in_python_too() -> None:
    with pytest.raises(BadPlan, match="give a --workload that has lengths"):
        make_plan(Question(model="smollm2-135m", load=SessionLoad("random", (), Random(), 2)))
