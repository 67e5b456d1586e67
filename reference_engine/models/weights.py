"""Takes a checkpoint's tensors to where, and in the form in which, a model computes with them."""

import torch

from reference_engine.kernels.cpu import best_kernels
from reference_engine.loading.checkpoint import WeightSource
from reference_engine.models.linear import Linear, make_linear


class Weights:
    """Tensors in the wanted dtype on the wanted device, and what multiplies by them.

    Args:
        source: the weights under Hugging Face's names.
        dtype: of weights and activations.
        device: where the model runs.
        norm_offset: added to the weights of norms (Gemma stores them less 1).

    Attributes:
        kernels: the fastest small operations for such tensors.
    """

    def __init__(
        self, source: WeightSource, dtype: torch.dtype, device: torch.device, norm_offset: float = 0.0
    ) -> None:
        self._source = source
        self._norm_offset = norm_offset
        self.dtype = dtype
        self.device = device
        self.kernels = best_kernels(device, dtype)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """One tensor, in another dtype if one is named."""
        # A copy: a view of the mapped file would keep the whole file mapped, and resident beside the packed weights.
        return self._source.get(name).to(self.device, dtype or self.dtype, copy=True)

    def norm(self, prefix: str) -> torch.Tensor:
        """The weights [dim] of the RMS norm at `prefix`."""
        return self.tensor(f"{prefix}.weight", torch.float32).add_(self._norm_offset).to(self.dtype)

    def linear(self, prefix: str, parts: tuple[str, ...], *, has_bias: bool = False) -> Linear:
        """Some matrices over the same input as one, their outputs side by side."""
        bias = self._fused(prefix, parts, "bias") if has_bias else None
        return make_linear(self._fused(prefix, parts, "weight"), bias)

    def _fused(self, prefix: str, parts: tuple[str, ...], kind: str) -> torch.Tensor:
        tensors = [self._source.get(f"{prefix}{part}.{kind}").to(self.device, self.dtype) for part in parts]
        return torch.cat(tensors)
