"""Quantisation-aware training: a model is trained with the weights that quantisation will produce.

Each matrix of a layer is rounded in every forward pass. Its gradient passes as if it were not (straight-through
estimator; Bengio et al., arXiv 1308.3432; Jacob et al., arXiv 1712.05877).
"""

from typing import Any

import torch
from torch.nn.utils import parametrize

from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.quantization.formats.base import Scheme
from bakeoff.reference_engine.tools.importance import layer_matrices

_ORIGINAL = ".parametrizations.weight.original"


class _Rounded(torch.nn.Module):
    def __init__(self, scheme: Scheme) -> None:
        super().__init__()
        self._scheme = scheme

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            error = self._scheme.nearest(weight).dequantised().to(weight.dtype) - weight
        return weight + error


def round_matrices(model: Any, scheme: Scheme) -> None:  # noqa: ANN401 (see load_model)
    """Makes the model compute with rounded matrices; matrices whose width does not suit the scheme stay plain.

    Args:
        model: of Transformers, of a family in `transformers_model.FAMILIES`.
        scheme: how each matrix is rounded.

    Raises:
        ConfigError: no matrix suits the scheme.
    """
    suited = [module for _, module in layer_matrices(model) if scheme.suits(module.in_features)]
    if not suited:
        raise ConfigError("--rounded-to: blocks of the method divide no width of the matrices; choose another")
    for module in suited:
        # Without `unsafe` the matrix would be rounded once more, only to check that its shape stays the same.
        parametrize.register_parametrization(module, "weight", _Rounded(scheme), unsafe=True)


def plain_name(name: str) -> str:
    """A parameter's name without the suffix that `round_matrices` causes."""
    return name.removesuffix(_ORIGINAL) + ".weight" if name.endswith(_ORIGINAL) else name


def plain_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights before rounding, under the names of a model that rounds none."""
    return {plain_name(name): tensor for name, tensor in model.state_dict().items()}
