"""The tensors behind the block numbers: per layer one for keys and one for values."""

import dataclasses
import math

import numpy as np
import torch

from reference_engine.models.config import ModelConfig


@dataclasses.dataclass(frozen=True, slots=True)
class KvStorage:
    """keys[layer] and values[layer]: [num_blocks, block_size, num_kv_heads, head_dim]."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    block_size: int  # tokens

    @property
    def dtype(self) -> torch.dtype:
        """Element type of keys and values."""
        return self.keys[0].dtype

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.keys[0].device


def allocate_storage(
    config: ModelConfig, *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> KvStorage:
    """Storage for `num_blocks` blocks of `block_size` tokens; on the CPU memory is touched only as blocks are used."""
    shape = (num_blocks, block_size, config.num_key_value_heads, config.head_dim)

    def one_per_layer() -> tuple[torch.Tensor, ...]:
        return tuple(_lazy_zeros(shape, dtype, device) for _ in range(config.num_hidden_layers))

    return KvStorage(keys=one_per_layer(), values=one_per_layer(), block_size=block_size)


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros, because attention multiplies the unwritten tail of a block by 0 and 0 * NaN would spread.

    On the CPU they come from calloc (numpy), whose pages become resident when first written; torch.zeros writes all.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
