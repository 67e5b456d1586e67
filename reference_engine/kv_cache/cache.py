"""The scheduler's view of the KV cache: blocks that requests need or would free, and the operations on them.

Layers that keep the same tokens form a group; each group has a pool of its own, and a request has one block table in
each. Most models have one group. Queries change nothing, so that a step can be planned without carrying it out.
"""

import dataclasses
from array import array
from collections.abc import Iterable, Sequence

from bakeoff.reference_engine.core.outputs import Occupancy
from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.errors import BlockAccountingError, EngineBugError
from bakeoff.reference_engine.kv_cache.audit import audit
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.block_hashes import BlockHash, BlockHashes
from bakeoff.reference_engine.kv_cache.block_pool import BlockPool
from bakeoff.reference_engine.kv_cache.block_table import EVERYTHING, RELEASED, BlockTable, Visible, block_list

Blocks = tuple[int, ...]
"""A number of blocks for each group."""


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Layers that keep the same tokens.

    Attributes:
        pool: their blocks.
        visible: which tokens they keep.
        host: host memory for blocks of swapped-out requests; None without swapping.
    """

    pool: BlockPool
    visible: Visible = EVERYTHING
    host: BlockPool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """The longest cached prefix of a request.

    Attributes:
        num_tokens: its length.
        blocks: that hold it, for each group; `RELEASED` where they are outside the window.
        copied_tokens: of the last blocks, which continue otherwise: they are copied for the request. 0 if none are.
    """

    num_tokens: int
    blocks: tuple[tuple[int, ...], ...]
    copied_tokens: int = 0

    @property
    def whole(self) -> "Hit":
        """The prefix in whole blocks, for which nothing is copied."""
        if not self.copied_tokens:
            return self
        return Hit(self.num_tokens - self.copied_tokens, tuple(blocks[:-1] for blocks in self.blocks))


class RequestBlocks:
    """One request's part of the cache.

    Attributes:
        tables: its block tables, one for each group.
        blocks: of each table.
        room: tokens from `num_computed` up to this one have writable slots. A cheap lower bound: 0 after anything that
            may have changed it.
        hashes: of its full blocks.
        swapped: for each group the blocks of host memory that hold it; None unless it is swapped out.
    """

    __slots__ = ("blocks", "hashes", "room", "swapped", "tables")

    def __init__(self, tables: tuple[BlockTable, ...], hashes: BlockHashes) -> None:
        self.tables: tuple[BlockTable, ...] = tables
        self.blocks: list[array[int]] = [table.blocks for table in tables]
        self.room: int = 0
        self.hashes: BlockHashes = hashes
        self.swapped: tuple[tuple[int, ...], ...] | None = None


class KvCache:
    """All groups together.

    Args:
        groups: at least one; all have the same block size.
        prefix_caching: whether requests start with the cached blocks of their prefix.

    Attributes:
        has_windows: whether a sequence can release blocks while it grows.
        max_blocks_per_token: blocks of a group that one more token can need at most.
    """

    def __init__(self, groups: Sequence[Group], *, prefix_caching: bool) -> None:
        self.groups: tuple[Group, ...] = tuple(groups)
        self.prefix_caching = prefix_caching
        self._block_size = self.groups[0].pool.block_size
        self.has_windows: bool = any(group.visible.window is not None for group in self.groups)
        self.max_blocks_per_token: int = max(group.pool.run for group in self.groups)
        self._blocks: dict[str, RequestBlocks] = {}
        self._nothing = Hit(0, tuple(() for _ in self.groups))

    @property
    def num_used(self) -> int:
        """Blocks of all groups that requests hold."""
        return sum([group.pool.num_used for group in self.groups])

    @property
    def num_evicted(self) -> int:
        """Cached blocks that were evicted, since the start."""
        return sum([group.pool.num_evicted for group in self.groups])

    def occupancy(self, requests: Iterable[Request]) -> Occupancy:
        """How full the held blocks are, over all groups.

        Args:
            requests: all that hold blocks.
        """
        size, running = self._block_size, list(requests)
        held = filled = reserved = lost = 0
        for number, group in enumerate(self.groups):
            room = group.pool.num_used * size
            half_full: dict[int, int] = {}  # forks share such a block until one writes
            empty = 0
            for request in running:
                blocks, computed = self.blocks_of(request).tables[number].blocks, request.num_computed
                full, rest = divmod(computed, size)
                spare = len(blocks) * size - computed
                if rest:
                    half_full[blocks[full]] = size - rest
                    empty += spare - size + rest
                else:
                    empty += spare
                # The last token is never fed back.
                reserved += min(spare, request.prompt_len + request.sampling.max_tokens - 1 - computed)
            held += room
            filled += room - empty - sum(half_full.values())
            lost += group.pool.num_lost * size
        return Occupancy(held, filled, min(reserved, held - filled), lost)

    # Queries

    def blocks_of(self, request: Request) -> RequestBlocks:
        """A request's part of the cache."""
        blocks = self._blocks.get(request.request_id)
        if blocks is None:
            raise EngineBugError(f"request {request.request_id} was never added to the scheduler")
        return blocks

    def is_swapped(self, request: Request) -> bool:
        """Whether the computed tokens of a request are in host memory."""
        return self.blocks_of(request).swapped is not None

    def free_blocks(self) -> list[int]:
        """Blocks that can be allocated, for each group."""
        return [group.pool.num_free for group in self.groups]

    def free_host_blocks(self) -> list[int]:
        """Blocks of host memory that can be allocated, for each group."""
        return [group.host.num_free if group.host else 0 for group in self.groups]

    def need(self, request: Request, end: int) -> Blocks:
        """Blocks to allocate before a running request's tokens up to `end` can be computed.

        Without a window, room is allocated for all of the request's tokens at once: chunks of two half-admitted prompts
        would otherwise compete for the last blocks and preempt each other in turn.
        """
        start, tables = request.num_computed, self.blocks_of(request).tables
        return tuple(
            table.missing(start, _kept(group, request, end)) for group, table in zip(self.groups, tables, strict=True)
        )

    def has_room(self, request: Request, end: int) -> bool:
        """Whether a running request's tokens up to `end` are known to need no new block."""
        return end <= self.blocks_of(request).room

    def need_to_admit(self, request: Request, hit: Hit | None, end: int) -> Blocks:
        """Free blocks that the admission of a waiting request takes.

        Args:
            request: without blocks, or swapped out.
            hit: from `lookup`; None for a request that is swapped out.
            end: tokens computed after its first step.
        """
        held = self.blocks_of(request).swapped if hit is None else hit.blocks
        copied = int(hit is not None and hit.copied_tokens > 0)  # beside its source, which is held until it is copied
        return tuple(
            max(0, group.pool.blocks_for(_kept(group, request, end)) - len(blocks) + copied)
            + sum(block != RELEASED and (hit is None or group.pool.is_idle(block)) for block in blocks)
            for group, blocks in zip(self.groups, held or (), strict=True)
        )

    def need_ahead(self, request: Request, end: int, tokens: int) -> Blocks:
        """Blocks that a running request and its siblings take for the `tokens` that follow, up to their longest output.

        Args:
            request: running, or admitted in the same step.
            end: its tokens that have room.
            tokens: of each sequence.
        """
        longest = request.prompt_len + request.sampling.max_tokens - 1  # the last token is never fed back
        needs: list[int] = []
        for group in self.groups:
            kept_tokens = _kept(group, request, end)
            ahead = group.pool.blocks_for(min(kept_tokens + tokens, longest)) - group.pool.blocks_for(kept_tokens)
            needs.append(request.width * max(0, ahead))
        return tuple(needs)

    def held(self, request: Request) -> Blocks:
        """Blocks that a request holds, for each group."""
        return tuple(sum(1 for _ in table.held()) for table in self.blocks_of(request).tables)

    def lookup(self, request: Request) -> Hit:
        """The cached prefix of a request without blocks.

        It leaves out at least one token, which must be computed to sample the next one. As in vLLM, it leaves out all
        tokens of a request that asks for log-probabilities of its prompt.
        """
        if not self.prefix_caching or request.needs_prompt_logits:
            return self._nothing
        return self._with_copy(request, self._lookup_whole(request))

    def _with_copy(self, request: Request, hit: Hit) -> Hit:
        """A hit of whole blocks, and the beginning of a block that continues it, if one does."""
        size, hashes = self._block_size, self.blocks_of(request).hashes
        start, tokens = hit.num_tokens, request.token_ids
        rest = tokens[start : min(start + size, len(tokens) - 1)]
        if not rest:
            return hit
        first = self.groups[0].pool
        source, common = first.beginning(hashes.before(tokens, start // size), rest)
        name = first.hash_of(source) if common else None
        sources = [None if name is None else group.pool.find(name) for group in self.groups]
        if None in sources:
            return hit
        blocks = tuple((*held, source) for held, source in zip(hit.blocks, sources, strict=True))
        return Hit(start + common, blocks, common)  # type: ignore[arg-type]  (no None is left)

    def _lookup_whole(self, request: Request) -> Hit:
        hashes, tokens, size = self.blocks_of(request).hashes, request.token_ids, self._block_size
        count = (len(tokens) - 1) // size
        cached = [_cached_blocks(group, hashes.first(tokens, count)) for group in self.groups]
        if not self.has_windows:
            length = min(map(len, cached))
            return Hit(length * size, tuple(tuple(blocks[:length]) for blocks in cached))  # type: ignore[arg-type]
        for length in range(min(map(len, cached), default=0), 0, -1):
            outside = [group.visible.out_of_window_blocks(length * size, size) for group in self.groups]
            blocks = [
                tuple(RELEASED if i in released else block for i, block in enumerate(group_blocks[:length]))
                for group_blocks, released in zip(cached, outside, strict=True)
            ]
            if not any(None in group_blocks for group_blocks in blocks):
                return Hit(length * size, tuple(blocks))  # type: ignore[arg-type]  (no None is left)
        return self._nothing

    # Operations

    def add(self, request: Request) -> None:
        """Adds a request, with empty block tables."""
        tables = tuple(BlockTable(group.pool, group.visible) for group in self.groups)
        self._blocks[request.request_id] = RequestBlocks(tables, self._hashes_of(request))

    def _hashes_of(self, request: Request) -> BlockHashes:
        return BlockHashes(self._block_size, request.cache_salt, request.block_hashes if self.prefix_caching else b"")

    def attach_prefix(self, request: Request, hit: Hit) -> None:
        """Starts a request with its cached prefix. Call it for all admitted requests before any block is taken."""
        num_full = hit.num_tokens // self._block_size
        for table, prefix in zip(self.blocks_of(request).tables, hit.blocks, strict=True):
            table.attach_prefix(prefix, num_full)
        request.num_computed = request.num_settled = hit.num_tokens

    def make_writable(self, request: Request, end: int, copies: BlockCopies) -> None:
        """Allocates the blocks that `need` or `need_to_admit` counted, and adds copies of shared blocks to `copies`."""
        blocks, size = self.blocks_of(request), self._block_size
        least = max(request.num_tokens, end)
        for number, table in enumerate(blocks.tables):
            stop = _kept(self.groups[number], request, end)
            copy = table.make_writable(request.num_computed, stop)
            if copy is not None:
                copies.within.append((number, *copy))
            least = min(least, stop)
        blocks.room = -(-least // size) * size

    def cache_blocks(self, request: Request) -> None:
        """Puts a request's full blocks into the prefix cache. Needed only before a lookup.

        Blocks of a step in flight wait until it is collected: before that, their last token may not be known.
        """
        blocks = self.blocks_of(request)
        if self.prefix_caching and blocks.swapped is None:
            for table in blocks.tables:
                table.cache_blocks(blocks.hashes, request.token_ids, request.num_settled)

    def free_out_of_window(self, request: Request) -> None:
        """Releases the blocks that have left a request's windows for good; those in the cache stay cached.

        Drafts in flight may be rejected, and the tokens before them see further back.
        """
        if self.is_swapped(request):
            self._free_swapped_out_of_window(request)
            return
        for table in self.blocks_of(request).tables:
            if table.has_out_of_window(request.num_settled):
                self.cache_blocks(request)
                table.free_out_of_window(request.num_settled)

    def _free_swapped_out_of_window(self, request: Request) -> None:
        blocks = self.blocks_of(request)
        left: list[tuple[int, ...]] = []
        for group, places in zip(self.groups, blocks.swapped or (), strict=True):
            outside = group.visible.out_of_window_blocks(request.num_settled, group.pool.block_size)
            _host(group).release(places[index] for index in outside if places[index] != RELEASED)
            left.append(tuple(RELEASED if index in outside else place for index, place in enumerate(places)))
        blocks.swapped = tuple(left)

    def fork(self, parent: Request, child: Request) -> None:
        """Starts a new request with all blocks of another one, in host memory too."""
        blocks = self.blocks_of(parent)
        blocks.room = 0
        fork = RequestBlocks(tuple(table.fork() for table in blocks.tables), blocks.hashes.copy())
        fork.swapped = blocks.swapped
        self._blocks[child.request_id] = fork
        for group, swapped in zip(self.groups, blocks.swapped or (), strict=False):
            for block in swapped:
                if block != RELEASED:
                    _host(group).share(block)
        child.num_computed = child.num_settled = parent.num_computed

    def release(self, request: Request) -> None:
        """Releases all blocks of a request, in host memory too; its computed blocks stay cached."""
        self.cache_blocks(request)
        blocks = self.blocks_of(request)
        for table in blocks.tables:
            if self.prefix_caching and blocks.swapped is None:
                table.cache_tail(blocks.hashes, request.token_ids, request.num_settled)
            table.clear()
        for group, swapped in zip(self.groups, blocks.swapped or (), strict=False):
            _host(group).release(block for block in swapped if block != RELEASED)
        blocks.swapped, blocks.room = None, 0
        request.num_computed = request.num_settled = 0

    def free(self, request: Request) -> None:
        """Releases all blocks of a request that has ended, and forgets it."""
        self.release(request)
        del self._blocks[request.request_id]

    def swap_out(self, request: Request, copies: BlockCopies) -> None:
        """Plans copies of a request's computed blocks to host memory, which must have room for `held` blocks."""
        self.cache_blocks(request)
        blocks = self.blocks_of(request)
        swapped: list[tuple[int, ...]] = []
        for number, (group, table) in enumerate(zip(self.groups, blocks.tables, strict=True)):
            room = iter(_host(group).take(sum(1 for _ in table.held())))
            places = tuple(RELEASED if block == RELEASED else next(room) for block in table.blocks)
            copies.to_host.extend(
                (number, block, place) for block, place in zip(table.blocks, places, strict=True) if place != RELEASED
            )
            table.clear()
            swapped.append(places)
        blocks.swapped, blocks.room = tuple(swapped), 0

    def swap_in(self, request: Request, copies: BlockCopies) -> None:
        """Plans copies of the swapped-out blocks back to the cache."""
        blocks = self.blocks_of(request)
        if blocks.swapped is None:
            raise EngineBugError(f"request {request.request_id} is not swapped out")
        for number, (group, table) in enumerate(zip(self.groups, blocks.tables, strict=True)):
            places = blocks.swapped[number]
            fresh = iter(group.pool.take(sum(place != RELEASED for place in places)))
            table.blocks[:] = block_list(RELEASED if place == RELEASED else next(fresh) for place in places)
            copies.to_device.extend(
                (number, place, block) for place, block in zip(places, table.blocks, strict=True) if place != RELEASED
            )
            _host(group).release(place for place in places if place != RELEASED)
        blocks.swapped = None

    def reset_prefix_cache(self) -> None:
        """Empties the prefix cache; requests keep their blocks."""
        for group in self.groups:
            group.pool.reset_prefix_cache()

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Raises BlockAccountingError unless every block is either free or held by exactly these requests."""
        held = list(requests)
        if self._blocks.keys() != {request.request_id for request in held}:
            raise BlockAccountingError("block tables are kept of other requests than those in the queues")
        for blocks, token in ((self.blocks_of(request), request.num_computed) for request in held):
            if token < blocks.room and not all(table.has_room(token) for table in blocks.tables):
                raise BlockAccountingError(f"token {token} has no place of its own, and is said to have one")
        for number, group in enumerate(self.groups):
            audit(
                group.pool,
                [(self.blocks_of(request).tables[number], request, self.is_swapped(request)) for request in held],
            )
            if group.host:
                swapped = [(self.blocks_of(request).swapped or self._nothing.blocks)[number] for request in held]
                group.host.check_integrity([block for block in blocks if block != RELEASED] for blocks in swapped)


def _kept(group: Group, request: Request, end: int) -> int:
    """Tokens that have room once a request's tokens up to `end` are computed."""
    return max(request.num_tokens, end) if group.visible.window is None else end


def _host(group: Group) -> BlockPool:
    if group.host is None:
        raise BlockAccountingError("there is no host memory to swap to")
    return group.host


def _cached_blocks(group: Group, hashes: Sequence[BlockHash]) -> list[int | None]:
    """The cached ones of blocks with these hashes; without a window the list ends at the first gap."""
    blocks = group.pool.find_all(hashes)
    if group.visible.window is None and None in blocks:
        del blocks[blocks.index(None) :]
    return blocks
