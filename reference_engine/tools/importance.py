"""Importance of layers, neurons, KV groups and single inputs to a model, measured with forward hooks on a text.

Layers: one minus the cosine similarity of the residual stream before and after (block influence in ShortGPT, Men et
al., arXiv 2403.03853). Neurons of an MLP: mean magnitude of their activation times the norm of their column of the down
projection, that is, the length of their contribution. KV groups: mean norm of their heads' contribution. Inputs of
matrices: their norm over all tokens (Wanda, Sun et al., arXiv 2306.11695).
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import cosine_similarity

from bakeoff.reference_engine.core.model_config import ModelConfig

MATRICES = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
    "mlp.down_proj",
)  # fmt: skip
"""The matrices of a layer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Importance:
    """Means over the tokens of a text; float64.

    Attributes:
        layers: [num_hidden_layers].
        neurons: [num_hidden_layers, intermediate_size].
        groups: [num_hidden_layers, num_key_value_heads]; a group is a key-value head with its queries.
    """

    layers: torch.Tensor
    neurons: torch.Tensor
    groups: torch.Tensor


@torch.inference_mode()
def measure(model: Any, config: ModelConfig, pieces: Sequence[Sequence[int]]) -> Importance:  # noqa: ANN401 (see load_model)
    """Measures the parts that can be removed.

    Args:
        model: of Transformers.
        config: its shapes.
        pieces: token ids of independent texts.
    """
    depth = config.num_hidden_layers
    layers = torch.zeros(depth, dtype=torch.float64)
    neurons = torch.zeros(depth, config.intermediate_size, dtype=torch.float64)
    groups = torch.zeros(depth, config.num_key_value_heads, dtype=torch.float64)
    with contextlib.ExitStack() as hooks:

        def listen(index: int, layer: Any) -> None:  # noqa: ANN401 (a module)
            def on_layer(_: Any, inputs: Any, named: Any, output: Any) -> None:  # noqa: ANN401
                before = inputs[0] if inputs else named["hidden_states"]
                after = output[0] if isinstance(output, tuple) else output
                layers[index] += (1 - cosine_similarity(before.double(), after.double(), dim=-1)).sum().cpu()

            def on_down(module: Any, inputs: Any) -> None:  # noqa: ANN401
                lengths = module.weight.float().norm(dim=0)
                neurons[index] += (inputs[0].abs().flatten(0, -2).sum(0) * lengths).double().cpu()

            def on_out(module: Any, inputs: Any) -> None:  # noqa: ANN401
                rows = inputs[0].flatten(0, -2).unflatten(-1, (config.num_key_value_heads, -1))
                columns = module.weight.unflatten(-1, (config.num_key_value_heads, -1))
                added = torch.einsum("tgd,hgd->tgh", rows, columns)
                groups[index] += added.norm(dim=-1).sum(0).double().cpu()

            for hook in (
                layer.register_forward_hook(on_layer, with_kwargs=True),
                layer.mlp.down_proj.register_forward_pre_hook(on_down),
                layer.self_attn.o_proj.register_forward_pre_hook(on_out),
            ):
                hooks.callback(hook.remove)

        for index, layer in enumerate(model.model.layers):
            listen(index, layer)
        _run(model, pieces)
    tokens = sum(map(len, pieces))
    return Importance(layers / tokens, neurons / tokens, groups / tokens)


@torch.inference_mode()
def input_norms(model: Any, pieces: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:  # noqa: ANN401 (see load_model)
    """Norms over all tokens of the inputs [in_features] of each layer's matrices, by the name of the weight."""
    squares: dict[str, torch.Tensor] = {}
    with contextlib.ExitStack() as hooks:
        for name, module in layer_matrices(model):
            squares[name] = torch.zeros(module.in_features, dtype=torch.float64)
            hooks.callback(module.register_forward_pre_hook(_adds_squares(squares[name])).remove)
        _run(model, pieces)
    return {name: total.sqrt() for name, total in squares.items()}


def _adds_squares(total: torch.Tensor) -> Callable[[Any, Any], None]:
    def on_input(_: Any, inputs: Any) -> None:  # noqa: ANN401
        total.add_(inputs[0].double().square().flatten(0, -2).sum(0).cpu())

    return on_input


def layer_matrices(model: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Linear layers of all decoder layers, by the names of their weights."""
    for index, layer in enumerate(model.model.layers):
        for name in MATRICES:
            yield f"model.layers.{index}.{name}.weight", layer.get_submodule(name)


def _run(model: Any, pieces: Sequence[Sequence[int]]) -> None:  # noqa: ANN401
    for piece in pieces:
        model.model(input_ids=torch.tensor([piece], device=model.device), use_cache=False)
