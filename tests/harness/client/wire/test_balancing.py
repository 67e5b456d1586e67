"""Policies that divide requests, each against an oracle that knows the whole history and nothing of the code."""

import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.engines.addresses import Balance
from bakeoff.harness.client.wire import balancing
from bakeoff.harness.client.wire.balancing import ABSENT, BLOCK_BYTES, Call, PrefixAware, balancer, prefixes_of

LABELS = ("a:1", "b:2", "c:3")
COUNTS = st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=1, max_size=40)


def chosen(balance: Balance, history: list[list[int]]) -> list[int]:
    policy = balancer(balance, LABELS)
    return [policy.choose(policy.call(f"s{i}", b"{}"), in_flight) for i, in_flight in enumerate(history)]


@given(COUNTS)
def test_round_robin_takes_each_in_turn_whatever_is_in_flight(history: list[list[int]]):
    assert chosen(Balance.ROUND_ROBIN, history) == [i % 3 for i in range(len(history))]


@given(COUNTS)
def test_least_in_flight_takes_an_idlest(history: list[list[int]]):
    picked = chosen(Balance.LEAST_IN_FLIGHT, history)
    assert all(in_flight[place] == min(in_flight) for place, in_flight in zip(picked, history, strict=True))


def test_least_in_flight_takes_equal_ones_in_turn():
    assert chosen(Balance.LEAST_IN_FLIGHT, [[0, 0, 0]] * 7) == [0, 1, 2, 0, 1, 2, 0]


def places(labels: tuple[str, ...], conversations: list[str]) -> list[str]:
    policy = balancer(Balance.BY_SESSION, labels)
    return [labels[policy.choose(policy.call(name, b""), [0] * len(labels))] for name in conversations]


def test_by_session_keeps_conversations_together_whatever_the_order_and_the_worker():
    conversations = [f"s{i}" for i in range(300)]
    placed = places(LABELS, conversations)
    assert places(LABELS, conversations[::-1])[::-1] == placed
    assert places(LABELS[::-1], conversations) == placed
    assert placed[:3] == ["c:3", "c:3", "b:2"], "the places are the same in every process"
    assert all(70 < count < 130 for count in Counter(placed).values())


def test_by_session_moves_only_the_conversations_of_an_address_that_is_gone():
    conversations = [f"s{i}/explore" for i in range(300)]
    with_three, with_two = places(LABELS, conversations), places(LABELS[:2], conversations)
    assert all(after == before for before, after in zip(with_three, with_two, strict=True) if before != LABELS[2])


def common_blocks(one: bytes, other: bytes) -> int:
    blocks = 0
    while (end := (blocks + 1) * BLOCK_BYTES) <= min(len(one), len(other)) and one[:end] == other[:end]:
        blocks += 1
    return blocks


def body_of(prompt: bytes, tokens: int) -> bytes:
    return b'{"model":"m","max_tokens":%d,"messages":%s}' % (tokens, prompt)


@pytest.mark.parametrize("seed", range(6))
def test_prefix_aware_follows_its_rule_on_growing_conversations(seed: int):
    """The oracle compares prompts byte by byte with all that were sent before."""
    rng = random.Random(seed)
    policy, sent = balancer(Balance.PREFIX_AWARE, LABELS), [list[bytes]() for _ in LABELS]
    talks = [bytes([97 + rng.randrange(3)]) * rng.randrange(3 * BLOCK_BYTES) for _ in range(6)]
    in_flight = [0, 0, 0]
    kept, begun = 0, set[str]()
    for step in range(300):
        talk = rng.randrange(len(talks))
        conversation = f"{talk}" if step % 2 else f"{talk} begins at {step}"
        talks[talk] += rng.randbytes(rng.randrange(2 * BLOCK_BYTES))
        prompt = talks[talk]
        whole = prompt + b"}"  # the end of the body is part of its last block
        in_flight = [rng.randrange(3 if step % 3 else 25) for _ in in_flight]
        known = [max((common_blocks(whole, earlier) for earlier in each), default=0) for each in sent]
        best = min(count for count, at in zip(in_flight, known, strict=True) if at == max(known))
        allowed = {i for i in range(3) if known[i] == max(known) and in_flight[i] == best}
        idlest = min(in_flight)
        if best - idlest > (max(4, idlest / 2) if conversation in begun else 0):
            allowed = {i for i in range(3) if in_flight[i] == idlest}
        elif max(known):
            kept += 1
        place = policy.choose(policy.call(conversation, body_of(prompt, rng.randrange(1000))), in_flight)
        assert place in allowed
        begun.add(conversation)
        sent[place].append(whole)
    assert kept > 60


@pytest.mark.parametrize("balance", Balance)
def test_an_absent_address_gets_nothing_and_its_share_from_when_it_is_there(balance: Balance):
    policy, rng = balancer(balance, LABELS), random.Random(5)
    calls = [policy.call(f"s{number}", rng.randbytes(5000)) for number in range(90)]
    before = Counter(policy.choose(call, [0, ABSENT, 0]) for call in calls)
    assert before.keys() == {0, 2}
    assert min(before.values()) > 30
    after = [policy.choose(policy.call(f"t{number}", rng.randbytes(5000)), [0, 0, 0]) for number in range(90)]
    assert Counter(after).keys() == {0, 1, 2}
    assert min(Counter(after).values()) > 15


def test_conversations_move_only_to_an_address_that_joins():
    policy = balancer(Balance.BY_SESSION, LABELS)
    calls = [policy.call(f"s{number}", b"{}") for number in range(90)]
    moved = [
        (before, after)
        for call in calls
        if (before := policy.choose(call, [0, ABSENT, 0])) != (after := policy.choose(call, [0, 0, 0]))
    ]
    assert {after for _, after in moved} == {1}


def test_prefix_aware_begins_conversations_of_one_system_prompt_at_all_addresses_and_keeps_them():
    policy = PrefixAware(3)
    system = tuple(range(20))
    talks = [(f"s{number}", (*system, 100 + number)) for number in range(9)]
    begun: list[int] = []
    for conversation, prefixes in talks:  # in flight are the two requests before
        in_flight = [begun[-2:].count(place) for place in range(3)]
        begun.append(policy.choose(Call(conversation, prefixes), in_flight))
    assert set(begun) == {0, 1, 2}
    for place, (conversation, prefixes) in zip(begun, talks, strict=True):
        busy = [4 if at == place else 0 for at in range(3)]
        assert policy.choose(Call(conversation, (*prefixes, 1000 + place)), busy) == place


def test_prefix_aware_forgets_what_was_sent_long_ago_but_not_what_is_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(balancing, "KEPT_BLOCKS", 8)
    policy = PrefixAware(2)
    used, once = Call("used", (1, 2, 3)), Call("once", (11, 12, 13))
    assert [policy.choose(call, [0, 0]) for call in (used, once)] == [0, 1]
    for number in range(20):
        policy.choose(Call("", (100 + number,)), [0, 9])
        policy.choose(Call("", (200 + number,)), [9, 0])
        assert policy.choose(used, [3, 0]) == 0
    assert policy.choose(once, [0, 1]) == 0, "nobody knows it any more, so the idlest gets it"


def test_prefixes_begin_with_the_prompt_and_end_with_the_last_whole_block():
    prompt = bytes(range(32, 127)) * 40
    hashes = prefixes_of(body_of(prompt, 1))
    assert len(hashes) == (len(prompt) + 1) // BLOCK_BYTES
    assert prefixes_of(body_of(prompt, 1000)) == hashes
    changed = prompt[:2000] + b"!" + prompt[2001:]
    assert [a == b for a, b in zip(prefixes_of(body_of(changed, 1)), hashes, strict=True)] == [True, False, False]


@pytest.mark.parametrize("field", ["messages", "prompt", "input", "inputs", "text", "text_input"])
def test_the_prompt_is_found_in_the_body_of_any_dialect(field: str):
    bodies: list[bytes] = [
        msgspec.json.encode({"model": "m", "max_tokens": tokens, field: "a" * 3000}) for tokens in (1, 1000)
    ]
    first, second = map(prefixes_of, bodies)
    assert first == second
    assert len(first) == 2


def test_the_rule_is_chosen_by_its_name():
    kinds: dict[str, Any] = {balance.value: type(balancer(balance, LABELS)).__name__ for balance in Balance}
    assert kinds == {
        "round-robin": "RoundRobin", "least-in-flight": "LeastInFlight", "by-session": "BySession",
        "prefix-aware": "PrefixAware",
    }  # fmt: skip
