"""The tensors that block numbers refer to."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies, BlockCopy
from bakeoff.reference_engine.kv_cache.layout import CacheLayout, LayerLayout


class LayerStore(Protocol):
    """Keys and values of one layer."""

    @property
    def parts(self) -> Sequence[torch.Tensor]:
        """All its tensors, each [num_blocks, …]."""
        ...

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None) -> None:
        """Stores new tokens.

        Args:
            slots: int64 [num_tokens], block · block_size + place in the block.
            key: [num_tokens, num_kv_heads, key_dim].
            value: [num_tokens, num_kv_heads, value_dim]; None if it is a part of the key.
        """
        ...

    def read(self, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of blocks, concatenated: each [num_blocks · block_size, num_kv_heads, dim]."""
        ...


class StoreMaker(Protocol):
    """Creates the store of a layer."""

    def __call__(
        self, layer: LayerLayout, *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> LayerStore:
        """A store of blocks of `block_size` tokens; `read` returns `dtype`."""
        ...


class PlainStore:
    """Elements as they are; see `LayerStore`."""

    def __init__(
        self, layer: LayerLayout, *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._value_dim = layer.value_dim
        dims = [layer.key_dim] if layer.value_in_key else [layer.key_dim, layer.value_dim]
        shapes = [(num_blocks, block_size, layer.num_kv_heads, dim) for dim in dims]
        self.parts: list[torch.Tensor] = [lazy_zeros(shape, dtype, device) for shape in shapes]
        # Rows for writing, and whole blocks for reading: index_select copies blocks in one piece.
        self._slots = [part.flatten(0, 1) for part in self.parts]
        self._blocks = [part.flatten(1) for part in self.parts]

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None) -> None:
        for part, fresh in zip(self._slots, (key, value), strict=False):
            if fresh is not None:
                part.index_copy_(0, slots, fresh)

    def read(self, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [
            part.index_select(0, blocks).view(-1, *whole.shape[2:])
            for part, whole in zip(self._blocks, self.parts, strict=True)
        ]
        return parts[0], parts[-1][..., : self._value_dim]


@dataclasses.dataclass(frozen=True)
class KvStorage:
    """One store for each layer; layers that share keys and values have the same store.

    Attributes:
        layout: what each layer keeps.
        stores: of each layer.
        block_size: tokens per block.
        dtype: of attention.
        device: of the tensors.
        padding_blocks: for each group a block that is never read, for padding rows.
    """

    layout: CacheLayout
    stores: tuple[LayerStore, ...]
    block_size: int
    dtype: torch.dtype
    device: torch.device
    padding_blocks: tuple[int, ...]

    @functools.cached_property
    def group_of(self) -> Sequence[int]:
        """The group of each layer."""
        return [self.layout.group_of(layer) for layer in range(len(self.stores))]

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether all stores keep elements as they are."""
        return all(isinstance(store, PlainStore) for store in self.stores)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        own = [store for store, layer in zip(self.stores, self.layout.layers, strict=True) if layer.shares is None]
        return sum(part.nbytes for store in own for part in store.parts)

    def copy_blocks(self, copies: BlockCopies, host: "KvStorage | None") -> None:
        """Copies blocks, in the order that `BlockCopies` requires."""
        if host is not None:
            self._copy(copies.to_host, self, host)
            self._copy(copies.to_device, host, self)
        self._copy(copies.within, self, self)

    def _copy(self, copies: Sequence[BlockCopy], source: "KvStorage", target: "KvStorage") -> None:
        for group in sorted({group for group, _, _ in copies}):
            pairs = [(read, write) for copied_group, read, write in copies if copied_group == group]
            reads = torch.tensor([read for read, _ in pairs], device=source.device)
            writes = torch.tensor([write for _, write in pairs], device=target.device)
            for number, layer in enumerate(self.layout.layers):
                if layer.shares is None and self.group_of[number] == group:
                    for old, new in zip(source.stores[number].parts, target.stores[number].parts, strict=True):
                        new.index_copy_(0, writes, old.index_select(0, reads).to(target.device))


def allocate_storage(
    layout: CacheLayout,
    *,
    num_blocks: Sequence[int],
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    make_store: StoreMaker = PlainStore,
) -> KvStorage:
    """Storage for blocks of `block_size` tokens; on the CPU memory is touched only as blocks are used.

    Args:
        layout: of the model.
        num_blocks: for each group.
        block_size: tokens per block.
        dtype: of attention.
        device: of the tensors.
        make_store: determines how a layer's keys and values are stored.
    """
    stores: list[LayerStore] = []
    for number, layer in enumerate(layout.layers):
        if layer.shares is not None:
            stores.append(stores[layer.shares])
            continue
        count = num_blocks[layout.group_of(number)] + 1  # the last one is for padding
        stores.append(make_store(layer, num_blocks=count, block_size=block_size, dtype=dtype, device=device))
    return KvStorage(layout, tuple(stores), block_size, dtype, device, tuple(num_blocks))


def token_bytes(layout: CacheLayout, dtype: torch.dtype, make_store: StoreMaker = PlainStore) -> list[int]:
    """Bytes of one token in all layers of each group, scales included."""
    sums = [0] * len(layout.groups)
    for number, layer in enumerate(layout.layers):
        if layer.shares is None:
            store = make_store(layer, num_blocks=1, block_size=1, dtype=dtype, device=torch.device("cpu"))
            sums[layout.group_of(number)] += sum(part.nbytes for part in store.parts)
    return sums


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros, because attention multiplies the unwritten tail of a block by 0 and 0 * NaN would spread.

    On the CPU they come from calloc (numpy), whose pages become resident when first written; torch.zeros writes all.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
