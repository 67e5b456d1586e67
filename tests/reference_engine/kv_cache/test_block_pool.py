import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bakeoff.reference_engine.ablations.contiguous import RunPool
from bakeoff.reference_engine.errors import BlockAccountingError, EngineBugError
from bakeoff.reference_engine.kv_cache.block_pool import BlockPool
from bakeoff.reference_engine.kv_cache.block_table import RELEASED, BlockTable, Visible


def test_a_pool_gives_all_or_nothing():
    pool = BlockPool(4, 16)
    assert pool.take(3) == [0, 1, 2]
    with pytest.raises(BlockAccountingError, match="2 blocks are wanted and 1 are free"):
        pool.take(2)
    assert (pool.num_free, pool.num_used) == (1, 3)


def test_freeing_twice_is_an_error():
    pool = BlockPool(2, 16)
    pool.release(pool.take(1))
    with pytest.raises(BlockAccountingError, match="block 0 is freed twice"):
        pool.release([0])


def test_a_shared_block_is_free_only_after_its_last_holder_lets_go():
    pool = BlockPool(1, 16)
    (block,) = pool.take(1)
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
    held = pool.take(2)
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


def test_runs_lie_side_by_side_and_what_makes_no_run_is_lost():
    pool = RunPool(11, 16, run=4)
    assert (pool.num_lost, pool.num_free, pool.blocks_for(1), pool.blocks_for(65)) == (3, 8, 4, 8)
    first, second = pool.take(4), pool.take(4)
    assert (first, second, pool.num_used) == ([0, 1, 2, 3], [4, 5, 6, 7], 8)
    pool.release(reversed(first))
    assert pool.take(4) == first


def test_a_table_grows_by_what_is_missing_and_gives_everything_back():
    pool = BlockPool(4, 16)
    table = BlockTable(pool)
    assert table.missing(0, 17) == 2
    table.make_writable(0, 17)
    assert (table.missing(17, 32), table.missing(32, 33)) == (0, 1)
    assert list(table.blocks) == [0, 1]
    assert table.capacity_tokens == 32
    with pytest.raises(BlockAccountingError, match="3 blocks are wanted and 2 are free"):
        table.make_writable(32, 16 * 5)
    assert list(table.blocks) == [0, 1]
    table.clear()
    assert ([*table.blocks], pool.num_free) == ([], 4)


def test_of_two_forks_the_first_to_write_gets_a_copy_and_the_other_the_original():
    pool = BlockPool(4, 4)
    parent = BlockTable(pool)
    parent.make_writable(0, 6)
    child = parent.fork()
    assert (parent.missing(6, 7), child.missing(6, 7), child.missing(8, 9)) == (1, 1, 1)
    assert parent.make_writable(6, 7) == (1, 2)
    assert child.make_writable(6, 7) is None
    assert ([*parent.blocks], [*child.blocks], pool.num_free) == ([0, 2], [0, 1], 1)
    pool.check_integrity([parent.blocks, child.blocks])


@pytest.mark.parametrize(
    ("window", "sinks", "expected"),
    [
        (None, 0, "0 1 2 3 4"),
        (9, 0, "- - 2 3 4"),
        (8, 0, "- - - 3 4"),
        (8, 1, "0 - - 3 4"),
        (8, 5, "0 1 - 3 4"),
        (2, 0, "- - - - 4"),
    ],
)
def test_blocks_that_no_later_token_sees_are_given_back(window, sinks, expected):
    pool = BlockPool(5, 4)
    table = BlockTable(pool, Visible(window, sinks))
    table.make_writable(0, 20)
    table.free_out_of_window(19)  # the next token, at position 19, sees 19 - window + 1 … 19
    assert " ".join("-" if block == RELEASED else str(block) for block in table.blocks) == expected
    pool.check_integrity([table.held()])
    table.clear()
    assert pool.num_free == 5


class PoolMachine(RuleBasedStateMachine):
    """Tables that grow and clear in any order never lose or double a block."""

    @initialize(blocks=st.integers(1, 12), size=st.integers(1, 8))
    def start(self, blocks, size):
        self.pool = BlockPool(blocks, size)
        self.tables = [BlockTable(self.pool) for _ in range(4)]

    @rule(index=st.integers(0, 3), tokens=st.integers(0, 60))
    def grow(self, index, tokens):
        table = self.tables[index]
        before = list(table.blocks)
        if table.missing(table.capacity_tokens, tokens) <= self.pool.num_free:
            table.make_writable(table.capacity_tokens, tokens)
            assert table.capacity_tokens >= tokens
        else:
            with pytest.raises(BlockAccountingError):
                table.make_writable(table.capacity_tokens, tokens)
            assert list(table.blocks) == before

    @rule(index=st.integers(0, 3))
    def clear(self, index):
        self.tables[index].clear()

    @invariant()
    def nothing_lost(self):
        if hasattr(self, "pool"):
            self.pool.check_integrity(table.blocks for table in self.tables)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(stateful_step_count=40)
