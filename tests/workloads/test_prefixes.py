"""Prefix caches: the endless one against its definition, the limited one against a list."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.workloads import EndlessCache
from bakeoff.workloads.prefixes import LruCache, Pin, block_hashes
from tests.workloads.replays import common_tokens

PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=10)
NAMES = st.lists(st.lists(st.sampled_from("abcde").map(str.encode), max_size=5, unique=True), max_size=12)


@given(prompts=PROMPTS, block_tokens=st.integers(1, 5))
def test_an_endless_cache_hits_the_longest_prefix_of_any_earlier_prompt(
    prompts: list[list[int]], block_tokens: int
) -> None:
    cache = EndlessCache(block_tokens)
    hits = [cache.add(ids) for ids in prompts]
    longest = [
        max((common_tokens(ids, earlier) for earlier in prompts[:i]), default=0) for i, ids in enumerate(prompts)
    ]
    assert hits == [tokens // block_tokens * block_tokens for tokens in longest]
    assert cache.hit_tokens == sum(hits)
    assert cache.prompt_tokens == sum(map(len, prompts))
    blocks = {tuple(ids[:end]) for ids in prompts for end in range(block_tokens, len(ids) + 1, block_tokens)}
    assert cache.distinct_blocks == len(blocks)


@given(prompts=PROMPTS, block_tokens=st.integers(1, 5))
def test_what_prompts_share_is_known_to_the_token_behind_blocks_where_others_have_parted(
    prompts: list[list[int]], block_tokens: int
) -> None:
    cache, parted = EndlessCache(block_tokens), list[tuple[list[int], int]]()
    for ids in prompts:
        hit = cache.add(ids, to_the_token=True)
        common = [(common_tokens(ids, earlier), at) for earlier, at in parted]
        assert cache.last_shared == max((tokens for tokens, at in common if at == hit <= tokens), default=hit)
        parted.append((ids, hit))


@given(ids=st.lists(st.integers(0, 300_000), max_size=40), block_tokens=st.integers(1, 8))
def test_a_block_is_named_by_everything_up_to_its_end(ids: list[int], block_tokens: int) -> None:
    names = list(block_hashes(ids, block_tokens))
    assert len(names) == len(ids) // block_tokens
    for at in range(len(names)):
        changed = ids.copy()
        changed[at * block_tokens] += 1
        others = list(block_hashes(changed, block_tokens))
        assert others[:at] == names[:at]
        assert not set(others[at:]) & set(names[at:])


@given(prompts=NAMES, capacity=st.integers(0, 8))
def test_a_limited_cache_gives_up_what_was_used_longest_ago(prompts: list[list[bytes]], capacity: int) -> None:
    cache, model, hits = LruCache(capacity * 4 + 3, 4), list[bytes](), 0
    for names in prompts:
        hits += sum(1 for _ in itertools.takewhile(model.__contains__, names))
        for name in reversed(names):
            if name in model:
                model.remove(name)
            model.append(name)
        model = model[-capacity:] if capacity else []
        cache.add(names)
    assert cache.hit_tokens == 4 * hits


class Blocks:
    """A prefix cache without any bookkeeping: blocks by their last use, and the prompts in progress."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: list[str] = []
        self.in_use: list[list[str]] = []

    def hits(self, names: list[str]) -> int:
        return len(list(itertools.takewhile(self.blocks.__contains__, names)))

    def touch(self, names: list[str]) -> None:
        """Use blocks now, the first of them last, then evict from the block used longest ago on."""
        self.blocks = [block for block in self.blocks if block not in names] + list(reversed(names))
        used = {block for names in self.in_use for block in names}
        unused = [block for block in self.blocks if block not in used]
        for block in unused[: max(0, len(self.blocks) - self.capacity)]:
            self.blocks.remove(block)

    def pin(self, names: list[str]) -> list[str]:
        used = {block for names in self.in_use for block in names}
        fitting: list[str] = []
        for name in names:
            if name in self.blocks or len(used | set(fitting) | {name}) <= self.capacity:
                fitting.append(name)
            else:
                break
        self.in_use.append(fitting)
        self.touch(fitting)
        return fitting

    def release(self, names: list[str]) -> None:
        """A release is a use, except of blocks that another prompt uses: theirs is the other's release."""
        self.in_use.remove(names)
        used = {block for names in self.in_use for block in names}
        self.touch([name for name in names if name not in used])


@given(data=st.data(), capacity=st.integers(0, 9))
def test_random_uses_of_a_cache_are_those_of_a_list(data: st.DataObject, capacity: int) -> None:
    """Prompts over two letters, named by their prefixes, so that many share a beginning."""
    cache, model = LruCache[str](capacity * 4 + 3, 4), Blocks(capacity)
    pins: list[tuple[Pin[str], list[str]]] = []
    for _ in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["add", "pin", "release", "clear"] if pins else ["add", "pin", "clear"]))
        text = data.draw(st.text("ab", max_size=6))
        names = [text[:end] for end in range(1, len(text) + 1)]
        hits = model.hits(names)
        assert cache.look_up(names) == 4 * hits
        if action == "add":
            assert cache.add(names) == 4 * hits
            model.touch(names)
        elif action == "pin":
            pin = cache.pin(names)
            pins.append((pin, model.pin(names)))
            assert (list(pin.names), pin.hit_tokens) == (pins[-1][1], 4 * hits)
        elif action == "release":
            pin, fitting = pins.pop(data.draw(st.integers(0, len(pins) - 1)))
            cache.release(pin)
            model.release(fitting)
        else:
            cache.clear()
            used = {block for names in model.in_use for block in names}
            model.blocks = [block for block in model.blocks if block in used]
        assert len(cache) == len(model.blocks) <= capacity
        assert cache.pinned_blocks == len({block for names in model.in_use for block in names})
        assert [block for block in model.blocks if cache.look_up([block])] == model.blocks


def test_a_block_in_use_stays_however_many_prompts_follow() -> None:
    cache = LruCache[str](3 * 16, 16)
    pin = cache.pin(["a", "ab"])
    for other in "cdefg":
        cache.add([other])
    assert cache.look_up(["a", "ab", "abc"]) == 32
    assert list(cache.pin(["x", "xy"]).names) == ["x"], "there is room for one more"
    cache.release(pin)
    cache.add(["c"])
    assert (cache.look_up(["a", "ab"]), cache.look_up(["x"]), cache.look_up(["c"])) == (16, 16, 16)


def test_a_cache_without_limit_keeps_everything() -> None:
    cache = LruCache[int](None, 4)
    assert [cache.add(list(range(start, start + 100))) for start in (0, 1000, 0)] == [0, 0, 400]
    assert (len(cache), cache.hit_tokens) == (200, 400)


BLOCK = 512
CONVERSATION = [
    # block 0 is the common system prompt; two users take turns and grow, a third asks once
    ("0 1 2", 3 * BLOCK),
    ("0 3", 2 * BLOCK),
    ("0 1 2 4", 4 * BLOCK),
    ("0 5 6 7", 4 * BLOCK),
    ("0 3 8", 3 * BLOCK),
    ("0 1 2 4 9", 5 * BLOCK),
]
"""A trace in Mooncake's form: names of blocks, and input tokens."""
HIT_BLOCKS = {
    1: [0, 1, 1, 1, 1, 1],  # the front of a prompt is touched last: only the system prompt always stays
    3: [0, 1, 2, 1, 1, 1],
    4: [0, 1, 3, 1, 1, 1],
    6: [0, 1, 3, 1, 1, 1],
    7: [0, 1, 3, 1, 1, 2],
    8: [0, 1, 3, 1, 2, 3],
    10: [0, 1, 3, 1, 2, 4],
}
"""Worked out by hand: for each capacity in blocks, the blocks that each request finds."""


@pytest.mark.parametrize(("capacity", "hit_blocks"), HIT_BLOCKS.items())
def test_the_table_of_a_small_trace_is_the_one_worked_out_by_hand(capacity: int, hit_blocks: list[int]) -> None:
    """The rule of the Mooncake paper's table: leading cached blocks, without output, over all tokens."""
    cache, hits = LruCache(capacity * BLOCK, BLOCK), list[int]()
    for names, _ in CONVERSATION:
        before = cache.hit_tokens
        cache.add([name.encode() for name in names.split()])
        hits.append((cache.hit_tokens - before) // BLOCK)
    assert hits == hit_blocks
    assert cache.hit_tokens / sum(tokens for _, tokens in CONVERSATION) == sum(hit_blocks) / 21


@given(prompts=PROMPTS)
def test_a_cache_that_holds_everything_hits_the_bound(prompts: list[list[int]]) -> None:
    endless, limited = EndlessCache(2), LruCache(10_000, 2)
    for ids in prompts:
        endless.add(ids)
        limited.add(list(block_hashes(ids, 2)))
    assert limited.hit_tokens == endless.hit_tokens


@given(prompts=PROMPTS)
def test_a_larger_cache_never_hits_less(prompts: list[list[int]]) -> None:
    hits: list[int] = []
    for capacity in range(0, 30, 3):
        cache = LruCache(capacity, 1)
        for ids in prompts:
            cache.add(list(block_hashes(ids, 1)))
        hits.append(cache.hit_tokens)
    assert hits == sorted(hits)
