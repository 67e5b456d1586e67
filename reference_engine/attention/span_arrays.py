"""The spans of a step as NumPy arrays, in the form that kernels on a GPU read.

All block tables are concatenated in one flat array, so that nothing depends on the longest.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import NDArray

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.kv_cache.block_table import as_block_list

IntArray = NDArray[np.int64]
PART_WIDTH, ROW_WIDTH = 8, 4
"""Numbers in a row of `kernels.paged_attention.AttentionWork.parts` and `.rows`."""
_ALIGNMENT = 4  # int32 elements; kernels are compiled for pointers to multiples of 16 bytes


class SpanArrays:
    """Numbers and block tables of the spans, for the kernels.

    Args:
        spans: of the step, in the order of their rows.
        num_groups: groups of layers with block tables of their own.
        block_size: tokens per block.

    Attributes:
        tables: int32, the tables of all spans in the first group, then in the next.
        starts: [spans], position of the first new token.
        lengths: [spans], new tokens.
        rows: [spans], row of the first new token in the step's batch.
    """

    def __init__(self, spans: Sequence[Span], num_groups: int, block_size: int) -> None:
        tables = [as_block_list(span.tables[group]) for group in range(num_groups) for span in spans]
        self.tables: npt.NDArray[np.int32] = np.frombuffer(b"".join(tables), np.int32)
        self.starts: npt.NDArray[np.int64] = np.array([span.start for span in spans], np.int64)
        self.lengths: npt.NDArray[np.int64] = np.array([span.length for span in spans], np.int64)
        counts = np.array([len(table) for table in tables], np.int64)
        self._table_starts = (counts.cumsum() - counts).reshape(num_groups, -1)
        self.rows: npt.NDArray[np.int64] = self.lengths.cumsum() - self.lengths
        self._block_size = block_size

    @functools.cached_property
    def _spans(self) -> IntArray:
        """Number of each new token's span."""
        return _copies(self.lengths)[0]

    @functools.cached_property
    def num_decodes(self) -> int:
        """One-token spans before the first longer one."""
        longer = np.flatnonzero(self.lengths > 1)
        return int(longer[0]) if len(longer) else len(self.lengths)

    @functools.cached_property
    def positions(self) -> IntArray:
        """Of each new token in its sequence: [tokens]."""
        return np.arange(len(self._spans)) + (self.starts - self.rows)[self._spans]

    def slots(self, group: int) -> NDArray[np.int32]:
        """For each new token block · block_size + place in the block: int32 [tokens]."""
        positions = self.positions
        blocks = self.tables[self._table_starts[group][self._spans] + positions // self._block_size]
        return (blocks * self._block_size + positions % self._block_size).astype(np.int32)

    def blocks(self, group: int, span: int, tokens: int) -> NDArray[np.int32]:
        """The blocks that hold the first `tokens` tokens of a span's sequence."""
        first = self._table_starts[group][span]
        return self.tables[first : first + -(-tokens // self._block_size)]

    def tiles(self, group: int, spans: slice | IntArray, tokens: int) -> NDArray[np.int32]:
        """Cuts some of the spans into tiles of at most `tokens` tokens.

        Returns:
            int32 [tiles, 4]: first row, tokens, position of the first one, index in `tables` of the sequence's blocks.
        """
        lengths = self.lengths[spans]
        span, number = _copies(-(-lengths // tokens))
        offsets = number * tokens
        columns = (
            self.rows[spans][span] + offsets,
            np.minimum(lengths[span] - offsets, tokens),
            self.starts[spans][span] + offsets,
            self._table_starts[group][spans][span],
        )
        return np.stack(columns, axis=1, dtype=np.int32, casting="same_kind")


class WorkLists(NamedTuple):
    """The contents of a `kernels.paged_attention.AttentionWork`."""

    parts: NDArray[np.int32]
    rows: NDArray[np.int32]
    num_places: int


def listed_parts(tiles: NDArray[np.int32], keys: IntArray, splits: IntArray, tokens: int) -> WorkLists:
    """Lists the parts of tiles, the longest first.

    Args:
        tiles: of decodes or chunks, from `SpanArrays.tiles`.
        keys: that the tokens of each see, [tiles].
        splits: into how many parts these are split, [tiles].
        tokens: maximum number in a tile.
    """
    order = (-keys // splits).argsort(kind="stable")
    tiles, splits = tiles[order], splits[order]
    is_split = splits > 1
    places = np.where(is_split, splits, 0) * tokens
    first_places = places.cumsum() - places
    tile, number = _copies(splits)
    parts = np.zeros((len(tile), PART_WIDTH), np.int32)
    parts[:, :4] = tiles[tile]
    parts[:, 4], parts[:, 5], parts[:, 6] = number, splits[tile], first_places[tile]
    tile, token = _copies(np.where(is_split, tiles[:, 1], 0))
    rows = np.zeros((len(tile), ROW_WIDTH), np.int32)
    rows[:, 0], rows[:, 1], rows[:, 2] = tiles[tile, 0] + token, first_places[tile] + token, splits[tile]
    return WorkLists(parts, rows, int(places.sum()))


def _copies(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Each index as often as `counts` says, and the number of each copy among those of its index."""
    index = np.arange(len(counts)).repeat(counts)
    return index, np.arange(len(index)) - (counts.cumsum() - counts)[index]


def to_device(parts: Sequence[NDArray[np.int32]], device: torch.device) -> list[torch.Tensor]:
    """Copies arrays to a device in one transfer, without waiting for a GPU."""
    sizes = [part.size + -part.size % _ALIGNMENT for part in parts]
    # Torch's allocator reuses pinned memory only after the copies from it have ended.
    host = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
    view = host.numpy()
    first = 0
    for part, size in zip(parts, sizes, strict=True):
        view[first : first + part.size] = part.reshape(-1)
        first += size
    tensors = host.to(device, non_blocking=True).split(sizes)
    return [tensor[: part.size].view(part.shape) for tensor, part in zip(tensors, parts, strict=True)]
