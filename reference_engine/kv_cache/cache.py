"""The KV cache as the scheduler sees it: what a request needs, what it would set free, and the doing of both.

Layers that keep the same tokens form a group; every group has a pool of its own, and a request has one block table for
each. Most models have one group. Questions change nothing, so that a step can be planned without carrying it out.
"""

import dataclasses
from array import array
from collections.abc import Iterable, Sequence

from reference_engine.engine.outputs import Occupancy
from reference_engine.engine.request import Request
from reference_engine.errors import BlockAccountingError, EngineBugError
from reference_engine.kv_cache.audit import audit
from reference_engine.kv_cache.block_names import BlockNames
from reference_engine.kv_cache.block_pool import BlockPool
from reference_engine.kv_cache.block_table import EVERYTHING, RELEASED, BlockTable, Visible, block_list
from reference_engine.kv_cache.moves import Moves

Blocks = tuple[int, ...]
"""A number of blocks for each group."""


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Layers that keep the same tokens.

    Attributes:
        pool: their blocks.
        visible: which tokens they keep.
        host: where their blocks go when a request is swapped out; None where nothing is.
    """

    pool: BlockPool
    visible: Visible = EVERYTHING
    host: BlockPool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """The longest beginning of a request that is in the cache already.

    Attributes:
        num_tokens: its length.
        blocks: for each group the blocks that hold it, `RELEASED` where nobody looks any more.
    """

    num_tokens: int
    blocks: tuple[tuple[int, ...], ...]


class RequestBlocks:
    """What one request has of the cache.

    Attributes:
        tables: one for each group.
        blocks: of each table.
        room: tokens below this one, from `num_computed` on, have a place that may be written. It is what is known
            without a look: 0 after anything that may have changed it.
        names: of its blocks.
        swapped: for each group the blocks of host memory that hold it; None while it is not swapped out.
    """

    __slots__ = ("blocks", "names", "room", "swapped", "tables")

    def __init__(self, tables: tuple[BlockTable, ...], names: BlockNames) -> None:
        self.tables = tables
        self.blocks: list[array[int]] = [table.blocks for table in tables]
        self.room = 0
        self.names = names
        self.swapped: tuple[tuple[int, ...], ...] | None = None


class KvCache:
    """All groups together.

    Args:
        groups: at least one; all have the same block size.
        prefix_caching: whether requests begin with the blocks that hold their beginning already.

    Attributes:
        has_windows: whether blocks go out of sight of their sequence.
        most_for_one_token: blocks of a group that a request's next token may need.
    """

    def __init__(self, groups: Sequence[Group], *, prefix_caching: bool) -> None:
        self.groups = tuple(groups)
        self.prefix_caching = prefix_caching
        self._block_size = self.groups[0].pool.block_size
        self.has_windows = any(group.visible.window is not None for group in self.groups)
        self.most_for_one_token = max(group.pool.run for group in self.groups)
        self._blocks: dict[str, RequestBlocks] = {}
        self._nothing = Hit(0, tuple(() for _ in self.groups))

    @property
    def num_used(self) -> int:
        """Blocks that requests hold, of all groups."""
        return sum([group.pool.num_used for group in self.groups])

    @property
    def num_evicted(self) -> int:
        """Blocks that could have been found and were taken for something else, since the start."""
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
            half_full: dict[int, int] = {}  # forks share theirs until they write
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

    # Questions

    def blocks_of(self, request: Request) -> RequestBlocks:
        """What a request has of the cache."""
        blocks = self._blocks.get(request.request_id)
        if blocks is None:
            raise EngineBugError(f"request {request.request_id} was never added to the scheduler")
        return blocks

    def is_swapped(self, request: Request) -> bool:
        """Whether what a request has computed lies in host memory."""
        return self.blocks_of(request).swapped is not None

    def free_blocks(self) -> list[int]:
        """Blocks that can still be had, for each group."""
        return [group.pool.num_free for group in self.groups]

    def free_host_blocks(self) -> list[int]:
        """Blocks of host memory that can still be had, for each group."""
        return [group.host.num_free if group.host else 0 for group in self.groups]

    def need(self, request: Request, end: int) -> Blocks:
        """Blocks that a running request must get before its tokens up to `end` can be computed.

        Where all tokens are kept, room for all that the request has is made at once, since chunks of two half-admitted
        prompts would otherwise compete for the same last blocks and preempt each other in turn.
        """
        start, tables = request.num_computed, self.blocks_of(request).tables
        return tuple(
            table.missing(start, _kept(group, request, end)) for group, table in zip(self.groups, tables, strict=True)
        )

    def has_room(self, request: Request, end: int) -> bool:
        """Whether it is known that a running request's next tokens, up to `end`, need no block."""
        return end <= self.blocks_of(request).room

    def need_to_admit(self, request: Request, hit: Hit | None, end: int) -> Blocks:
        """Blocks that a waiting request takes from the free ones when it is admitted.

        Args:
            request: with nothing in the cache, or swapped out.
            hit: as `lookup` found it; None for a request that is swapped out.
            end: tokens that are computed in its first step.
        """
        held = self.blocks_of(request).swapped if hit is None else hit.blocks
        return tuple(
            max(0, group.pool.blocks_for(_kept(group, request, end)) - len(blocks))
            + sum(block != RELEASED and (hit is None or group.pool.is_idle(block)) for block in blocks)
            for group, blocks in zip(self.groups, held or (), strict=True)
        )

    def held(self, request: Request) -> Blocks:
        """Blocks that the request holds."""
        return tuple(sum(1 for _ in table.held()) for table in self.blocks_of(request).tables)

    def lookup(self, request: Request) -> Hit:
        """What is in the cache of a request that holds nothing.

        At least one token is left out: it must be computed for the next one to be sampled.
        """
        if not self.prefix_caching:
            return self._nothing
        names, tokens, size = self.blocks_of(request).names, request.token_ids, self._block_size
        count = (len(tokens) - 1) // size
        found = [_find(group, names, tokens, count) for group in self.groups]
        for length in range(min(map(len, found), default=0), 0, -1):
            hidden = [group.visible.hidden_blocks(length * size, size) for group in self.groups]
            blocks = [
                tuple(RELEASED if i in out else block for i, block in enumerate(mine[:length]))
                for mine, out in zip(found, hidden, strict=True)
            ]
            if not any(None in mine for mine in blocks):
                return Hit(length * size, tuple(blocks))  # type: ignore[arg-type]  (None was looked for)
        return self._nothing

    # Doing

    def enter(self, request: Request) -> None:
        """Gives a new request its empty tables."""
        tables = tuple(BlockTable(group.pool, group.visible) for group in self.groups)
        self._blocks[request.request_id] = RequestBlocks(tables, BlockNames(self._block_size, request.cache_salt))

    def open(self, request: Request, hit: Hit) -> None:
        """Begins with what was found. All newcomers do so before anybody takes a block, which might be one of these."""
        for table, found in zip(self.blocks_of(request).tables, hit.blocks, strict=True):
            table.open(found)
        request.num_computed = hit.num_tokens

    def make_writable(self, request: Request, end: int, moves: Moves) -> None:
        """Does what `need` or `need_to_admit` counted."""
        blocks, size = self.blocks_of(request), self._block_size
        least = request.num_tokens
        for number, table in enumerate(blocks.tables):
            stop = _kept(self.groups[number], request, end)
            copy = table.make_writable(request.num_computed, stop)
            if copy is not None:
                moves.copies.append((number, *copy))
            least = min(least, stop)
        blocks.room = -(-least // size) * size

    def publish(self, request: Request) -> None:
        """Makes what a request has computed findable. What would not be found in between may wait for it."""
        blocks = self.blocks_of(request)
        if self.prefix_caching and blocks.swapped is None:
            for table in blocks.tables:
                table.publish(blocks.names, request.token_ids, request.num_computed)

    def hide(self, request: Request) -> None:
        """Takes back the blocks that are out of a request's sight; they can be found from now on."""
        for table in self.blocks_of(request).tables:
            if table.hides(request.num_computed):
                self.publish(request)
                table.hide(request.num_computed)

    def fork(self, parent: Request, child: Request) -> None:
        """Lets a new request begin with everything that another has computed, in host memory too."""
        blocks = self.blocks_of(parent)
        blocks.room = 0
        fork = RequestBlocks(tuple(table.fork() for table in blocks.tables), blocks.names.copy())
        fork.swapped = blocks.swapped
        self._blocks[child.request_id] = fork
        for group, swapped in zip(self.groups, blocks.swapped or (), strict=False):
            for block in swapped:
                if block != RELEASED:
                    _host(group).share(block)
        child.num_computed = parent.num_computed

    def release(self, request: Request) -> None:
        """Takes everything from a request, in host memory too; what it has computed can be found from now on."""
        self.publish(request)
        blocks = self.blocks_of(request)
        for table in blocks.tables:
            table.clear()
        for group, swapped in zip(self.groups, blocks.swapped or (), strict=False):
            _host(group).release(block for block in swapped if block != RELEASED)
        blocks.swapped, blocks.room = None, 0
        request.num_computed = 0

    def free(self, request: Request) -> None:
        """Takes everything from a request that has ended, and forgets it."""
        self.release(request)
        del self._blocks[request.request_id]

    def swap_out(self, request: Request, moves: Moves) -> None:
        """Moves what a request has computed to host memory, which must have room for `held` blocks."""
        self.publish(request)
        blocks = self.blocks_of(request)
        swapped: list[tuple[int, ...]] = []
        for number, (group, table) in enumerate(zip(self.groups, blocks.tables, strict=True)):
            room = iter(_host(group).take(sum(1 for _ in table.held())))
            places = tuple(RELEASED if block == RELEASED else next(room) for block in table.blocks)
            moves.to_host.extend(
                (number, block, place) for block, place in zip(table.blocks, places, strict=True) if place != RELEASED
            )
            table.clear()
            swapped.append(places)
        blocks.swapped, blocks.room = tuple(swapped), 0

    def swap_in(self, request: Request, moves: Moves) -> None:
        """Moves back what was swapped out."""
        blocks = self.blocks_of(request)
        if blocks.swapped is None:
            raise EngineBugError(f"request {request.request_id} is not swapped out")
        for number, (group, table) in enumerate(zip(self.groups, blocks.tables, strict=True)):
            places = blocks.swapped[number]
            fresh = iter(group.pool.take(sum(place != RELEASED for place in places)))
            table.blocks[:] = block_list(RELEASED if place == RELEASED else next(fresh) for place in places)
            moves.to_device.extend(
                (number, place, block) for place, block in zip(places, table.blocks, strict=True) if place != RELEASED
            )
            _host(group).release(place for place in places if place != RELEASED)
        blocks.swapped = None

    def forget_all(self) -> None:
        """Makes sure that nothing computed so far is found by a later request."""
        for group in self.groups:
            group.pool.forget_all()

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Raises BlockAccountingError unless every block is either free or held by exactly these requests."""
        held = list(requests)
        if self._blocks.keys() != {one.request_id for one in held}:
            raise BlockAccountingError("block tables are kept of other requests than those in the queues")
        for blocks, token in ((self.blocks_of(one), one.num_computed) for one in held):
            if token < blocks.room and not all(table.has_room(token) for table in blocks.tables):
                raise BlockAccountingError(f"token {token} has no place of its own, and is said to have one")
        for number, group in enumerate(self.groups):
            audit(group.pool, [(self.blocks_of(one).tables[number], one, self.is_swapped(one)) for one in held])
            if group.host:
                swapped = [(self.blocks_of(one).swapped or self._nothing.blocks)[number] for one in held]
                group.host.check_integrity([block for block in blocks if block != RELEASED] for blocks in swapped)


def _kept(group: Group, request: Request, end: int) -> int:
    """Tokens for which a request gets room before those up to `end` are computed."""
    return request.num_tokens if group.visible.window is None else end


def _host(group: Group) -> BlockPool:
    if group.host is None:
        raise BlockAccountingError("there is no host memory to swap to")
    return group.host


def _find(group: Group, names: BlockNames, tokens: Sequence[int], count: int) -> list[int | None]:
    """The blocks of a sequence's beginning that can be found; without a window there are no gaps among them."""
    found: list[int | None] = []
    for index in range(count):
        block = group.pool.find(names.at(tokens, index))
        if block is None and group.visible.window is None:
            break
        found.append(block)
    return found
