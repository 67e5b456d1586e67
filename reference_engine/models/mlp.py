"""The gated feed-forward network (GLU variants, arXiv 2002.05202)."""

from collections.abc import Callable

import torch
from torch.nn.functional import gelu

from bakeoff.reference_engine.models.linear import norm_for, silu_mul_for
from bakeoff.reference_engine.models.names import LLAMA_PARTS
from bakeoff.reference_engine.models.weights import Weights
from bakeoff.reference_engine.quantization.matrix import Linear

FeedForward = Callable[[torch.Tensor], torch.Tensor]
"""Rows [num_tokens, hidden_size] -> this rank's partial result of that shape; rows are independent."""


class GatedMlp:
    """down(activation(gate(x)) · up(x)); a `FeedForward`.

    Args:
        weights: of the model.
        prefix: of the names of its matrices.
        has_bias: whether its matrices have biases.
        combine: [rows, 2 · dim], gates first -> [rows, dim]; None for SwiGLU.
        parts: names of the gate, up and down matrices.
        is_whole: whether this rank computes all of it.

    Attributes:
        norm: makes what it is called with, see `norm_for`.
        matrices: gates and up, and down.
    """

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        *,
        has_bias: bool = False,
        combine: Callable[[torch.Tensor], torch.Tensor] | None = None,
        parts: tuple[str, str, str] = LLAMA_PARTS,
        is_whole: bool = False,
    ) -> None:
        gates, last = parts[:2], parts[2]
        if is_whole:
            gate_up, down = (weights.linear(prefix, names, has_bias=has_bias) for names in (gates, (last,)))
        else:
            gate_up = weights.columns(prefix, gates, has_bias=has_bias)
            down = weights.rows(prefix, last, has_bias=has_bias)
        self.matrices: tuple[Linear, Linear] = (gate_up, down)
        self.norm = norm_for(gate_up, weights.kernels)
        self._combine = combine or silu_mul_for(down, weights.kernels)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        gate_up, down = self.matrices
        return down(self._combine(gate_up(rows)))


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """GeGLU's activation with the tanh approximation of GELU (arXiv 1606.08415)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gelu(gate, approximate="tanh").mul_(up)
