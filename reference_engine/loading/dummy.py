"""Random weights for speed measurements: any model's shapes, without its weight files."""

import zlib
from collections.abc import Sequence

import torch

from reference_engine.errors import CheckpointError
from reference_engine.models.config import ModelConfig
from reference_engine.models.shapes import weight_shapes

_STD = 0.02  # Transformers' usual initializer_range: activations neither vanish nor overflow in 16 bits


class DummyWeights:
    """Normal random weights, generated on the device that computes with them; norms are 1.

    The name of a tensor seeds it, so that every process of a device type generates the same one.

    Args:
        config: implies names and shapes.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._shapes = weight_shapes(config)
        self._norm = 1.0 - config.norm_offset  # as stored

    def names(self) -> Sequence[str]:
        """Hugging Face names of all tensors."""
        return list(self._shapes)

    def get(self, name: str, dtype: torch.dtype | None = None, device: torch.device | None = None) -> torch.Tensor:
        """The named tensor, made directly in `dtype` on `device`."""
        if name not in self._shapes:
            raise CheckpointError(f"config.json implies no tensor {name}; is it a checkpoint's?")
        tensor = torch.empty(self._shapes[name], dtype=dtype, device=device)
        if name.endswith("norm.weight"):
            return tensor.fill_(self._norm)
        generator = torch.Generator(tensor.device).manual_seed(zlib.crc32(name.encode()))
        return tensor.normal_(std=_STD, generator=generator)

    def get_quantised(self, name: str) -> None:  # noqa: ARG002 (see WeightSource)
        """None: dummy weights have no blocks."""
        return
