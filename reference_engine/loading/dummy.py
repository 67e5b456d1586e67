"""Random weights for speed measurements: any model's shapes, without its weight files."""

import zlib
from collections.abc import Sequence

import torch

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.models.shapes import weight_shapes
from bakeoff.reference_engine.quantization.formats.base import CheckpointFormat
from bakeoff.reference_engine.quantization.formats.mxfp4 import Mxfp4Experts
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix

_MATRIX = 2  # dimensions
_STD = 0.02  # Transformers' usual initializer_range: activations neither vanish nor overflow in 16 bits


class DummyWeights:
    """Normal random weights, generated on the device that computes with them; norms are 1.

    The name of a tensor seeds it, so that every process of a device type generates the same one.

    Args:
        config: determines names and shapes.
        checkpoint_format: determines which matrices are quantised, and how; None for none.
    """

    def __init__(self, config: ModelConfig, checkpoint_format: CheckpointFormat | Mxfp4Experts | None = None) -> None:
        self._format = checkpoint_format
        self._shapes = weight_shapes(config)
        self._norm = 1.0 - config.norm_offset  # as stored

    def names(self) -> Sequence[str]:
        """Hugging Face names of all tensors."""
        return list(self._shapes)

    def get(self, name: str, dtype: torch.dtype | None = None, device: torch.device | None = None) -> torch.Tensor:
        """The named tensor, created in `dtype` on `device`."""
        if name not in self._shapes:
            raise CheckpointError(f"config.json implies no tensor {name}; is it a checkpoint's?")
        tensor = torch.empty(self._shapes[name], dtype=dtype, device=device)
        if name.endswith("norm.weight"):
            return tensor.fill_(self._norm)
        matrix = self.get_quantised(name)
        if matrix is not None:
            return matrix.to(tensor.device, tensor.dtype).dequantised()
        generator = torch.Generator(tensor.device).manual_seed(_seed(name))
        return tensor.normal_(std=_STD, generator=generator)

    def get_quantised(self, name: str) -> QuantisedMatrix | None:
        """The named matrix, created on the CPU, if the format quantises it."""
        shape, module = self._shapes.get(name, ()), name.removesuffix(".weight")
        if self._format is None or len(shape) != _MATRIX:
            return None
        scheme = self._format.scheme(module)
        return None if scheme is None else scheme.random(module, (shape[0], shape[1]), _STD, _seed(name))


def _seed(name: str) -> int:
    return zlib.crc32(name.encode())
