"""Paged attention on the CPU with our own kernel, which reads the cache in place.

Blocks of a quantised cache are decoded first, layer by layer, each block that the step sees once.

Every new token is a row of its own, those of prompts too: the keys of all are stored first, and each row sees those up
to its own. So what a token becomes does not depend on how its prompt was cut, on what was cached, or on what else is in
the step. Measurements beside stock operators: docs/decisions/reference-engine-cpu-attention.md.
"""

import array
import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch

from bakeoff.reference_engine.attention.base import Span, seen_blocks, slot_mapping
from bakeoff.reference_engine.kernels.cpu import AttentionCall, NativeKernels
from bakeoff.reference_engine.kernels.operands import require_packed, require_rows
from bakeoff.reference_engine.kernels.scoring import PLAIN, Scoring
from bakeoff.reference_engine.kv_cache.layout import LayerLayout
from bakeoff.reference_engine.kv_cache.storage import KvStorage

_LANES, _MOST_DIMS = 16, 576
"""The dims of a head are a multiple of the first and at most the second; see `attention.cpp`."""


def suits_native(storage: KvStorage) -> bool:
    """Whether the compiled kernel suits heads of these dims."""
    dims = {dim for layer in storage.layout.layers for dim in (layer.key_dim, layer.value_dim)}
    return all(dim % _LANES == 0 and dim <= _MOST_DIMS for dim in dims)


class NativeAttention:
    """Needs a storage that `suits_native`; see the module text.

    Args:
        storage: in float32 or bfloat16, on the CPU.
        kernels: of its dtype.
    """

    def __init__(self, storage: KvStorage, kernels: NativeKernels) -> None:
        self._storage = storage
        self._kernels = kernels

    def begin_step(self, spans: Sequence[Span]) -> "NativeStep":
        return NativeStep(self._storage, self._kernels, spans)


class NativeStep:
    """One step of `NativeAttention`."""

    def __init__(self, storage: KvStorage, kernels: NativeKernels, spans: Sequence[Span]) -> None:
        self._storage = storage
        self._kernels = kernels
        self._rows = [_Rows(spans, group, storage) for group in range(len(storage.layout.groups))]

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        scoring: Scoring = PLAIN,
        *,
        towards_sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        layout, store = self._storage.layout.layers[layer], self._storage.stores[layer]
        rows = self._rows[self._storage.group_of[layer]]
        require_rows(query.dtype, query, key, value)
        parts: Sequence[torch.Tensor] = store.parts
        if rows.decoded is not None:
            if key is not None:
                store.write(rows.decoded.slots, key, value)
            key = value = None  # the kernel has nothing to store
            parts = store.read(rows.decoded.blocks)[: 1 if layout.value_in_key else 2]
        require_packed(None, *parts)
        require_packed(torch.float32, scoring.sinks)
        require_packed(query.dtype, towards_sinks)
        out = query.new_empty(rows.count, query.shape[1] * layout.value_dim)
        self._kernels.paged_attention(
            ctypes.byref(rows.argument(layout, query, key, value, scoring)),
            out.data_ptr(),
            query.data_ptr(),
            None if towards_sinks is None else towards_sinks.data_ptr(),
            None if key is None else key.data_ptr(),
            None if value is None else value.data_ptr(),
            parts[0].data_ptr(),
            parts[1].data_ptr() if len(parts) > 1 else None,
        )
        return out


class _Decoded(NamedTuple):
    """What a step needs of a quantised cache, for the layers of one group.

    Attributes:
        slots: of the new tokens, int64 [num_tokens].
        blocks: which the new tokens see, int64, each once.
        tables: for each span, where in `blocks` its own are.
    """

    slots: torch.Tensor
    blocks: torch.Tensor
    tables: "list[array.array[int]]"


def _decoded(spans: Sequence[Span], group: int, storage: KvStorage) -> _Decoded:
    size, visible = storage.block_size, storage.layout.groups[group]
    places: dict[int, int] = {}
    tables: list[array.array[int]] = []
    for span in spans:
        own = span.tables[group]
        table = array.array("i", [0]) * -(-span.end // size)
        for i in seen_blocks(span, visible, size):
            table[i] = places.setdefault(own[i], len(places))
        tables.append(table)
    return _Decoded(torch.tensor(slot_mapping(spans, size, group)), torch.tensor([*places]), tables)


class _Rows:
    """The kernel's arguments for the new tokens of a step, for the layers of one group.

    Attributes:
        count: of the new tokens.
        decoded: None if the kernel reads the cache itself.
    """

    def __init__(self, spans: Sequence[Span], group: int, storage: KvStorage) -> None:
        self.count = sum(span.length for span in spans)
        self.decoded = None if storage.is_plain else _decoded(spans, group, storage)
        tables = [span.tables[group] for span in spans] if self.decoded is None else self.decoded.tables
        # C arrays, which tables usually are already; kept here because the kernel gets only their addresses.
        self._tables = [table if isinstance(table, array.array) else array.array("i", table) for table in tables]
        places: list[int] = []
        ends: list[int] = []
        for span, table in zip(spans, self._tables, strict=True):
            places += [table.buffer_info()[0]] * span.length
            ends += range(span.start + 1, span.end + 1)
        self._places, self._ends = array.array("Q", places), array.array("q", ends)
        self._block_size = storage.block_size
        self._visible = storage.layout.groups[group]
        self._argument: AttentionCall | None = None

    def argument(
        self,
        layout: LayerLayout,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        scoring: Scoring,
    ) -> AttentionCall:
        """The kernel's argument for a layer; reused, since layers of a group differ only in their tensors' layout."""
        if self._argument is None:
            self._argument = AttentionCall(
                tables=self._places.buffer_info()[0],
                ends=self._ends.buffer_info()[0],
                batch=self.count,
                block_size=self._block_size,
                window=self._visible.window or 0,
                sinks=self._visible.sinks,
            )
        argument = self._argument
        argument.heads, argument.query_stride = query.shape[1], query.stride(0)
        argument.kv_heads, argument.key_dim, argument.value_dim = layout.num_kv_heads, layout.key_dim, layout.value_dim
        argument.key_stride = 0 if key is None else key.stride(0)
        argument.value_stride = 0 if value is None else value.stride(0)
        argument.scale = scoring.factor(query.shape[2])
        argument.soft_cap = scoring.soft_cap or 0.0
        argument.learned_sinks = None if scoring.sinks is None else scoring.sinks.data_ptr()
        return argument
