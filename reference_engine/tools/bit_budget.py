"""Chooses how each layer is quantised so that a checkpoint stays within a number of bytes.

A layer's sensitivity is the KL divergence of the model's distributions from those with only this layer quantised. It
is measured here; HAWQ (Dong et al., arXiv 1905.03696) estimates it from the curvature of the loss. The divergences of
several layers are assumed to add up.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import kl_div, linear

from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.quantization.formats.base import Scheme
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix
from bakeoff.reference_engine.tools.layer_quantisers import Tensors
from bakeoff.reference_engine.tools.layer_stream import LayerStream

PLAIN = "plain"
_SLAB_TOKENS = 256  # tokens whose logits are computed at a time


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one way to quantise a layer.

    Attributes:
        nbytes: size of the layer's tensors.
        divergence: mean over tokens, nats, of the model with only this layer quantised.
    """

    nbytes: int
    divergence: float


def layer_costs(
    source: SafetensorsDirectory,
    pieces: Sequence[Sequence[int]],
    schemes: Mapping[str, Scheme],
    quantised_modules: Sequence[Sequence[str]],
    device: torch.device,
) -> list[dict[str, Cost]]:
    """Measures each layer with each scheme, and unquantised (`PLAIN`).

    Each layer is read once. The hidden states of every variant with an earlier layer quantised pass through the later
    layers, so memory holds the hidden states of the text for each layer and scheme.

    Args:
        source: plain checkpoint of a family in `transformers_model.FAMILIES`.
        pieces: token ids of texts that do not see each other.
        schemes: candidates, by name.
        quantised_modules: for each layer, names in it of the matrices that are quantised.
        device: to compute on.
    """
    stream = LayerStream(source, pieces, device, torch.float32)
    plain, variants, sizes = stream.inputs, dict[tuple[int, str], list[torch.Tensor]](), dict[tuple[int, str], int]()
    costs: list[dict[str, Cost]] = []
    for index, modules in enumerate(quantised_modules):
        tensors = stream.tensors(index)
        layer = stream.layer(index, tensors)
        variants = {key: stream.run(index, layer, hidden) for key, hidden in variants.items()}
        costs.append({PLAIN: Cost(sum(tensor.nbytes for tensor in tensors.values()), 0.0)})
        for name, scheme in schemes.items():
            matrices = {module: scheme.nearest(tensors[f"{module}.weight"]) for module in modules}
            variants[index, name] = stream.run(index, stream.layer(index, _rounded(tensors, matrices)), plain)
            sizes[index, name] = _nbytes(tensors, matrices)
        plain = stream.run(index, layer, plain)
    expected, head = torch.cat([hidden[0] for hidden in plain]), _Head(source, device)
    for (index, name), hidden in variants.items():
        divergence = head.divergence(expected, torch.cat([piece[0] for piece in hidden]))
        costs[index][name] = Cost(sizes[index, name], divergence)
    return costs


def cheapest(costs: Sequence[Mapping[str, Cost]], budget: int) -> list[str]:
    """Names each layer's scheme: starts from the smallest and takes the steps that save the most divergence a byte.

    Args:
        costs: of each layer, by name of scheme.
        budget: bytes of all layers.

    Raises:
        ConfigError: the smallest are too large.
    """
    names = [min(layer, key=lambda name: layer[name].nbytes) for layer in costs]
    left = budget - sum(layer[name].nbytes for layer, name in zip(costs, names, strict=True))
    if left < 0:
        raise ConfigError(f"the layers take {(budget - left) / 1e6:,.1f} MB at least, {-left / 1e6:,.1f} MB too much")
    while steps := [
        ((layer[now].divergence - cost.divergence) / (cost.nbytes - layer[now].nbytes), index, name)
        for index, (layer, now) in enumerate(zip(costs, names, strict=True))
        for name, cost in layer.items()
        if cost.divergence < layer[now].divergence and 0 < cost.nbytes - layer[now].nbytes <= left
    ]:
        _, index, name = max(steps)
        left -= costs[index][name].nbytes - costs[index][names[index]].nbytes
        names[index] = name
    return names


def _rounded(tensors: Tensors, matrices: Mapping[str, QuantisedMatrix]) -> Tensors:
    return {**tensors, **{f"{module}.weight": matrix.dequantised() for module, matrix in matrices.items()}}


def _nbytes(tensors: Tensors, matrices: Mapping[str, QuantisedMatrix]) -> int:
    plain_bytes = sum(tensor.nbytes for name, tensor in tensors.items() if name.removesuffix(".weight") not in matrices)
    return plain_bytes + sum(matrix.nbytes for matrix in matrices.values())


class _Head:
    """Final norm and output matrix of a model."""

    def __init__(self, source: SafetensorsDirectory, device: torch.device) -> None:
        name = "model.embed_tokens.weight" if source.config.tie_word_embeddings else "lm_head.weight"
        self._norm, self._matrix = (source.get(key).to(device, torch.float32) for key in ("model.norm.weight", name))
        self._eps = source.config.rms_norm_eps

    @torch.inference_mode()
    def divergence(self, expected: torch.Tensor, other: torch.Tensor) -> float:
        """Mean of KL(expected ‖ other) over the hidden states [tokens, hidden_size] after the last layer, in nats."""
        total = 0.0
        for slabs in zip(expected.split(_SLAB_TOKENS), other.split(_SLAB_TOKENS), strict=True):
            p, q = map(self._log_probs, slabs)
            total += float(kl_div(q, p, reduction="sum", log_target=True))
        return total / len(expected)

    def _log_probs(self, hidden: torch.Tensor) -> torch.Tensor:
        states = hidden.to(self._norm.device, torch.float32)
        scaled = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + self._eps) * self._norm
        return linear(scaled, self._matrix).log_softmax(-1)
