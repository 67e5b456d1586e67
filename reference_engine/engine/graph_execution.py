"""Steps as CUDA graphs: one call repeats the hundreds of launches of a step.

A graph repeats its kernels at the same addresses and with the same grids. So there is one for each `GraphShape`, to
which smaller steps are padded; everything else that differs between steps is in `StepInputs`.
"""

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bakeoff.reference_engine.attention.base import LONG_CHUNK, Span
from bakeoff.reference_engine.attention.span_arrays import PART_WIDTH, ROW_WIDTH, SpanArrays, WorkLists
from bakeoff.reference_engine.attention.triton_backend import GroupInputs, TritonAttention, TritonStep
from bakeoff.reference_engine.core.ranks import ALONE, Ranks
from bakeoff.reference_engine.errors import ConfigError, EngineBugError
from bakeoff.reference_engine.kernels.cuda import replace_pending
from bakeoff.reference_engine.kernels.paged_attention import AttentionWork, QueryShape
from bakeoff.reference_engine.kv_cache.block_table import block_list
from bakeoff.reference_engine.kv_cache.storage import KvStorage
from bakeoff.reference_engine.models.decoder import Hidden, Inputs, Model
from bakeoff.reference_engine.models.execution import Batch, LocalExecutor, ReadSlab

MAX_DECODES = 256
"""One-token spans of the largest graph."""
_DECODE_STEP = 8
_SMALL_SIZES = (1, 2, 4)
_MIXED_SIZES = (32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
"""Tokens of steps with prompts. Larger ones take longer than their launches."""
_MIXED_DECODES = (0, 16, 64, MAX_DECODES)
"""Numbers of decodes beside prompts: programs without a decode take time, too."""
_SPARE_TILES = 16
"""Tiles beyond the full ones: each chunk of a prompt may end in a partial tile."""

_WIDTHS = (1, PART_WIDTH, ROW_WIDTH, PART_WIDTH, ROW_WIDTH)
"""Numbers in a row of each kind of a group's inputs: slots, parts and rows of decodes, parts and rows of chunks."""

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Records the launches of a function; returns a function that repeats them."""


class CudaCapture:
    """A `Capture` into CUDA graphs that share the memory of their intermediate results, since one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Runs the function once, which compiles its kernels and prepares libraries, then records it."""
        run()
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            run()
        return graph.replay


class GraphShape(NamedTuple):
    """What differs between graphs.

    Attributes:
        tokens: of the step.
        decodes: one-token spans, the first ones of the step.
        has_splits: whether their keys may be split; without, there is nothing to combine.
    """

    tokens: int
    decodes: int
    has_splits: bool = True


class GraphExecutor(LocalExecutor):
    """Repeats graphs for small steps; others run as in `LocalExecutor`.

    A graph of decodes ends with their logits, one with prompts in front of norm and head, which few tokens need. The
    logits where all rows are wanted, and the hidden states where the model is tapped, are valid until the next call of
    `execute`. Graphs are captured at once, the largest first, which then has room for all others' results.

    Args:
        model: nothing in its `forward` may wait for the device.
        attention: over the storage.
        host: host memory for swapped-out requests; None without swapping.
        max_rows: one-token spans of the largest step, of which at most `MAX_DECODES` are captured.
        max_tokens: of the longest sequence.
        has_prompts: whether to capture steps with prompts; a tapped model's are not.
        capture: None for `CudaCapture`.
        ranks: the processes that share the model.
    """

    def __init__(
        self,
        model: Model,
        attention: TritonAttention,
        host: KvStorage | None = None,
        *,
        max_rows: int,
        max_tokens: int,
        has_prompts: bool = True,
        capture: Capture | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__(model, attention, attention.storage, host, ranks=ranks)
        capture = capture or CudaCapture()
        # Early exits draft one token at a time behind prompts that the whole model has computed.
        self._again = functools.partial(
            GraphExecutor, attention=attention, host=host, max_rows=max_rows, max_tokens=max_tokens, has_prompts=False,
            capture=capture,
        )  # fmt: skip
        max_decodes = min(max_rows, MAX_DECODES)
        self._mixed: _PromptGraphs | None = None
        if has_prompts and model.taps is None:
            self._mixed = _PromptGraphs(
                model, attention, capture, ranks, max_decodes=max_decodes, max_tokens=max_tokens
            )
            self.max_graph_tokens = _MIXED_SIZES[-1]
        max_decodes += -max_decodes % _DECODE_STEP
        self._inputs = StepInputs(
            attention,
            max_decodes,
            max_decodes=max_decodes,
            max_tokens=max_tokens,
            rows=_rows(model, ranks, max_decodes),
        )
        self._padding = Span([block_list([block]) for block in attention.storage.padding_blocks], 0, 1)
        self._sizes = [*_SMALL_SIZES, *range(_DECODE_STEP, max_decodes + 1, _DECODE_STEP)]
        with torch.inference_mode():
            largest = GraphShape(self._sizes[-1], self._sizes[-1])
            self._fill_padding(largest)
            logits = self._forward(largest)
        # One buffer for the logits of all graphs: those of each by themselves would take gigabytes.
        self._logits = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        self._taps = model.taps
        # Likewise: the graphs share the memory of their hidden states.
        self._states = None if model.taps is None or model.taps.rows is None else torch.empty_like(model.taps.rows)
        with torch.inference_mode():
            self._replays: dict[GraphShape, Callable[[], None]] = {}
            split_choices = (False,) if attention.batch_invariant else (True, False)
            for rows, has_splits in itertools.product(reversed(self._sizes), split_choices):
                shape = GraphShape(rows, rows, has_splits)
                # A graph's first run must not find the rows of a larger one in its inputs.
                self._fill_padding(shape)
                self._replays[shape] = capture(functools.partial(self._run, shape))

    def first_layers(self, count: int) -> "GraphExecutor":
        return self._again(self._model.first_layers(count))

    def execute(self, batch: Batch, read: ReadSlab | None = None) -> torch.Tensor | None:
        count = len(batch.spans)
        is_decode = count == len(batch.token_ids) and bool(batch.wanted_rows)
        if not is_decode or batch.scored_rows or not 0 < count <= self._sizes[-1]:
            return super().execute(batch, read)
        self._copy_blocks(batch.copies)
        rows = self._sizes[bisect.bisect_left(self._sizes, count)]
        missing = rows - count
        arrays = self._inputs.attention.arrays([*batch.spans, *[self._padding] * missing])
        works = self._inputs.attention.decode_works(arrays)
        shape = GraphShape(rows, rows, any(work.num_places for work in works))
        self._inputs.fill(arrays, [*batch.token_ids, *[0] * missing], shape, works)
        self._inputs.complete(batch, self._ranks)
        self._replays[shape]()
        if not self._ranks.stage.is_last:
            # A copy: the next step may overwrite the buffer while this is on its way.
            self._ranks.send(self._logits[:count].clone())
            return None
        if self._taps is not None and self._states is not None:
            self._taps.rows = self._states[:count]
        logits = self._logits[:count]
        if batch.wanted_rows == list(range(count)):
            return logits
        return logits.index_select(0, self._wanted_rows.tensor(batch.wanted_rows))

    def close(self) -> None:
        """Graphs that hold NCCL's launches would keep it waiting for ever."""
        self._replays.clear()
        self._mixed = None

    def _hidden(self, batch: Batch) -> Hidden:
        hidden = None if self._mixed is None else self._mixed.hidden(batch)
        return super()._hidden(batch) if hidden is None else hidden

    def _fill_padding(self, shape: GraphShape) -> None:
        attention = self._inputs.attention
        arrays = attention.arrays([self._padding] * shape.tokens)
        self._inputs.fill(arrays, [0] * shape.tokens, shape, attention.decode_works(arrays))

    def _run(self, shape: GraphShape) -> None:
        self._logits[: shape.tokens].copy_(self._forward(shape))
        if self._taps is not None and self._taps.rows is not None and self._states is not None:
            self._states[: shape.tokens].copy_(self._taps.rows)

    def _forward(self, shape: GraphShape) -> torch.Tensor:
        inputs, count = self._inputs, shape.tokens
        return self._model.forward(inputs.of_model(count), inputs.positions[:count], inputs.step(shape))


def _rows(model: Model, ranks: Ranks, count: int) -> torch.Tensor | None:
    """Room for the rows of the stage before; None in the first stage."""
    return None if ranks.stage.is_first else model.rows(count)


class _PromptGraphs:
    """The layers of steps with parts of prompts, with and without decodes; see `GraphExecutor`."""

    def __init__(
        self,
        model: Model,
        attention: TritonAttention,
        capture: Capture,
        ranks: Ranks,
        *,
        max_decodes: int,
        max_tokens: int,
    ) -> None:
        self._model, self._ranks = model, ranks
        self._decodes = [*(count for count in _MIXED_DECODES if count < max_decodes), max_decodes]
        self._inputs = StepInputs(
            attention, _MIXED_SIZES[-1], max_decodes=max_decodes, max_tokens=max_tokens, has_chunks=True,
            rows=_rows(model, ranks, _MIXED_SIZES[-1]),
        )  # fmt: skip
        largest = GraphShape(_MIXED_SIZES[-1], max_decodes)
        with torch.inference_mode():
            nothing = attention.arrays([])
            self._inputs.fill(nothing, [], largest, attention.decode_works(nothing))
            residual, added = self._forward(largest)
        # Graphs share the memory of their results, so these are copied out of it.
        self._residual, self._added = torch.empty_like(residual), None if added is None else torch.empty_like(added)
        with torch.inference_mode():
            self._replays = {shape: capture(functools.partial(self._run, shape)) for shape in self._shapes()}

    def hidden(self, batch: Batch) -> Hidden | None:
        """The result of `Model.hidden`, valid until the next call; None for a batch that no graph suits."""
        inputs, count = self._inputs, len(batch.token_ids)
        if not 0 < count <= _MIXED_SIZES[-1]:
            return None
        arrays = inputs.attention.arrays(batch.spans)
        if arrays.num_decodes > self._decodes[-1] or arrays.lengths.max() >= LONG_CHUNK:
            return None
        tokens = _MIXED_SIZES[bisect.bisect_left(_MIXED_SIZES, count)]
        decodes = self._decodes[bisect.bisect_left(self._decodes, arrays.num_decodes)]
        shape = GraphShape(tokens, min(decodes, tokens))
        if not inputs.fits(arrays, shape):
            return None
        inputs.fill(arrays, batch.token_ids, shape, inputs.attention.decode_works(arrays))
        inputs.complete(batch, self._ranks)
        self._replays[shape]()
        return self._residual[:count], None if self._added is None else self._added[:count]

    def _shapes(self) -> Iterator[GraphShape]:
        for tokens in reversed(_MIXED_SIZES):
            for decodes in sorted({min(decodes, tokens) for decodes in self._decodes}, reverse=True):
                yield GraphShape(tokens, decodes)

    def _run(self, shape: GraphShape) -> None:
        residual, added = self._forward(shape)
        self._residual[: shape.tokens].copy_(residual)
        if added is not None and self._added is not None:
            self._added[: shape.tokens].copy_(added)

    def _forward(self, shape: GraphShape) -> Hidden:
        inputs, count = self._inputs, shape.tokens
        return self._model.hidden(inputs.of_model(count), inputs.positions[:count], inputs.step(shape))


class StepInputs:
    """Device memory that graphs read, written by one copy a step.

    One int32 buffer: columns at fixed places, followed by the block tables. Padding tokens write to the padding block;
    beside prompts they belong to no attention tile.

    Args:
        attention: over the cache.
        num_tokens: of the largest step.
        max_decodes: of a step; also the most sequences of one.
        max_tokens: of the longest sequence.
        has_chunks: whether there may be spans of several tokens.
        rows: [num_tokens, hidden_size], room for what the stage before sends; None in the first stage.

    Attributes:
        attention: the same.
        num_tokens: the same.
        token_ids: int64 [num_tokens].
        positions: int64 [num_tokens].
    """

    def __init__(
        self,
        attention: TritonAttention,
        num_tokens: int,
        *,
        max_decodes: int,
        max_tokens: int,
        has_chunks: bool = False,
        rows: torch.Tensor | None = None,
    ) -> None:
        storage = attention.storage
        self._rows = rows
        self.attention, self.num_tokens = attention, num_tokens
        self._num_groups = len(storage.layout.groups)
        self._has_chunks = has_chunks
        most_tiles = has_chunks * (num_tokens + _SPARE_TILES)  # with one token each at worst
        self._heights = [
            (
                num_tokens,
                max_decodes + attention.most_extra_parts(group, max_decodes),
                max_decodes,
                most_tiles + attention.most_extra_parts(group, most_tiles),
                has_chunks * num_tokens,
            )
            for group in range(self._num_groups)
        ]
        numbers = (math.prod(pair) for heights in self._heights for pair in zip(heights, _WIDTHS, strict=True))
        self._num_fixed = 4 * num_tokens + sum(numbers)
        most_blocks = max_decodes * self._num_groups * -(-max_tokens // storage.block_size)
        self._buffer = torch.zeros(self._num_fixed + most_blocks, dtype=torch.int32, device=storage.device)
        self.token_ids, self.positions, self._groups = self._columns(self._buffer, torch.int64)
        self._padding_slots = [block * storage.block_size for block in storage.padding_blocks]
        self._queries: dict[int, QueryShape] = {}  # of the layers of each group; known from the model's first call on

    def fits(self, arrays: SpanArrays, shape: GraphShape) -> bool:
        """Whether there is room for a step's block tables and for the tiles of its chunks."""
        if self._num_fixed + len(arrays.tables) > len(self._buffer):
            return False
        lengths = arrays.lengths[arrays.num_decodes :]
        tile_tokens = {self.attention.tokens_per_tile(shape.tokens, queries) for queries in self._queries.values()}
        return all((-(-lengths // tokens)).sum() <= self._most_tiles(shape, tokens) for tokens in tile_tokens)

    def fill(
        self, arrays: SpanArrays, token_ids: Sequence[int], shape: GraphShape, decode_works: Sequence[WorkLists]
    ) -> None:
        """Writes a step, padded to a shape that it fits; the work is `TritonAttention.decode_works` of the arrays."""
        count = len(token_ids)
        size = self._num_fixed + len(arrays.tables)
        # Torch's allocator reuses pinned memory only after the copies out of it have ended.
        host = torch.empty(size, dtype=torch.int32, pin_memory=self._buffer.is_cuda)
        values = host.numpy()
        tokens, positions, groups = self._columns(values, np.int64)
        tokens[:count], tokens[count : shape.tokens] = token_ids, 0
        positions[:count], positions[count : shape.tokens] = arrays.positions, 0
        for group, (slots, decode_parts, decode_rows, chunk_parts, chunk_rows) in enumerate(groups):
            slots[:count], slots[count : shape.tokens] = arrays.slots(group), self._padding_slots[group]
            self._decode_room(shape, group).fill(decode_parts, decode_rows, decode_works[group])
            queries = self._queries.get(group)
            if queries is None:
                chunk_parts[:], chunk_rows[:] = 0, 0
            else:
                chunks = slice(arrays.num_decodes, None)
                work = self.attention.chunk_work(arrays, group, chunks, shape.tokens, queries)
                self._chunk_room(shape, group, queries).fill(chunk_parts, chunk_rows, work)
        values[self._num_fixed :] = arrays.tables
        self._buffer[:size].copy_(host, non_blocking=True)

    def complete(self, batch: Batch, ranks: Ranks) -> None:
        """Writes what only the device knows: pending tokens, or the rows of the stage before."""
        count = len(batch.token_ids)
        if self._rows is not None:
            ranks.receive(self._rows[:count])
        elif batch.previous is not None:
            replace_pending(self.token_ids[:count], batch.previous)

    def of_model(self, count: int) -> Inputs:
        """What the model reads."""
        if self._rows is None:
            return self.token_ids[:count]
        # A copy: the layers change it in place, and would add to the rows of padding, which never come anew, each time.
        return self._rows[:count].clone()

    def step(self, shape: GraphShape) -> TritonStep:
        """Attention that reads these inputs."""
        groups = [
            GroupInputs(slots[: shape.tokens], self._decode_room(shape, group).read(parts, rows))
            for group, (slots, parts, rows, *_) in enumerate(self._groups)
        ]
        chunks = _ChunkWork(self, shape) if self._has_chunks else None
        return self.attention.step(groups, self._buffer[self._num_fixed :], chunks, is_padded=chunks is not None)

    def chunk_work(self, group: int, queries: QueryShape, shape: GraphShape) -> AttentionWork:
        """The work of a shape.

        Raises:
            ConfigError: an earlier layer of the group had other queries.
        """
        if self._queries.setdefault(group, queries) != queries:
            raise ConfigError(
                "layers with heads of different shapes cannot be CUDA graphs; start with --no-cuda-graphs"
            )
        *_, parts, rows = self._groups[group]
        return self._chunk_room(shape, group, queries).read(parts, rows)

    def _decode_room(self, shape: GraphShape, group: int) -> "_Room":
        extra = shape.has_splits * self.attention.most_extra_parts(group, shape.decodes)
        return _Room(shape.decodes + extra, min(shape.decodes, extra), 2 * extra)

    def _chunk_room(self, shape: GraphShape, group: int, queries: QueryShape) -> "_Room":
        tokens = self.attention.tokens_per_tile(shape.tokens, queries)
        tiles = self._most_tiles(shape, tokens)
        extra = self.attention.most_extra_parts(group, tiles)
        return _Room(tiles + extra, min(shape.tokens, tokens * extra), 2 * tokens * extra)

    @staticmethod
    def _most_tiles(shape: GraphShape, tokens: int) -> int:
        return shape.tokens // tokens + _SPARE_TILES

    def _columns(self, buffer: Any, int64: Any) -> tuple[Any, Any, list[list[Any]]]:  # noqa: ANN401
        """Views of a NumPy array or a tensor: token ids, positions; for each group those of `_WIDTHS`."""
        token_ids, positions = buffer[: 4 * self.num_tokens].view(int64).reshape(2, self.num_tokens)
        first, groups = 4 * self.num_tokens, list[list[Any]]()
        for group in range(self._num_groups):
            columns = list[Any]()
            for height, width in zip(self._heights[group], _WIDTHS, strict=True):
                columns.append(buffer[first : first + height * width].reshape(height, width))
                first += height * width
            columns[0] = columns[0].reshape(-1)  # slots are numbers, not rows
            groups.append(columns)
        return token_ids, positions, groups


class _Room(NamedTuple):
    """The lengths of the lists of an `AttentionWork` that a graph's kernels read, and the places of its results."""

    parts: int
    rows: int
    num_places: int

    def read(self, parts: torch.Tensor, rows: torch.Tensor) -> AttentionWork:
        """The beginning of two longer lists."""
        return AttentionWork(parts[: self.parts], rows[: self.rows], self.num_places)

    def fill(self, parts: NDArray[np.int32], rows: NDArray[np.int32], work: WorkLists) -> None:
        """Writes a work to the beginning of two longer lists, and padding behind it.

        Raises:
            EngineBugError: the work does not fit, and a graph would leave out a part of it.
        """
        if len(work.parts) > self.parts or len(work.rows) > self.rows or work.num_places > self.num_places:
            needed = _Room(len(work.parts), len(work.rows), work.num_places)
            raise EngineBugError(f"a step needs {needed}, and its graph has {self}")
        for column, own, room in ((parts, work.parts, self.parts), (rows, work.rows, self.rows)):
            column[: len(own)], column[len(own) : room] = own, 0


class _ChunkWork(NamedTuple):
    """A graph's `Chunks`."""

    inputs: StepInputs
    shape: GraphShape

    def dense(self, group: int) -> Sequence[Any]:  # noqa: ARG002
        """None: their kernel must be called for each length."""
        return ()

    def work(self, group: int, queries: QueryShape, *, with_dense: bool) -> AttentionWork:  # noqa: ARG002
        return self.inputs.chunk_work(group, queries, self.shape)
