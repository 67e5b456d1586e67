"""The cache gap of small trials whose hits are counted by hand, and of random ones against a naive simulation."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from bakeoff.engines.base import PrefixCacheFacts
from bakeoff.harness.verdict.cache_gap import cache_gaps
from bakeoff.results.records import AssumedRouting, CacheCause, CacheGaps, Outcome, Phase, RequestRecord, Window
from bakeoff.workloads.prefixes import EndlessCache

S = 1_000_000_000
ON = PrefixCacheFacts(is_on=True, block_tokens=16)


class Trial:
    """Requests one after the other, each a second long, a second apart."""

    def __init__(self) -> None:
        self.prompts = EndlessCache(16)
        self.requests: list[RequestRecord] = []
        self._last: dict[tuple[str, str], list[int]] = {}

    def send(
        self, session: str, ids: Sequence[int], cached: int | None = None, output: int = 10, **fields: Any
    ) -> None:
        key = session, fields.get("agent", "")
        before = self._last.get(key, [])
        self.prompts.add(ids, to_the_token=not before)
        pairs = zip(before, ids, strict=False)
        shared = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(before), len(ids)))
        shared = shared if before else self.prompts.last_shared
        turn = sum(r.session == session for r in self.requests)
        at_ns = 2 * S * len(self.requests)
        values: dict[str, Any] = {
            "index": len(self.requests), "phase": Phase.MEASURED, "session": session, "turn": turn,
            "planned_ns": at_ns, "sent_ns": at_ns, "ended_ns": at_ns + S, "outcome": Outcome.OK,
            "requested_input_tokens": len(ids), "prompt_tokens": len(ids), "output_tokens": output,
            "cached_tokens": cached, "block": self.prompts.last_block, "shared_tokens": shared, "goes_on": bool(before),
        }  # fmt: skip
        self.requests.append(RequestRecord(**{**values, **fields}))
        self._last[key] = list(ids)

    def gaps(
        self,
        facts: PrefixCacheFacts = ON,
        *,
        is_live: bool = False,
        is_salted: bool = False,
        counted_share: float | None = None,
        replicas: Sequence[str] = (),
    ) -> CacheGaps:
        window = Window(0, 10**18)
        found = cache_gaps(
            self.requests, window, self.prompts, {None: facts}, is_live=is_live, is_salted=is_salted,
            counted_share=counted_share, replicas=replicas,
        )  # fmt: skip
        assert found is not None
        return found


def tokens(gaps: CacheGaps) -> dict[CacheCause, int]:
    """Tokens of each part."""
    return {cause: round(part * gaps.whole.prompt_tokens) for cause, part in gaps.whole.parts.items()}


def ids(count: int, seed: int = 0) -> list[int]:
    return [1000 * seed + number for number in range(count)]


def test_a_conversation_loses_its_answers_and_the_rest_of_a_block():
    trial = Trial()
    trial.send("s", ids(100), 0, output=20)
    trial.send("s", ids(150), 96)
    gaps = trial.gaps()
    # 96 of the 100 tokens are in full blocks; with the answer of 20 it is 112 of 120
    assert tokens(gaps) == {CacheCause.GENERATED: 16, CacheCause.ROUNDING: 8, CacheCause.TEMPLATE: 0}
    assert gaps.whole.ideal == 120 / 250
    assert gaps.whole.observed == 96 / 250
    assert gaps.whole.unexplained == pytest.approx(0)


def test_with_a_live_history_the_answer_is_found():
    trial = Trial()
    trial.send("s", ids(100), 0, output=20)
    trial.send("s", ids(150), 112)
    gaps = trial.gaps(is_live=True)
    assert CacheCause.GENERATED not in gaps.whole.parts
    assert gaps.whole.unexplained == pytest.approx(0)


def test_where_beginnings_of_blocks_hit_nothing_is_lost_to_rounding():
    trial = Trial()
    trial.send("s", ids(100), 0, output=20)
    trial.send("s", ids(150), 100)
    gaps = trial.gaps(PrefixCacheFacts(True, 16, hits_to_the_token=True))
    assert tokens(gaps) == {CacheCause.GENERATED: 20, CacheCause.TEMPLATE: 0}
    assert gaps.whole.unexplained == pytest.approx(0)


def test_sessions_share_a_system_prompt_to_its_last_token_where_beginnings_of_blocks_hit():
    trial, system = Trial(), ids(24)
    for number in range(5):
        trial.send(f"s{number}", [*system, *ids(50, number + 1)], 24 * (number > 0))
    to_the_token = PrefixCacheFacts(True, 16, hits_to_the_token=True)
    # The second prompt parts from the first one in a block whose tokens are not kept.
    found = 16 + 3 * 24
    assert trial.gaps(to_the_token).whole.ideal == pytest.approx(found / (5 * 74))
    assert tokens(trial.gaps(to_the_token)).get(CacheCause.ROUNDING) is None
    assert tokens(trial.gaps())[CacheCause.ROUNDING] == 3 * 8
    assert trial.gaps().whole.ideal == pytest.approx(found / (5 * 74))


def test_beginnings_of_blocks_hit_only_behind_blocks_that_were_not_evicted():
    trial = Trial()
    for _ in range(2):
        for session in range(3):
            trial.send(f"s{session}", ids(165, session + 1), 0, output=0)
    small, large = (trial.gaps(PrefixCacheFacts(True, 16, size, hits_to_the_token=True)) for size in (320, 640))
    assert tokens(small)[CacheCause.EVICTION] == 3 * 164
    assert tokens(large)[CacheCause.EVICTION] == 0
    assert large.whole.ideal == pytest.approx(3 * 164 / (6 * 165))


def test_a_cache_that_is_off_loses_all_of_it():
    trial = Trial()
    trial.send("s", ids(100), 0)
    trial.send("s", ids(160), 0)
    gaps = trial.gaps(PrefixCacheFacts(is_on=False, block_tokens=16))
    assert tokens(gaps)[CacheCause.OFF] == 96
    assert gaps.whole.unexplained == pytest.approx(0)


def test_a_small_cache_evicts_what_was_used_least_recently():
    trial = Trial()
    for _ in range(2):
        for session in range(3):
            trial.send(f"s{session}", ids(160, session + 1), 0, output=0)
    assert tokens(trial.gaps(PrefixCacheFacts(True, 16, 320)))[CacheCause.EVICTION] == 3 * 144
    assert tokens(trial.gaps(PrefixCacheFacts(True, 16, 480)))[CacheCause.EVICTION] == 0


def test_answers_take_room():
    def evicted(output: int) -> int:
        trial = Trial()
        for _ in range(2):
            trial.send("s", ids(160, 1), 0, output=output)
            trial.send("t", ids(160, 2), 0, output=output)
        return tokens(trial.gaps(PrefixCacheFacts(True, 16, 400)))[CacheCause.EVICTION]

    # 25 blocks: each time, an answer of 4 blocks evicts answers only, and one of 8 also 3 of the other prompt's 10
    # blocks, of which the last would not count
    assert (evicted(64), evicted(128)) == (0, 2 * 32)


def test_a_request_waits_for_room_and_finds_what_is_cached_by_then():
    trial = Trial()
    trial.send("s", ids(160, 1), 0, output=0)
    trial.send("t", ids(320, 2), 0, output=80, chunk_ns=[3 * S], ended_ns=6 * S)
    trial.send("s", ids(160, 1), 0, output=0, chunk_ns=[7 * S], ended_ns=8 * S)
    # when it is sent, 3 of its blocks are left; the answer in progress takes them before there is room
    assert tokens(trial.gaps(PrefixCacheFacts(True, 16, 400)))[CacheCause.EVICTION] == 144


def test_other_addresses_have_other_caches():
    trial = Trial()
    trial.send("s", ids(160), 0, address="a")
    trial.send("s", ids(320), 0, address="b")
    trial.send("s", ids(480), 160, address="a")
    gaps = trial.gaps()
    assert tokens(gaps)[CacheCause.ROUTING] == 160 + 320 - 160
    assert [group.name for group in gaps.groups if group.name in "ab"] == ["a", "b"]


@pytest.mark.parametrize(
    ("cached", "routing", "lost"),
    [([0, 160, 320], AssumedRouting.BY_SESSION, 0), ([0, 0, 160], AssumedRouting.IN_TURN, 320)],
)
def test_behind_a_router_the_hits_tell_how_it_divides_calls(cached: list[int], routing: AssumedRouting, lost: int):
    trial = Trial()
    for number, hit in enumerate(cached):
        trial.send("s", ids(160 * (number + 1)), hit)
    gaps = trial.gaps(replicas=["a", "b"])
    assert gaps.assumed_routing is routing
    assert tokens(gaps)[CacheCause.ROUTING] == lost
    assert gaps.whole.unexplained == pytest.approx(0)
    assert trial.gaps(replicas=["a"]).assumed_routing is None


def test_no_routing_is_assumed_where_the_only_address_in_use_is_known():
    trial = Trial()
    trial.send("s", ids(160), 0, address="a")
    trial.send("s", ids(320), 0, address="a")
    gaps = trial.gaps(replicas=["a", "b"])
    assert gaps.assumed_routing is None
    assert CacheCause.ROUTING not in gaps.whole.parts


def test_the_share_of_a_metrics_page_stands_in_for_that_of_answers():
    trial = Trial()
    for number in range(2):
        trial.send("s", ids(160 * (number + 1)))
    gaps = trial.gaps(counted_share=1 / 3)
    assert gaps.whole.observed == 1 / 3
    assert gaps.whole.unexplained == pytest.approx(0)
    assert [group.observed for group in gaps.groups] == [None, None]


def test_salts_hide_the_plays_of_a_session_from_each_other():
    trial = Trial()
    trial.send("s", ids(160, 1), 0)
    trial.send("s", ids(160, 2), 0, turn=0, cycle=1)
    assert tokens(trial.gaps(is_salted=True))[CacheCause.SALT] == 144
    assert CacheCause.SALT not in trial.gaps().whole.parts


def test_a_template_that_rewrites_the_history_loses_what_follows():
    trial = Trial()
    trial.send("s", ids(100), 0, output=0)
    trial.send("s", [*ids(40), *ids(110, 5)], 32)
    gaps = trial.gaps(is_live=True)
    assert tokens(gaps) == {CacheCause.ROUNDING: 8, CacheCause.TEMPLATE: 60}


def test_larger_blocks_round_more():
    trial = Trial()
    trial.send("s", ids(100), 0, output=0)
    trial.send("s", ids(150), 64)
    gaps = trial.gaps(PrefixCacheFacts(True, 64), is_live=True)
    assert (gaps.block_tokens, tokens(gaps)[CacheCause.ROUNDING]) == (64, 36)
    assert gaps.whole.unexplained == pytest.approx(0)


def test_the_last_token_of_a_prompt_is_never_found():
    trial = Trial()
    trial.send("s", ids(160), 0, output=0)
    trial.send("t", ids(160), 144)
    assert trial.gaps(is_live=True).whole.unexplained == pytest.approx(0)


def test_what_was_sent_before_the_window_is_in_the_cache_and_does_not_count():
    trial = Trial()
    trial.send("s", ids(160), 0)
    trial.send("s", ids(320), 160)
    window = Window(S, 10**18)
    gaps = cache_gaps(trial.requests, window, trial.prompts, {None: ON}, is_live=True, is_salted=False)
    assert gaps is not None
    assert gaps.whole.prompt_tokens == 320


def test_engines_that_report_nothing_have_no_unexplained_part():
    trial = Trial()
    trial.send("s", ids(100))
    trial.send("s", ids(150))
    gaps = trial.gaps(PrefixCacheFacts())
    assert (gaps.whole.observed, gaps.whole.unexplained, gaps.is_assumed) == (None, None, True)


def test_groups_are_those_of_agents_and_turns():
    trial = Trial()
    trial.send("s", ids(160), 0)
    trial.send("s", ids(160, 3), 0, agent="a")
    trial.send("s", ids(320), 160)
    gaps = trial.gaps()
    assert [group.name for group in gaps.groups] == ["main agent", "sub-agents", "turn 1", "turn 2 to 5"]
    assert sum(group.prompt_tokens for group in gaps.groups[:2]) == gaps.whole.prompt_tokens


@pytest.mark.parametrize("capacity", [None, 400, 2000])
def test_parts_add_up_in_random_trials(capacity: int | None):
    rng = random.Random(3)
    trial = Trial()
    histories: dict[str, list[int]] = {}
    for _ in range(120):
        session = f"s{rng.randrange(8)}"
        history = histories.setdefault(session, ids(rng.randrange(20, 90), int(session[1:]) + 1))
        if rng.random() < 0.1:
            history[:] = history[: rng.randrange(5, len(history))]
        history += [rng.randrange(10**6) for _ in range(rng.randrange(1, 60))]
        trial.send(session, history, 0, output=rng.randrange(30), address=rng.choice("ab"))
    gaps = trial.gaps(PrefixCacheFacts(True, 16, capacity))
    assert all(part >= -1e-9 for cause, part in gaps.whole.parts.items() if cause is not CacheCause.EVICTION)
    found = naive_hits(trial, capacity)
    assert gaps.whole.unexplained == pytest.approx(found / gaps.whole.prompt_tokens)


def naive_hits(trial: Trial, capacity: int | None) -> int:
    """Hits of a cache for each address, by lists: the least recently used block goes first, ends before fronts."""
    caches: dict[str, list[int]] = {"a": [], "b": []}
    hits = 0
    for request in trial.requests:
        assert request.block is not None
        blocks = trial.prompts.blocks_to(request.block)
        cache = caches[request.address or ""]
        count = 0
        while count < len(blocks) and blocks[count] in cache:
            count += 1
        hits += min(count, ((request.prompt_tokens or 0) - 1) // 16) * 16
        if capacity is not None:
            new = -(-((request.prompt_tokens or 0) + (request.output_tokens or 0)) // 16) - len(blocks)
            last = -(100 * request.index + new - 1) - 2
            blocks = [*blocks, *(-(100 * request.index + block) - 2 for block in range(new))][: capacity // 16]
        for block in reversed(blocks):
            if block in cache:
                cache.remove(block)
            cache.append(block)
        if capacity is not None:
            del cache[: max(0, len(cache) - capacity // 16)]
            if ((request.prompt_tokens or 0) + (request.output_tokens or 0)) % 16 and last in cache:
                cache.remove(last)
    return hits
