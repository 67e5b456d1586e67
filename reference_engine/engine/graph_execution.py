"""Decode steps as CUDA graphs: one call repeats the hundreds of launches of a step.

A graph repeats its kernels at the same addresses and with the same grids. So there is one for each number of rows, up
to which smaller batches are padded, and each way to split keys; what else differs between steps lies in `StepInputs`.
"""

import bisect
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from reference_engine.attention.base import Span
from reference_engine.attention.span_arrays import SpanArrays
from reference_engine.attention.triton_backend import GroupInputs, TritonAttention, TritonStep
from reference_engine.engine.execution import Batch, LocalExecutor, ReadSlab
from reference_engine.kernels.cuda import replace_pending
from reference_engine.kv_cache.block_table import block_list
from reference_engine.kv_cache.storage import KvStorage
from reference_engine.models.decoder import Model

MAX_ROWS = 256
"""Rows of the largest graph. Above, a step takes longer than its launches."""

_ROW_STEP = 8
_SMALL_SIZES = (1, 2, 4)

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Records what a function launches; returns what launches it again."""


class CudaCapture:
    """A `Capture` into CUDA graphs that share the memory of their intermediate results, since one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Runs it once as it is, which compiles its kernels and prepares libraries, then records it."""
        run()
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            run()
        return graph.replay


class GraphExecutor(LocalExecutor):
    """Repeats graphs for batches of one-token spans; others run as in `LocalExecutor`.

    The logits of a graph, where all rows are wanted, and its hidden states where the model is tapped, are valid until
    the next call of `execute`. Graphs are captured at once, the largest first, which then has room for all others'
    results.

    Args:
        model: nothing in its `forward` may wait for the device.
        attention: over the storage.
        host: host memory for swapped-out requests; None without swapping.
        max_rows: rows of the largest batch that needs a graph, at most `MAX_ROWS`.
        max_tokens: of the longest sequence.
        capture: None for `CudaCapture`.
    """

    def __init__(
        self,
        model: Model,
        attention: TritonAttention,
        host: KvStorage | None = None,
        *,
        max_rows: int,
        max_tokens: int,
        capture: Capture | None = None,
    ) -> None:
        super().__init__(model, attention, attention.storage, host)
        self._again = functools.partial(
            GraphExecutor, attention=attention, host=host, max_rows=max_rows, max_tokens=max_tokens, capture=capture
        )
        self._inputs = StepInputs(attention, min(max_rows, MAX_ROWS), max_tokens)
        self._sizes = [*_SMALL_SIZES, *range(_ROW_STEP, self._inputs.num_rows + 1, _ROW_STEP)]
        capture = capture or CudaCapture()
        with torch.inference_mode():
            factor = self._inputs.fill([], [], self._sizes[-1])
            logits = self._forward(self._sizes[-1], factor)
        # One buffer for the logits of all graphs: those of each by themselves would take gigabytes.
        self._logits = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        self._taps = model.taps
        # Likewise: the memory of a graph's own hidden states belongs to the other graphs, too.
        self._states = None if model.taps is None or model.taps.rows is None else torch.empty_like(model.taps.rows)
        with torch.inference_mode():
            self._replays = {
                (rows, factor): capture(functools.partial(self._run, rows, factor))
                for rows in reversed(self._sizes)
                for factor in attention.split_factors
            }

    def first_layers(self, count: int) -> "GraphExecutor":
        """See `LocalExecutor.first_layers`."""
        return self._again(self._model.first_layers(count))

    def execute(self, batch: Batch, read: ReadSlab | None = None) -> torch.Tensor | None:
        """See `Executor.execute`."""
        count = len(batch.spans)
        is_decode = count == len(batch.token_ids) and bool(batch.wanted_rows)
        if not is_decode or batch.scored_rows or not 0 < count <= self._sizes[-1]:
            return super().execute(batch, read)
        self._copy_blocks(batch.copies)
        rows = self._sizes[bisect.bisect_left(self._sizes, count)]
        factor = self._inputs.fill(batch.spans, batch.token_ids, rows)
        if batch.previous is not None:
            replace_pending(self._inputs.token_ids[:count], batch.previous)
        self._replays[rows, factor]()
        if self._taps is not None and self._states is not None:
            self._taps.rows = self._states[:count]
        logits = self._logits[:count]
        if batch.wanted_rows == list(range(count)):
            return logits
        return logits.index_select(0, self._wanted_rows.tensor(batch.wanted_rows))

    def _run(self, rows: int, factor: int) -> None:
        self._logits[:rows].copy_(self._forward(rows, factor))
        if self._taps is not None and self._taps.rows is not None and self._states is not None:
            self._states[:rows].copy_(self._taps.rows)

    def _forward(self, rows: int, factor: int) -> torch.Tensor:
        inputs = self._inputs
        return self._model.forward(inputs.token_ids[:rows], inputs.positions[:rows], inputs.step(rows, factor))


class StepInputs:
    """Device memory that graphs read, written by one copy a step.

    It is one int32 buffer: columns of fixed places for all rows, behind them the block tables, as many as there are.

    Args:
        attention: over the cache.
        max_rows: of a batch.
        max_tokens: of the longest sequence.

    Attributes:
        num_rows: room for so many.
        token_ids: int64 [num_rows].
        positions: int64 [num_rows].
    """

    def __init__(self, attention: TritonAttention, max_rows: int, max_tokens: int) -> None:
        storage = attention.storage
        self._attention, self._storage = attention, storage
        self.num_rows = max_rows + -max_rows % _ROW_STEP
        self._num_groups = len(storage.layout.groups)
        self._num_fixed = self.num_rows * (4 + 5 * self._num_groups)
        most_blocks = self.num_rows * self._num_groups * -(-max_tokens // storage.block_size)
        self._buffer = torch.zeros(self._num_fixed + most_blocks, dtype=torch.int32, device=storage.device)
        self.token_ids, self.positions, self._groups = self._columns(self._buffer, torch.int64)
        self._padding = Span([block_list([block]) for block in storage.padding_blocks], 0, 1)

    def fill(self, spans: Sequence[Span], token_ids: Sequence[int], rows: int) -> int:
        """Writes a step of one-token spans, padded to `rows` rows; returns the factor to split their keys by."""
        count = len(spans)
        arrays = SpanArrays([*spans, *[self._padding] * (rows - count)], self._num_groups, self._storage.block_size)
        size = self._num_fixed + len(arrays.tables)
        # Torch's allocator hands pinned memory out again only after the copies out of it have ended.
        host = torch.empty(size, dtype=torch.int32, pin_memory=self._storage.device.type == "cuda")
        values = host.numpy()
        tokens, positions, groups = self._columns(values, np.int64)
        tokens[:count], tokens[count:rows] = token_ids, 0
        positions[:rows] = arrays.starts
        for group, (slots, tiles) in enumerate(groups):
            slots[:rows], tiles[:rows] = arrays.slots(group), arrays.tiles(group, slice(None), 1)
        values[self._num_fixed :] = arrays.tables
        self._buffer[:size].copy_(host, non_blocking=True)
        return self._attention.split_factor(arrays.starts[:count])

    def step(self, rows: int, factor: int) -> TritonStep:
        """Attention that reads these inputs."""
        groups = [GroupInputs(slots[:rows], tiles[:rows]) for slots, tiles in self._groups]
        return self._attention.step(groups, self._buffer[self._num_fixed :], factor=factor)

    def _columns(self, buffer: Any, int64: Any) -> tuple[Any, Any, list[tuple[Any, Any]]]:  # noqa: ANN401
        """Views of a NumPy array or a tensor: token ids, positions, and for each group slots and tiles."""
        rows = self.num_rows
        token_ids, positions = buffer[: 4 * rows].view(int64).reshape(2, rows)
        groups = buffer[4 * rows : self._num_fixed].reshape(self._num_groups, 5 * rows)
        return token_ids, positions, [(group[:rows], group[rows:].reshape(rows, 4)) for group in groups]
