"""Takes a checkpoint's tensors to where, and in the form in which, a model computes with them."""

import torch

from reference_engine.config import QuantizationName
from reference_engine.kernels.blocks import QuantisedTensor
from reference_engine.kernels.cpu import best_kernels
from reference_engine.kernels.quantised import has_kernel
from reference_engine.loading.checkpoint import WeightSource
from reference_engine.models.linear import Linear, Matrix, make_joined, make_linear


class Weights:
    """Tensors in the wanted dtype on the wanted device, and what multiplies by them.

    Args:
        source: the weights under Hugging Face's names.
        dtype: of weights and activations.
        device: where the model runs.
        norm_offset: added to the weights of norms (Gemma stores them less 1).
        quantization: whether matrices that are stored in blocks stay so.

    Attributes:
        kernels: the fastest small operations for such tensors.
        plain_bytes: of what was given out in a dtype.
        block_bytes: of what was given out in blocks.
    """

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        norm_offset: float = 0.0,
        quantization: QuantizationName = "none",
    ) -> None:
        self._source = source
        self._norm_offset = norm_offset
        self._quantization: QuantizationName = quantization
        self.plain_bytes = self.block_bytes = 0
        self.dtype = dtype
        self.device = device
        self.kernels = best_kernels(device, dtype)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """One tensor, in another dtype if one is named."""
        # A copy: a view of the mapped file would keep the whole file mapped, and resident beside the packed weights.
        return self._counted(self._source.get(name).to(self.device, dtype or self.dtype, copy=True))

    def matrix(self, name: str) -> Matrix:
        """One matrix, in blocks where it is stored in them and may stay so."""
        kept = self._kept(name)
        return self.tensor(name) if kept is None else kept

    def norm(self, prefix: str) -> torch.Tensor:
        """The weights [dim] of the RMS norm at `prefix`."""
        return self.tensor(f"{prefix}.weight", torch.float32).add_(self._norm_offset).to(self.dtype)

    def linear(self, prefix: str, parts: tuple[str, ...], *, has_bias: bool = False) -> Linear:
        """Some matrices over the same input as one, their outputs side by side."""
        bias = self._fused(prefix, parts, "bias") if has_bias else None
        kept = {name: self._kept(name) for name in (f"{prefix}{part}.weight" for part in parts)}
        if not any(kept.values()):
            return make_linear(self._fused(prefix, parts, "weight"), bias)
        return make_joined([self.tensor(name) if one is None else one for name, one in kept.items()], bias)

    def _fused(self, prefix: str, parts: tuple[str, ...], kind: str) -> torch.Tensor:
        tensors = [self._source.get(f"{prefix}{part}.{kind}").to(self.device, self.dtype) for part in parts]
        return self._counted(torch.cat(tensors))

    def _kept(self, name: str) -> QuantisedTensor | None:
        """The blocks of a matrix, if it has any and may stay in them."""
        stored = None if self._quantization == "none" else self._source.get_quantised(name)
        if stored is None or (self._quantization == "auto" and not has_kernel(self.device, self.dtype)):
            return None
        self.block_bytes += stored.nbytes
        return stored.to(self.device, self.dtype)

    def _counted(self, tensor: torch.Tensor) -> torch.Tensor:
        self.plain_bytes += tensor.nbytes
        return tensor
