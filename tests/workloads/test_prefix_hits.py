"""Calls over time, and what caches of every size find of their prompts."""

import heapq
import random

import pytest

from bakeoff.workloads.outline import SessionOutline, TurnOutline
from bakeoff.workloads.prefix_hits import Call, PrefixHits, timeline
from bakeoff.workloads.prefixes import LruCache, Pin


def turn(*segments: tuple[str, int], output: int = 100, think_s: float = 0.0) -> TurnOutline:
    return TurnOutline(sum(tokens for _, tokens in segments), output, think_s, segments)


def session(name: str, start_s: float | None, *turns: TurnOutline) -> SessionOutline:
    return SessionOutline(name, start_s, turns)


def call(start_s: float, end_s: float, *segments: tuple[str, int], answer: int = 0) -> Call:
    return Call(start_s, end_s, answer, turn(*segments))


def last_names(sessions: list[SessionOutline], slots: int | None = None) -> list[str]:
    return [call.turn.segments[-1][0] for call in timeline(sessions, slots).calls]


def test_turns_arrive_when_an_engine_would_receive_them() -> None:
    talk = (turn(("q0", 40)), turn(("q0", 40), ("a0", 100), ("q1", 20), think_s=8.0))
    sessions = [session("a", 0.0, *talk), session("b", 9.9, turn(("b", 5))), session("c", 10.1, turn(("c", 5)))]
    assert last_names(sessions) == ["q0", "b", "q1", "c"], "2 s for 100 tokens, 8 s to think"
    assert [(call.start_s, call.end_s) for call in timeline(sessions[:1]).calls] == [(0.0, 2.0), (10.0, 12.0)]


def test_sessions_without_start_times_run_in_eight_slots() -> None:
    sessions = [session(str(k), None, turn((f"{k}.0", 5)), turn((f"{k}.1", 5))) for k in range(10)]
    order = last_names(sessions)
    assert order[:8] == [f"{k}.0" for k in range(8)]
    assert order[8:16] == [f"{k}.1" for k in range(8)]
    assert order[16:] == ["8.0", "9.0", "8.1", "9.1"]


def test_a_number_of_slots_replaces_start_times() -> None:
    sessions = [session(str(k), 1000.0 * k, turn((f"{k}.0", 5)), turn((f"{k}.1", 5))) for k in range(4)]
    assert last_names(sessions, 2) == ["0.0", "1.0", "0.1", "1.1", "2.0", "3.0", "2.1", "3.1"]
    assert timeline(sessions, 2).last_session_s == 4.0, "two answers of 2 s are before it"


def test_hits_of_a_few_calls_by_hand() -> None:
    """In tokens from the most recently used one:

    0 s: a's 64 tokens and the 16 of its answer are held until 1 s.
    2 s: b's 48 and 16 are held until 9 s; a's lie behind.
    3 s: a again: 64 held tokens, then its own 64 lie before the last of them. It now holds 80 + 16 until 4 s.
    5 s: b again, whose first call is in progress: found by every cache that holds the 64 tokens in progress.
    """
    a, b = ("a", 64), ("b", 48)
    calls = [
        call(0, 1, a, answer=16),
        call(2, 9, b, answer=16),
        call(3, 4, a, ("a2", 16), answer=16),
        call(5, 6, b, ("b2", 16)),
    ]
    hits = PrefixHits(calls)
    assert hits.prompt_tokens == 64 + 48 + 80 + 64
    assert hits.held_tokens == [80, 64, 160, 80]
    assert hits.largest_tokens == 128
    assert hits.of_calls(None).tolist() == [0, 0, 64, 48]
    assert hits.of_calls(127).tolist() == [0, 0, 48, 48], "whole blocks of 16"
    assert hits.of_calls(64).tolist() == [0, 0, 0, 48]
    assert hits.of_calls(32, block_tokens=1).tolist() == [0, 0, 0, 24], "room for half of what is in progress"
    assert hits.share() == (64 + 48) / 256
    assert (hits.size_for(48 / 256), hits.size_for(64 / 256), hits.size_for(1.0)) == (64, 80, 128)


def test_calls_that_do_not_count_fill_the_cache() -> None:
    calls = [call(k, k, ("a", 32), (str(k), 32)) for k in range(4)]
    hits = PrefixHits(calls, range(2, 4))
    assert (hits.prompt_tokens, hits.share()) == (128, 0.5)
    assert PrefixHits(calls).share() == 96 / 256
    assert len(hits.held_tokens) == 2


def test_an_engine_computes_the_last_token_of_a_prompt_that_it_has() -> None:
    assert PrefixHits([call(0, 0, ("a", 32)), call(1, 1, ("a", 32))]).of_calls(None).tolist() == [0, 16]


def test_calls_that_share_nothing_have_no_hits() -> None:
    hits = PrefixHits([call(k, k, (str(k), 32)) for k in range(3)])
    assert (hits.share(), hits.largest_tokens, hits.size_for(0.9)) == (0.0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_hits_are_those_of_a_simulated_cache_of_each_size(seed: int) -> None:
    """Against an LRU cache of one-token blocks that calls pin from their start to their end."""
    calls = random_calls(random.Random(seed))
    hits = PrefixHits(calls)
    fewest, most = max(hits.held_tokens), hits.largest_tokens
    assert most > fewest, "some sizes evict"
    sizes = range(fewest, most + 2)
    found = [hits.of_calls(size, block_tokens=1).tolist() for size in sizes]
    assert found == [simulated(calls, size) for size in sizes]
    assert found[-1] == hits.of_calls(None, block_tokens=1).tolist()


def random_calls(draw: random.Random) -> list[Call]:
    """Conversations that begin with one of two system prompts, some calls in progress at a time."""
    talks: list[list[tuple[str, int]]] = [[(f"system {k % 2}", 5)] for k in range(6)]
    calls: list[Call] = []
    for number in range(60):
        talk = draw.choice(talks)
        if draw.random() < 0.2:
            del talk[draw.randrange(1, len(talk) + 1) :]
        talk.append((str(number), draw.randint(1, 6)))
        calls.append(call(number, number + draw.choice((0, 0.5, 2, 4)), *talk, answer=draw.randint(0, 4)))
    return calls


def simulated(calls: list[Call], capacity_tokens: int) -> list[int]:
    cache: LruCache[str] = LruCache(capacity_tokens, 1)
    ends: list[tuple[float, int, Pin[str]]] = []
    found: list[int] = []
    for number, now in enumerate(calls):
        while ends and ends[0][0] <= now.start_s:
            cache.release(heapq.heappop(ends)[2])
        names: list[str] = []
        prefix = ""
        for name, tokens in now.turn.segments:
            prefix += f"/{name}"
            names += (f"{prefix}:{token}" for token in range(tokens))
        answer = [f"answer {number}:{token}" for token in range(now.answer_tokens)]
        pin = cache.pin(names + answer)
        found.append(min(pin.hit_tokens, len(names) - 1))
        heapq.heappush(ends, (now.end_s, number, pin))
    return found
