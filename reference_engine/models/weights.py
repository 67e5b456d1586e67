"""Takes a checkpoint's tensors to where, and in the form in which, a model computes with them."""

from collections.abc import Callable, Sequence

import torch

from reference_engine.kernels.cpu import best_kernels
from reference_engine.loading.checkpoint import WeightSource
from reference_engine.models.linear import Linear, make_linear
from reference_engine.parallel.ranks import ALONE, Ranks, share, vocabulary_share


class Weights:
    """Tensors in the wanted dtype on the wanted device, and what multiplies by them.

    Args:
        source: the weights under Hugging Face's names.
        dtype: of weights and activations.
        device: where the model runs.
        norm_offset: added to the weights of norms (Gemma stores them less 1).
        ranks: who shares the model; only this one's part of what is cut is read.

    Attributes:
        kernels: the fastest small operations for such tensors.
        ranks: as given.
    """

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        norm_offset: float = 0.0,
        ranks: Ranks = ALONE,
    ) -> None:
        self._source = source
        self._norm_offset = norm_offset
        self.dtype = dtype
        self.device = device
        self.ranks = ranks
        self.kernels = best_kernels(device, dtype)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """One tensor, in another dtype if one is named."""
        return self._copy(self._source.get(name), dtype)

    def norm(self, prefix: str) -> torch.Tensor:
        """The weights [dim] of the RMS norm at `prefix`."""
        return self.tensor(f"{prefix}.weight", torch.float32).add_(self._norm_offset).to(self.dtype)

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
        weight = self._copy(share(self._source.get(f"{prefix}{part}.weight"), 1, self.ranks))
        is_added_here = has_bias and self.ranks.rank == 0
        return make_linear(weight, self.tensor(f"{prefix}{part}.bias") if is_added_here else None)

    def outputs(self, name: str) -> torch.Tensor:
        """This rank's equal part [out_features / ranks, in_features] of a matrix's outputs."""
        return self._copy(share(self._source.get(name), 0, self.ranks))

    def head(self, embedding: torch.Tensor | None) -> Linear:
        """This rank's part of what gives logits: of the embedding, or of a matrix of its own for None."""
        if embedding is not None:
            return make_linear(vocabulary_share(embedding, self.ranks))
        return make_linear(self._copy(vocabulary_share(self._source.get("lm_head.weight"), self.ranks)))

    def _fused(
        self, prefix: str, parts: tuple[str, ...], has_bias: bool, cut: Callable[[torch.Tensor, int], torch.Tensor]
    ) -> Linear:
        """Matrices, of each what `cut` makes of it and its number, as one."""

        def fused(kind: str) -> torch.Tensor:
            wholes = [self._source.get(f"{prefix}{part}.{kind}") for part in parts]
            return torch.cat([cut(whole, i).to(self.device, self.dtype) for i, whole in enumerate(wholes)])

        return make_linear(fused("weight"), fused("bias") if has_bias else None)

    def _copy(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        # A view of the mapped file would keep the whole file mapped, and resident beside the packed weights.
        return tensor.to(self.device, dtype or self.dtype, copy=True)
