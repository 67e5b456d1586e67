import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from reference_engine.errors import BlockAccountingError, EngineBugError
from reference_engine.kv_cache.block_pool import BlockPool
from reference_engine.kv_cache.block_table import BlockTable


def test_a_pool_gives_all_or_nothing():
    pool = BlockPool(4, 16)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(2) is None
    assert (pool.num_free, pool.num_used) == (1, 3)


def test_freeing_twice_is_an_error():
    pool = BlockPool(2, 16)
    pool.release(pool.allocate(1))
    with pytest.raises(BlockAccountingError, match="block 0 is freed twice"):
        pool.release([0])


def test_a_shared_block_is_free_only_after_its_last_holder_lets_go():
    pool = BlockPool(1, 16)
    (block,) = pool.allocate(1)
    pool.share(block)
    pool.release([block])
    assert pool.num_free == 0
    pool.release([block])
    assert pool.num_free == 1
    with pytest.raises(BlockAccountingError, match="cannot be shared"):
        pool.share(block)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_for_rounds_up(tokens, blocks):
    assert BlockPool(4, 16).blocks_for(tokens) == blocks


def test_an_empty_pool_is_refused():
    with pytest.raises(EngineBugError):
        BlockPool(0, 16)


def test_integrity_sees_leaks_and_ghosts():
    pool = BlockPool(3, 16)
    held = pool.allocate(2)
    pool.check_integrity([held])
    with pytest.raises(BlockAccountingError, match="1 references but 0 holders"):
        pool.check_integrity([])
    with pytest.raises(BlockAccountingError, match="0 references but 1 holders"):
        pool.check_integrity([held, [2]])
    pool._empty.append(0)
    with pytest.raises(BlockAccountingError, match="free list disagrees"):
        pool.check_integrity([held])
    pool._empty.append(0)
    with pytest.raises(BlockAccountingError, match="twice"):
        pool.check_integrity([held])


def test_a_table_grows_by_what_is_missing_and_gives_everything_back():
    pool = BlockPool(4, 16)
    table = BlockTable(pool)
    assert table.grow_to(17)
    assert table.grow_to(32)
    assert table.blocks == [0, 1]
    assert table.capacity_tokens == 32
    assert not table.grow_to(16 * 5)
    assert table.blocks == [0, 1]
    table.clear()
    assert (table.blocks, pool.num_free) == ([], 4)


class PoolMachine(RuleBasedStateMachine):
    """Tables that grow and clear in any order never lose or double a block."""

    @initialize(blocks=st.integers(1, 12), size=st.integers(1, 8))
    def start(self, blocks, size):
        self.pool = BlockPool(blocks, size)
        self.tables = [BlockTable(self.pool) for _ in range(4)]

    @rule(which=st.integers(0, 3), tokens=st.integers(0, 60))
    def grow(self, which, tokens):
        table = self.tables[which]
        before = list(table.blocks)
        if table.grow_to(tokens):
            assert table.capacity_tokens >= tokens
        else:
            assert table.blocks == before

    @rule(which=st.integers(0, 3))
    def clear(self, which):
        self.tables[which].clear()

    @invariant()
    def nothing_lost(self):
        if hasattr(self, "pool"):
            self.pool.check_integrity(table.blocks for table in self.tables)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
