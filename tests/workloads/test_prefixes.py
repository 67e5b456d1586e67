"""Prefix caches: the endless one against its definition, the limited one against a list."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.workloads import EndlessCache
from bakeoff.workloads.prefixes import LruCache, block_hashes
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
