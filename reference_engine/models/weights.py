"""Moves a checkpoint's tensors to the model's device and dtype, quantises them, and shards them over ranks."""

import logging
from collections.abc import Callable, Iterable, Sequence

import torch

from bakeoff.reference_engine.core.config import QuantizationName
from bakeoff.reference_engine.core.ranks import ALONE, Ranks, share, span, vocabulary_share
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.kernels.cpu import Kernels, best_kernels
from bakeoff.reference_engine.models.linear import (
    InvariantLinear,
    Matrix,
    PlainLinear,
    make_head,
    make_joined,
    make_linear,
)
from bakeoff.reference_engine.models.offload import WeightOffload
from bakeoff.reference_engine.models.source import WeightSource
from bakeoff.reference_engine.quantization.blocks import BlockMatrix
from bakeoff.reference_engine.quantization.matrix import Linear, QuantisedMatrix
from bakeoff.reference_engine.quantization.methods import METHODS

_log = logging.getLogger(__name__)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Weights:
    """Provides tensors in the model's dtype on its device, and linear layers over them.

    Args:
        source: the weights under Hugging Face's names.
        dtype: of weights and activations.
        device: of the model.
        norm_offset: added to the weights of norms (Gemma stores them minus 1).
        ranks: this rank and its collectives; only this rank's shards are copied.
        quantization: see `EngineConfig.quantization`.
        batch_invariant: whether a token's bits must not depend on the batch, which requires `has_triton`; matrices that
            `quantization` may keep then become plain.
        offload: chooses products of layers whose weights stay in host memory; None for none.
        whole_experts: whether a rank has some experts as a whole, see `experts_share`, instead of a part of each.
        sinks_seen_from: the last position from which queries look at sinks: later ones see them as if they stood right
            before the window (StreamingLLM, arXiv 2309.17453, section 3.2). None if all look from their own position.

    Attributes:
        batch_invariant: as given.
        kernels: the fastest small operations for device and dtype.
        offload: as given.
        may_capture: whether the model's steps can be CUDA graphs, as far as it is built: `QuantisedMatrix.may_capture`
            holds for all matrices, and no network waits for the device.
        ranks: as given.
        whole_experts: as given.
        sinks_seen_from: as given.
        plain_bytes: bytes of plain tensors provided so far.
        quantised_bytes: bytes of quantised tensors provided so far.
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
        batch_invariant: bool = False,
        offload: WeightOffload | None = None,
        whole_experts: bool = False,
        sinks_seen_from: int | None = None,
    ) -> None:
        self.whole_experts = whole_experts
        self.offload: WeightOffload | None = offload
        self.sinks_seen_from: int | None = sinks_seen_from
        self.batch_invariant = batch_invariant
        self._source = source
        self._norm_offset = norm_offset
        self._quantization: QuantizationName = quantization
        self.plain_bytes: int = 0
        self.quantised_bytes: int = 0
        self.may_capture: bool = True
        self._warned: set[str] = set()
        self.dtype = dtype
        self.device = device
        self.ranks = ranks
        self.kernels: Kernels = best_kernels(device, dtype, batch_invariant=batch_invariant)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """One tensor; in `dtype` if that is given."""
        return self._copy(self._get(name, dtype), dtype)

    def matrix(self, name: str) -> Matrix:
        """One matrix; quantised if it is stored so and may stay so."""
        stored = self._stored(name, is_outer=True)
        return self.tensor(name) if stored is None else self._placed(stored)

    def norm(self, prefix: str) -> torch.Tensor:
        """The weights [dim] of the RMS norm at `prefix`; float32 if they are stored minus an offset.

        Near 1, bfloat16 has steps of 1/128: it would round away most of such a weight's information.
        """
        if not self._norm_offset:
            return self.tensor(f"{prefix}.weight")
        return self.tensor(f"{prefix}.weight", torch.float32).add_(self._norm_offset)

    def linear(self, prefix: str, parts: tuple[str, ...], *, has_bias: bool = False) -> Linear:
        """Fuses matrices with the same input, outputs side by side; replicated on every rank."""
        return self._fused(prefix, parts, has_bias, lambda total, _: slice(0, total))

    def columns(
        self, prefix: str, parts: tuple[str, ...], *, has_bias: bool = False, widths: Sequence[int] = ()
    ) -> Linear:
        """Fuses matrices as `linear` does, with only this rank's outputs of each.

        Args:
            prefix: of the names.
            parts: rest of the names, one per matrix.
            has_bias: whether the matrices have biases.
            widths: outputs per rank of each matrix, see `share`; () for equal shards.
        """
        return self._fused(
            prefix, parts, has_bias, lambda total, i: span(total, self.ranks, widths[i] if widths else None)
        )

    def rows(self, prefix: str, part: str, *, has_bias: bool = False) -> Linear:
        """A matrix with only this rank's inputs: the sum over ranks is its output."""
        name, is_added_here = f"{prefix}{part}.weight", has_bias and self.ranks.rank == 0
        matrix = self._kept(name)
        weight: Matrix | None = None
        if matrix is not None:
            columns = span(matrix.shape[1], self.ranks)
            if columns.start % matrix.column_unit == 0 == columns.stop % matrix.column_unit:
                weight = self._placed(matrix if self.ranks.size == 1 else matrix.columns(columns.start, columns.stop))
        if weight is None:
            weight = self._copy(share(self._get(name), 1, self.ranks))
        bias = self.tensor(f"{prefix}{part}.bias") if is_added_here else None
        return self._offered(make_linear(weight, bias, batch_invariant=self.batch_invariant))

    def are_plain(self, names: Iterable[str]) -> bool:
        """Whether matrices are neither kept as stored codes nor quantised when they are loaded."""
        return self._quantization not in METHODS and all(self._stored(name) is None for name in names)

    def stacked(self, names: Iterable[Sequence[str]], dim: int | None) -> torch.Tensor:
        """Plain tensors of networks of one shape, [networks, outputs, …].

        Args:
            names: of the tensors of each network whose outputs go side by side.
            dim: of which this rank has its equal part; None for all.
        """
        networks, stack = list(names), torch.empty(0)
        for i, network in enumerate(networks):  # one after another, so that only one network's tensors exist twice
            tensors = [self._get(name) for name in network]
            own = torch.cat([tensor if dim is None else share(tensor, dim, self.ranks) for tensor in tensors])
            if not i:
                stack = torch.empty(len(networks), *own.shape, dtype=self.dtype, device=self.device)
            stack[i].copy_(own)
        return self._counted(stack)

    def outputs(self, name: str) -> torch.Tensor:
        """This rank's equal part [out_features / ranks, in_features] of a matrix's outputs."""
        return self._copy(share(self._get(name), 0, self.ranks))

    def head(self, embedding: Matrix | None) -> Linear:
        """This rank's shard of the output matrix: of `embedding` if tied, else (None) of lm_head."""
        weight = embedding
        if weight is None:
            stored = self._stored("lm_head.weight", is_outer=True)
            weight = self._get("lm_head.weight") if stored is None else self._placed(stored)
        if isinstance(weight, torch.Tensor):
            own_rows = vocabulary_share(weight, self.ranks)
            return self._head(own_rows if embedding is not None else self._copy(own_rows))
        if weight.shape[0] % self.ranks.size:
            return self._head(vocabulary_share(weight.dequantised(), self.ranks))
        return self._head(weight if self.ranks.size == 1 else weight.rows(span(weight.shape[0], self.ranks)))

    def router(self, prefix: str, *, has_bias: bool = False) -> Linear:
        """A matrix in float32; it chooses between experts whose scores may be nearly equal."""
        weight = self.tensor(f"{prefix}.weight", torch.float32)
        bias = self.tensor(f"{prefix}.bias", torch.float32) if has_bias else None
        return InvariantLinear(weight, bias) if self.batch_invariant else PlainLinear(weight, bias)

    def _head(self, weight: Matrix) -> Linear:
        return make_head(weight, batch_invariant=self.batch_invariant)

    def _fused(self, prefix: str, parts: tuple[str, ...], has_bias: bool, cut: Callable[[int, int], slice]) -> Linear:
        """Fuses the rows of each matrix that `cut` selects, given their number and the matrix's index."""

        def plain(part: str, i: int, kind: str) -> torch.Tensor:
            whole = self._get(f"{prefix}{part}.{kind}")
            return whole[cut(whole.shape[0], i)].to(self.device).to(self.dtype)

        matrices = [self._kept(f"{prefix}{part}.weight") for part in parts]
        biases = [plain(part, i, "bias") for i, part in enumerate(parts)] if has_bias else []
        bias = self._counted(torch.cat(biases)) if biases else None
        if all(matrix is None for matrix in matrices):
            weight = torch.cat([plain(part, i, "weight") for i, part in enumerate(parts)])
            return self._offered(make_linear(self._counted(weight), bias, batch_invariant=self.batch_invariant))
        weights = [
            self._copy(plain(part, i, "weight"))
            if matrix is None
            else self._placed(matrix if self.ranks.size == 1 else matrix.rows(cut(matrix.shape[0], i)))
            for i, (part, matrix) in enumerate(zip(parts, matrices, strict=True))
        ]
        return self._offered(make_joined(weights, bias, batch_invariant=self.batch_invariant))

    def _offered(self, linear: Linear) -> Linear:
        return linear if self.offload is None else self.offload.offer(linear)

    def _kept(self, name: str) -> QuantisedMatrix | None:
        """The matrix as stored, if it may stay so, or as quantised by `quantization`."""
        method = METHODS.get(self._quantization)
        if method is None:
            return self._stored(name)
        if self._source.get_quantised(name) is not None:
            raise ConfigError(
                f"--quantization {self._quantization} is for plain weights, and this checkpoint is quantised already; "
                "leave the option out"
            )
        made = method.make(self._get(name).to(self.device).to(self.dtype).contiguous())
        if made is not None and not made.has_kernel(self.device, self.dtype):
            self._warn_once(
                f"--quantization {self._quantization}: no kernel multiplies these codes on {self.device.type} in "
                f"{_dtype_name(self.dtype)}, so that every step decodes all weights, which can take twenty times as "
                "long as plain weights; it only saves memory"
            )
        return made

    def _stored(self, name: str, *, is_outer: bool = False) -> QuantisedMatrix | None:
        """The stored matrix, possibly the embedding or the head, if it is quantised and may stay so."""
        stored = None if self._quantization == "none" else self._source.get_quantised(name)
        if stored is None or self._quantization != "auto":
            return stored
        # On a GPU no kernel looks up some rows of blocks, and a head may share its matrix with the embedding.
        is_looked_up = is_outer and isinstance(stored, BlockMatrix) and self.device.type != "cpu"
        has_kernel = stored.has_kernel(self.device, self.dtype)
        if not has_kernel:
            self._warn_once(
                f"no kernel multiplies the checkpoint's quantised weights on {self.device.type} in "
                f"{_dtype_name(self.dtype)}: they are decoded once, and take the memory and the time of plain weights"
            )
        is_plain = self.batch_invariant or is_looked_up or not has_kernel
        return None if is_plain else stored

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            _log.warning(message)

    def _placed(self, matrix: QuantisedMatrix) -> QuantisedMatrix:
        self.quantised_bytes += matrix.held_bytes(self.device, self.dtype)
        self.may_capture = self.may_capture and matrix.may_capture
        return matrix.to(self.device, self.dtype)

    def _get(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        return self._source.get(name, dtype or self.dtype, self.device)

    def _copy(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        # Two calls, so that the GPU converts after the transfer; in one call the CPU would convert before it. A copy,
        # because a view would keep the whole file mapped, and resident beside the packed weights. Contiguous, because
        # a rank's columns are a strided view, which on a GPU no conversion copies, and kernels expect whole rows.
        placed = tensor.to(self.device).to(dtype or self.dtype, copy=self.device.type == "cpu")
        return self._counted(placed.contiguous())

    def _counted(self, tensor: torch.Tensor) -> torch.Tensor:
        self.plain_bytes += tensor.nbytes
        return tensor
