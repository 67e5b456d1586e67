"""Hashes of blocks, the index over them, and what the pool does with cached blocks."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.errors import BlockAccountingError, EngineBugError
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.block_hashes import BlockHashes, block_hash, prompt_hashes, root_hash
from bakeoff.reference_engine.kv_cache.block_pool import BlockPool
from bakeoff.reference_engine.kv_cache.cache import Group, KvCache
from bakeoff.reference_engine.kv_cache.prefix_index import PrefixIndex

ROOT = root_hash(None)
TOKENS = [3, 1, 4, 1]


def test_a_name_stands_for_the_whole_beginning():
    first, other_first = block_hash(ROOT, TOKENS), block_hash(ROOT, [3, 1, 4, 2])
    names = [first, other_first, block_hash(first, TOKENS), block_hash(other_first, TOKENS)]
    names += [block_hash(root_hash("salt"), TOKENS), block_hash(root_hash("pepper"), TOKENS)]
    assert len(set(names)) == 6
    assert block_hash(ROOT, tuple(TOKENS)) == first
    assert {len(name) for name in (ROOT, *names)} == {16}


def test_names_do_not_depend_on_the_process():
    assert block_hash(ROOT, TOKENS).hex() == "21026e9670b809efa614400fdb39ffad"


def test_of_two_equal_blocks_the_first_is_found():
    index = PrefixIndex()
    index.insert(b"name", 1, ROOT, TOKENS)
    index.insert(b"name", 2, ROOT, TOKENS)
    assert (index.find(b"name"), 1 in index, 2 in index) == (1, True, False)
    index.remove(1)
    assert (index.find(b"name"), 1 in index) == (None, False)


def test_a_block_has_one_name():
    index = PrefixIndex()
    index.insert(b"name", 1, ROOT, TOKENS)
    index.insert(b"name", 1, ROOT, TOKENS)
    with pytest.raises(BlockAccountingError, match="second hash"):
        index.insert(b"other", 1, ROOT, TOKENS)


def pool_with_free_cached(count, blocks=4):
    """A pool whose blocks 0 … count - 1 are free and cached as b"0", b"1" …, freed in that order."""
    pool = BlockPool(blocks, 16)
    held = pool.take(blocks)
    for block in range(count):
        pool.cache_block(block, str(block).encode(), ROOT, TOKENS)
    pool.release(held)
    return pool


def test_blocks_without_contents_are_used_first_and_then_those_that_are_free_for_longest():
    pool = pool_with_free_cached(3)
    assert (pool.num_free, pool.num_used) == (4, 0)
    assert [pool.take(1) for _ in range(4)] == [[3], [0], [1], [2]]
    assert pool.num_evicted == 3
    assert [pool.find(name) for name in (b"0", b"1", b"2")] == [None] * 3


def test_a_found_block_is_taken_back_and_becomes_the_last_to_go():
    pool = pool_with_free_cached(3)
    pool.share(0)
    pool.share(0)
    assert (pool.num_free, pool.find(b"0")) == (3, 0)
    pool.release([0, 0])
    assert [pool.take(1) for _ in range(4)] == [[3], [1], [2], [0]]


def test_nothing_changes_when_too_few_are_free():
    pool = pool_with_free_cached(3)
    with pytest.raises(BlockAccountingError, match="5 blocks are wanted and 4 are free"):
        pool.take(5)
    pool.check_integrity([])
    assert [pool.take(1) for _ in range(4)] == [[3], [0], [1], [2]]  # in the same order as before


def test_names_are_worked_out_in_any_order_and_go_on_after_a_copy():
    names = BlockHashes(2, "salt")
    first = block_hash(root_hash("salt"), [1, 2])
    assert names.at([1, 2, 3, 4], 1) == block_hash(first, [3, 4])
    twin = names.copy()
    assert names.at([1, 2, 3, 4, 5, 6], 2) != twin.at([1, 2, 3, 4, 5, 7], 2)
    assert (names.at([], 0), twin.at([], 0)) == (first, first)


def test_forgotten_blocks_stay_with_their_holders_and_cannot_be_found():
    pool = pool_with_free_cached(2)
    pool.share(0)
    pool.reset_prefix_cache()
    assert (pool.find(b"0"), pool.find(b"1"), pool.num_used) == (None, None, 1)
    pool.check_integrity([[0]])
    pool.release([0])
    assert sorted(pool.take(4)) == [0, 1, 2, 3]
    assert pool.num_evicted == 0  # nobody could have found them


def test_a_free_block_without_contents_can_be_neither_shared_nor_published():
    pool = BlockPool(1, 16)
    for act in (pool.share, lambda block: pool.cache_block(block, b"name", ROOT, TOKENS)):
        with pytest.raises(BlockAccountingError, match="block 0 is free"):
            act(0)


def test_a_block_that_others_hold_or_may_find_must_not_be_written():
    pool = BlockPool(2, 16)
    own, shared = pool.take(2)
    pool.check_writable([own, shared])
    pool.share(shared)
    with pytest.raises(EngineBugError, match=r"about to be written but has 2 references$"):
        pool.check_writable([own, shared])
    pool.cache_block(own, b"name", ROOT, TOKENS)
    with pytest.raises(EngineBugError, match="has 1 references and is cached"):
        pool.check_writable([own])


def test_integrity_sees_an_index_that_disagrees():
    pool = pool_with_free_cached(1)
    pool._index.remove(0)
    with pytest.raises(BlockAccountingError, match="block 0 is free and the prefix index disagrees"):
        pool.check_integrity([])
    pool = pool_with_free_cached(2)
    pool._index._blocks[b"0"] = 1
    with pytest.raises(BlockAccountingError, match="under another block"):
        pool.check_integrity([])
    pool = pool_with_free_cached(2)
    pool._index._hashes[1] = b"0"
    with pytest.raises(BlockAccountingError, match="under another block"):
        pool.check_integrity([])


sequences = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=6)


@given(computed=sequences, queries=sequences, size=st.integers(1, 4))
def test_exactly_the_longest_common_beginning_is_found(computed, queries, size):
    """Few sequences: of more than eight that continue one prefix, the earliest are not compared."""
    cache = KvCache([Group(BlockPool(400, size))], prefix_caching=True)
    cached = []

    def entered(tokens, salt=None):
        request = Request("x", tokens, SamplingParams(max_tokens=1), salt)
        cache.add(request)
        return request, cache.lookup(request)

    for tokens in computed:
        request, hit = entered(tokens)
        assert hit.num_tokens == longest(cached, tokens)
        assert hit.whole.num_tokens == hit.num_tokens // size * size
        cache.attach_prefix(request, hit)
        copies = BlockCopies()
        cache.make_writable(request, len(tokens), copies)
        assert len(copies.within) == (hit.copied_tokens > 0)
        request.num_computed = request.num_settled = len(tokens)
        cache.cache_blocks(request)
        cache.check_integrity([request])
        cache.release(request)
        cached.append(tokens)
    for tokens in queries:
        assert entered(tokens)[1].num_tokens == longest(cached, tokens)
        assert entered(tokens, "salt")[1].num_tokens == 0


def longest(cached, tokens):
    return max((common(tokens[:-1], other) for other in cached), default=0)


def common(left, right):
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_hashes_made_on_arrival_are_those_that_the_engine_would_make():
    tokens = [*range(50)]
    known = BlockHashes(4, "salt", prompt_hashes(tokens, 4, "salt"))
    own = BlockHashes(4, "salt")
    assert [known.at([], index) for index in range(12)] == [own.at(tokens, index) for index in range(12)]
    assert prompt_hashes(tokens[:3], 4, None) == b""


def test_of_many_continuations_the_latest_are_compared():
    index = PrefixIndex()
    for number in range(20):
        index.insert(str(number).encode(), number, ROOT, [number, 1, 2])
    assert index.beginning(ROOT, [19, 1, 9]) == (19, 2)
    assert index.beginning(ROOT, [12, 1, 9]) == (12, 2)
    assert index.beginning(ROOT, [11, 1, 9])[1] == 0
    assert index.beginning(b"other", [19])[1] == 0


class CacheMachine(RuleBasedStateMachine):
    """The pool does what a plain list of blocks with counts and names would do."""

    @initialize(blocks=st.integers(1, 10))
    def start(self, blocks):
        self.pool = BlockPool(blocks, 4)
        self.held = Counter()  # references by block
        self.names = {}  # cached blocks by name
        self.cached_free = []  # the longest free first
        self.evicted = 0

    @rule(count=st.integers(0, 5))
    def take(self, count):
        empty = self.pool.num_blocks - len(+self.held) - len(self.cached_free)
        if count > empty + len(self.cached_free):
            with pytest.raises(BlockAccountingError):
                self.pool.take(count)
            return
        taken = self.pool.take(count)
        gone, self.cached_free = (
            self.cached_free[: max(0, count - empty)],
            self.cached_free[max(0, count - empty) :],
        )
        assert len(set(taken)) == count
        assert not set(taken) & set(+self.held)
        assert set(gone) <= set(taken)
        self.names = {name: block for name, block in self.names.items() if block not in gone}
        self.evicted += len(gone)
        self.held.update(taken)

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def share(self, data):
        block = data.draw(st.sampled_from(sorted(self.names.values())))
        self.pool.share(block)
        self.held[block] += 1
        self.cached_free = [free for free in self.cached_free if free != block]

    @precondition(lambda self: +self.held)
    @rule(data=st.data())
    def release(self, data):
        blocks = data.draw(st.lists(st.sampled_from(sorted(+self.held)), unique=True))
        self.pool.release(blocks)
        self.held.subtract(blocks)
        self.cached_free += [block for block in blocks if not self.held[block] and block in self.names.values()]

    @precondition(lambda self: +self.held)
    @rule(data=st.data(), name=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def cache_blocks(self, data, name):
        block = data.draw(st.sampled_from(sorted(+self.held)))
        if block in self.names.values():
            return
        self.pool.cache_block(block, name, ROOT, TOKENS)
        self.names.setdefault(name, block)

    @rule()
    def reset_prefix_cache(self):
        self.pool.reset_prefix_cache()
        self.names, self.cached_free = {}, []

    @invariant()
    def same_as_the_model(self):
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity([self.held.elements()])
        assert self.pool.num_used == len(+self.held)
        assert self.pool.num_evicted == self.evicted
        assert {name: self.pool.find(name) for name in self.names} == self.names
        assert all(self.pool.find(name) is None for name in {b"a", b"b", b"c", b"d"} - set(self.names))


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(stateful_step_count=40)
