"""Attention that keeps only the most attended tokens (heavy hitters) and the latest (H2O, arXiv:2306.14048).

Each layer and key/value head adds up the softmax weights that every token received. At each block boundary it keeps,
of the tokens before it, the latest `budget - heavy` and, of the older ones, the `heavy` with the largest sums. Dropped
tokens never come back. A token therefore sees at most `budget` tokens and those of its own block. With blocks of one
token that is the paper's algorithm; with larger blocks everything between two boundaries is computed at once.
Boundaries are at fixed positions of the sequence, so chunks, batches and preemption change nothing but rounding.

This shows what dropping costs in accuracy; it saves no memory here. Heads and layers drop different tokens, so a block
of 16 is rarely dropped in all layers of a group (SmolLM2 with a quarter of 2,000 tokens kept: none of 128). Besides,
the planner knows before a step which blocks it frees, while the dropped tokens depend on what the step computes.
`Census` counts the blocks without kept tokens, and the bytes of a cache that holds only the kept tokens. A block of
which no head of a layer keeps anything is at least no longer read.

The sums are kept in a tensor beside each store, one number per slot and head, -1 for a dropped token. They follow the
block when it is copied or moved to host memory. Blocks cannot be shared, since sequences that share them would drop
each other's tokens: no prefix caching, and one answer per prompt.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import torch

from bakeoff.reference_engine.attention.base import Span, slot_mapping
from bakeoff.reference_engine.core.ablations import Budget
from bakeoff.reference_engine.errors import EngineBugError
from bakeoff.reference_engine.kernels.scoring import PLAIN, Scoring
from bakeoff.reference_engine.kv_cache.block_table import RELEASED, Visible
from bakeoff.reference_engine.kv_cache.layout import LayerLayout
from bakeoff.reference_engine.kv_cache.storage import KvStorage, LayerStore, StoreMaker, lazy_zeros

_DROPPED = -1.0


class ScoredStore:
    """Another store with the attention that each of its slots received; see `LayerStore`.

    Attributes:
        scores: float32 [num_blocks, block_size, num_kv_heads].
    """

    def __init__(self, inner: LayerStore, num_kv_heads: int) -> None:
        first = inner.parts[0]
        self._inner = inner
        self.scores: torch.Tensor = lazy_zeros((*first.shape[:2], num_kv_heads), torch.float32, first.device)
        self.parts: list[torch.Tensor] = [*inner.parts, self.scores]

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None) -> None:
        """New tokens have received no attention yet."""
        self._inner.write(slots, key, value)
        self.scores.flatten(0, 1).index_fill_(0, slots, 0.0)

    def read(self, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._inner.read(blocks)


def scored(make_store: StoreMaker) -> StoreMaker:
    """Wraps a maker of stores so that its stores also keep scores."""
    return functools.partial(_make_scored, make_store=make_store)


def _make_scored(
    layer: LayerLayout,
    *,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    make_store: StoreMaker,
) -> ScoredStore:
    inner = make_store(layer, num_blocks=num_blocks, block_size=block_size, dtype=dtype, device=device)
    return ScoredStore(inner, layer.num_kv_heads)


@dataclasses.dataclass(frozen=True, slots=True)
class Census:
    """Counts of what one sequence has left.

    Attributes:
        kept_share: share of its tokens that is kept, the mean of all layers and heads.
        dead_in_layer_share: share of its blocks, counted in each layer, of which no head of the layer keeps a token.
        dead_blocks: for each group, blocks of which none of its layers keeps a token; they could be freed.
        bytes: of the blocks that the sequence holds.
        compact_bytes: of a cache that held only the kept tokens.
    """

    kept_share: float
    dead_in_layer_share: float
    dead_blocks: tuple[int, ...]
    bytes: int
    compact_bytes: int


class HeavyHitterAttention:
    """Paged attention over scored stores; one sequence at a time, softmax in float32.

    Args:
        storage: its stores were made by `scored`.
        budget: tokens to keep.
    """

    def __init__(self, storage: KvStorage, budget: Budget) -> None:
        self._storage = storage
        self._budget = budget
        self._stores = [_as_scored(store) for store in storage.stores]

    def begin_step(self, spans: Sequence[Span]) -> "HeavyHitterStep":
        return HeavyHitterStep(self._storage, self._stores, self._budget, spans)

    def census(self, tables: Sequence[Sequence[int]], num_tokens: int) -> Census:
        """Counts the kept tokens of a sequence.

        Args:
            tables: its blocks, for each group.
            num_tokens: computed tokens.
        """
        layout, size = self._storage.layout, self._storage.block_size
        places = [_held(table[: -(-num_tokens // size)]) for table in tables]
        dead_everywhere = [torch.ones(len(held), dtype=torch.bool) for held in places]
        shares: list[float] = []
        dead: list[float] = []
        whole = compact = 0
        for number, (layer, store) in enumerate(zip(layout.layers, self._stores, strict=True)):
            if layer.shares is not None:
                continue
            group = layout.group_of(number)
            held = torch.tensor([tables[group][place] for place in places[group]])
            written = (torch.tensor(places[group])[:, None] * size + torch.arange(size)) < num_tokens
            alive = (store.scores[held.to(store.scores.device)].cpu() >= 0) & written[:, :, None]
            shares.append(int(alive.sum()) / (num_tokens * layer.num_kv_heads))
            is_dead = ~alive.flatten(1).any(dim=1)
            dead.append(int(is_dead.sum()) / len(held))
            dead_everywhere[group] &= is_dead
            token_bytes = sum(part[0, 0].nbytes for part in store.parts)
            whole += len(held) * size * token_bytes
            compact += int(alive.sum()) * token_bytes // layer.num_kv_heads
        return Census(
            kept_share=sum(shares) / len(shares),
            dead_in_layer_share=sum(dead) / len(dead),
            dead_blocks=tuple(int(dead.sum()) for dead in dead_everywhere),
            bytes=whole,
            compact_bytes=compact,
        )


class HeavyHitterStep:
    """One step of `HeavyHitterAttention`."""

    def __init__(
        self, storage: KvStorage, stores: Sequence[ScoredStore], budget: Budget, spans: Sequence[Span]
    ) -> None:
        self._group_of = storage.group_of
        self._stores = stores
        self._budget = budget
        size, device = storage.block_size, storage.device
        groups = list(enumerate(storage.layout.groups))
        self._slots = [torch.tensor(slot_mapping(spans, size, group), device=device) for group, _ in groups]
        self._pieces = [
            [piece for span in spans for piece in _pieces(span, group, visible, storage)] for group, visible in groups
        ]

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        scoring: Scoring = PLAIN,
        *,
        towards_sinks: torch.Tensor | None = None,  # noqa: ARG002 (a budget excludes sinks)
    ) -> torch.Tensor:
        group, store = self._group_of[layer], self._stores[layer]
        if key is not None:
            store.write(self._slots[group], key, value)
        pieces = self._pieces[group]
        queries = query.split([piece.length for piece in pieces])
        return torch.cat(
            [_attend(store, piece, rows, self._budget, scoring) for piece, rows in zip(pieces, queries, strict=True)]
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive new tokens of one sequence in one block.

    Attributes:
        start: the first one's position.
        length: how many.
        blocks: int64 [blocks], blocks of the sequence that the tokens can see; their own is the last one.
        positions: int64 [blocks, block_size], of the slots.
        hidden: bool [length, blocks, block_size], slots that a token must not see, whatever is kept.
    """

    start: int
    length: int
    blocks: torch.Tensor
    positions: torch.Tensor
    hidden: torch.Tensor


def _pieces(span: Span, group: int, visible: Visible, storage: KvStorage) -> Iterator[_Piece]:
    size, table = storage.block_size, span.tables[group]
    start = span.start
    while start < span.end:
        end = min(span.end, (start // size + 1) * size)
        out_of_window_blocks = visible.out_of_window_blocks(start, size)
        places = [i for i in _held(table[: start // size + 1]) if i not in out_of_window_blocks]
        positions = torch.tensor(places, device=storage.device)[:, None] * size + torch.arange(
            size, device=storage.device
        )
        queries = torch.arange(start, end, device=storage.device)[:, None, None]
        hidden = positions > queries
        if visible.window is not None:
            hidden |= (positions <= queries - visible.window) & (positions >= visible.sinks)
        blocks = torch.tensor([table[i] for i in places], device=storage.device)
        yield _Piece(start, end - start, blocks, positions, hidden)
        start = end


def _attend(store: ScoredStore, piece: _Piece, query: torch.Tensor, budget: Budget, scoring: Scoring) -> torch.Tensor:
    """Query [length, num_heads, key_dim] -> [length, num_heads * value_dim]; adds to the scores of what it sees."""
    scores = store.scores.index_select(0, piece.blocks)
    if piece.start % scores.shape[1] == 0:
        scores = _after_dropping(scores, piece, budget)
    alive = (scores >= 0).flatten(1).any(dim=1)
    alive[-1] = True
    keys, values = store.read(piece.blocks[alive])  # [seen, kv_heads, dim]
    seen = scores[alive].flatten(0, 1)  # [seen, kv_heads]
    hidden = piece.hidden[:, alive].flatten(1) | (seen < 0).t()[:, None, None, :]  # [kv_heads, 1, length, seen]
    length, heads, _ = query.shape
    queries = query.float().unflatten(1, (seen.shape[1], -1)).permute(1, 2, 0, 3)  # [kv_heads, group, length, dim]
    products = queries @ keys.float().permute(1, 2, 0)[:, None] * scoring.factor(query.shape[-1])
    mask = torch.zeros(hidden.shape, device=query.device).masked_fill_(hidden, float("-inf"))
    weights = scoring.weights(products, mask, group_dim=1)
    scores[alive] += weights.sum(dim=(1, 2)).t().unflatten(0, (-1, scores.shape[1]))
    store.scores.index_copy_(0, piece.blocks, scores)
    attended = weights @ values.float().transpose(0, 1)[:, None]
    return attended.permute(2, 0, 1, 3).reshape(length, heads * values.shape[-1]).to(query.dtype)


def _after_dropping(scores: torch.Tensor, piece: _Piece, budget: Budget) -> torch.Tensor:
    """Scores [blocks, block_size, kv_heads] after dropping all tokens before the piece that are over the budget."""
    positions = piece.positions.flatten()
    older = (positions < piece.start - (budget.total - budget.heavy))[:, None]
    flat = scores.flatten(0, 1)
    rivals = flat.masked_fill(~older, _DROPPED)
    heaviest = rivals.sort(dim=0, descending=True, stable=True).indices[: budget.heavy]  # the first of equals
    loses = older.expand_as(flat).scatter(0, heaviest, value=False)
    return flat.masked_fill(loses, _DROPPED).view_as(scores)


def _held(table: Sequence[int]) -> list[int]:
    """Indices of the blocks that were not freed."""
    return [place for place, block in enumerate(table) if block != RELEASED]


def _as_scored(store: LayerStore) -> ScoredStore:
    if not isinstance(store, ScoredStore):
        raise EngineBugError(f"heavy hitters need stores with scores, not {type(store).__name__}")
    return store
