"""Audits one pool: recounts references, recomputes hashes from tokens, looks for blocks with two writers.

Like exllamav3's page-table check, it trusts no state that can be computed from its sources.
"""

from collections.abc import Sequence

from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.errors import BlockAccountingError
from bakeoff.reference_engine.kv_cache.block_hashes import block_hash, root_hash
from bakeoff.reference_engine.kv_cache.block_pool import BlockPool
from bakeoff.reference_engine.kv_cache.block_table import RELEASED, BlockTable


def audit(pool: BlockPool, holders: Sequence[tuple[BlockTable, Request, bool]]) -> None:
    """Checks that the pool agrees with block tables and tokens.

    Args:
        pool: to check.
        holders: every table, its request, and whether that request is swapped out.

    Raises:
        BlockAccountingError: it is not.
    """
    pool.check_integrity([list(table.held()) for table, _, _ in holders])
    for table, request, is_swapped in holders:
        if request.num_computed > table.capacity_tokens and not is_swapped:
            raise BlockAccountingError(
                f"request {request.request_id} has {request.num_computed} computed tokens in room for "
                f"{table.capacity_tokens}"
            )
        _check_table(pool, table, request)


def _check_table(pool: BlockPool, table: BlockTable, request: Request) -> None:
    size = pool.block_size
    parent = root_hash(request.cache_salt)
    for index, block in enumerate(table.blocks):
        tokens = request.token_ids[index * size : (index + 1) * size]
        is_full = (index + 1) * size <= request.num_settled
        if is_full:
            parent = block_hash(parent, tokens)
        if block == RELEASED:
            continue
        if pool.hash_of(block) not in (None, parent if is_full else None):
            raise BlockAccountingError(
                f"block {block} is found under a name that the tokens of request {request.request_id} do not give"
            )
        if not is_full and pool.references(block) > 1 and index > request.num_computed // size:
            raise BlockAccountingError(f"block {block} has no tokens yet and is shared")
