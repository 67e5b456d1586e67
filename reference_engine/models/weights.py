"""Takes a checkpoint's tensors to where, and in the form in which, a model computes with them."""

from collections.abc import Callable, Sequence

import torch

from reference_engine.engine.config import QuantizationName
from reference_engine.kernels.blocks import QuantisedTensor
from reference_engine.kernels.cpu import best_kernels
from reference_engine.kernels.quantised import has_kernel
from reference_engine.loading.source import WeightSource
from reference_engine.models.linear import Linear, Matrix, make_joined, make_linear
from reference_engine.parallel.ranks import ALONE, Ranks, share, vocabulary_share


class Weights:
    """Tensors in the wanted dtype on the wanted device, and what multiplies by them.

    Args:
        source: the weights under Hugging Face's names.
        dtype: of weights and activations.
        device: where the model runs.
        norm_offset: added to the weights of norms (Gemma stores them less 1).
        ranks: who shares the model; only this one's part of what is cut is read.
        quantization: whether matrices that are stored in blocks stay so, where one rank has all of them.

    Attributes:
        kernels: the fastest small operations for such tensors.
        ranks: as given.
        plain_bytes: of what was given out in a dtype.
        block_bytes: of what was given out in blocks.
    """

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        norm_offset: float = 0.0,
        *,
        ranks: Ranks = ALONE,
        quantization: QuantizationName = "none",
    ) -> None:
        self._source = source
        self._norm_offset = norm_offset
        self._quantization: QuantizationName = quantization
        self.plain_bytes = self.block_bytes = 0
        self.dtype = dtype
        self.device = device
        self.ranks = ranks
        self.kernels = best_kernels(device, dtype)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """One tensor, in another dtype if one is named."""
        return self._copy(self._source.get(name), dtype)

    def matrix(self, name: str) -> Matrix:
        """One matrix, in blocks where it is stored in them and may stay so."""
        kept = self._kept(name)
        return self.tensor(name) if kept is None else kept

    def norm(self, prefix: str) -> torch.Tensor:
        """The weights [dim] of the RMS norm at `prefix`; float32 where they are stored less an offset.

        Near 1 bfloat16 has steps of 1/128: it would round away most of what such a weight says.
        """
        if not self._norm_offset:
            return self.tensor(f"{prefix}.weight")
        return self.tensor(f"{prefix}.weight", torch.float32).add_(self._norm_offset)

    def linear(self, prefix: str, parts: tuple[str, ...], *, has_bias: bool = False) -> Linear:
        """Some matrices over the same input as one, their outputs side by side; whole on every rank."""
        return self._fused(prefix, parts, has_bias, lambda whole, _: whole)

    def columns(
        self, prefix: str, parts: tuple[str, ...], *, has_bias: bool = False, widths: Sequence[int] = ()
    ) -> Linear:
        """The same, of each matrix only the outputs of this rank.

        Args:
            prefix: of the names.
            parts: of the names, one for each matrix.
            has_bias: whether each of them has one.
            widths: how many outputs of each are a rank's, see `share`; () for equal parts.
        """
        return self._fused(
            prefix, parts, has_bias, lambda whole, i: share(whole, 0, self.ranks, widths[i] if widths else None)
        )

    def rows(self, prefix: str, part: str, *, has_bias: bool = False) -> Linear:
        """A matrix over inputs of which each rank has a part: what the ranks get adds up to its outputs."""
        name, is_added_here = f"{prefix}{part}", has_bias and self.ranks.rank == 0
        kept = self._kept(f"{name}.weight")
        weight = self._copy(share(self._source.get(f"{name}.weight"), 1, self.ranks)) if kept is None else kept
        return make_linear(weight, self.tensor(f"{name}.bias") if is_added_here else None)

    def outputs(self, name: str) -> torch.Tensor:
        """This rank's equal part [out_features / ranks, in_features] of a matrix's outputs."""
        return self._copy(share(self._source.get(name), 0, self.ranks))

    def head(self, embedding: Matrix | None) -> Linear:
        """This rank's part of what gives logits: of the embedding, or of a matrix of its own for None.

        Compiled ones give float32: near 20, bfloat16 has steps of 1/8, in which many tokens are equal.
        """
        weight = embedding if embedding is not None else self._kept("lm_head.weight")
        if weight is None:
            weight = self._copy(vocabulary_share(self._source.get("lm_head.weight"), self.ranks))
        elif isinstance(weight, torch.Tensor):
            weight = vocabulary_share(weight, self.ranks)
        return make_linear(weight, keeps_float32=True)

    def _fused(
        self, prefix: str, parts: tuple[str, ...], has_bias: bool, cut: Callable[[torch.Tensor, int], torch.Tensor]
    ) -> Linear:
        """Matrices, of each what `cut` makes of it and its number, as one; what stays in blocks is never cut."""

        def fused(kind: str) -> torch.Tensor:
            wholes = [self._source.get(f"{prefix}{part}.{kind}") for part in parts]
            tensors = [cut(whole, i).to(self.device).to(self.dtype) for i, whole in enumerate(wholes)]
            return self._counted(torch.cat(tensors))

        bias = fused("bias") if has_bias else None
        kept = {name: self._kept(name) for name in (f"{prefix}{part}.weight" for part in parts)}
        if not any(kept.values()):
            return make_linear(fused("weight"), bias)
        return make_joined([self.tensor(name) if one is None else one for name, one in kept.items()], bias)

    def _kept(self, name: str) -> QuantisedTensor | None:
        """The blocks of a matrix, if it has any and may stay in them."""
        may_stay = self._quantization != "none" and self.ranks.size == 1
        stored = self._source.get_quantised(name) if may_stay else None
        if stored is None or (self._quantization == "auto" and not has_kernel(self.device, self.dtype)):
            return None
        self.block_bytes += stored.nbytes
        return stored.to(self.device, self.dtype)

    def _copy(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        # A GPU converts what has arrived; in one call the processor would before it leaves. A view of the mapped file
        # would keep the whole file mapped, and resident beside the packed weights.
        return self._counted(tensor.to(self.device).to(dtype or self.dtype, copy=self.device.type == "cpu"))

    def _counted(self, tensor: torch.Tensor) -> torch.Tensor:
        self.plain_bytes += tensor.nbytes
        return tensor
