"""A model in Transformers' classes, with only one decoder layer in memory at a time.

The arguments of layers (masks, rotations) come from the model's own forward pass, recorded by placeholder layers.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.models.names import layer_prefix


class _Recorder(nn.Module):
    """A placeholder for a layer: records its arguments, and passes the hidden states on."""

    def __init__(self, layer: Any) -> None:  # noqa: ANN401 (a module)
        super().__init__()
        if hasattr(layer, "attention_type"):
            self.attention_type = layer.attention_type  # some models choose the mask by it
        self.seen: list[tuple[torch.Tensor, dict[str, Any]]] = []

    def forward(self, hidden_states: torch.Tensor, **arguments: Any) -> torch.Tensor:  # noqa: ANN401
        self.seen.append((hidden_states, arguments))
        return hidden_states


class LayerStream:
    """The layers of a checkpoint of a family in `transformers_model.FAMILIES`.

    Args:
        source: its weights.
        pieces: token ids of independent texts.
        device: to compute on.
        dtype: to compute in.

    Attributes:
        depth: number of layers.
        inputs: of the first layer: the hidden states of each piece, [1, tokens, hidden_size] on the CPU.
    """

    def __init__(
        self, source: SafetensorsDirectory, pieces: Sequence[Sequence[int]], device: torch.device, dtype: torch.dtype
    ) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 (an optional extra)

        self._source, self._device, self._dtype = source, device, dtype
        config: Any = AutoConfig.from_pretrained(source.path, local_files_only=True)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype).model.eval()
        self._layers = list(model.layers)
        self.depth: int = len(self._layers)
        recorders = [_Recorder(layer) for layer in self._layers]
        model.layers = nn.ModuleList(recorders)
        model.embed_tokens = nn.Embedding.from_pretrained(self._tensor("model.embed_tokens.weight").to(dtype))
        model.rotary_emb = type(model.rotary_emb)(config=config).to(device)
        model.norm = nn.Identity()
        with torch.inference_mode():
            for piece in pieces:
                model(input_ids=torch.tensor([piece], device=device), use_cache=False)
        self._arguments = [[arguments for _, arguments in recorder.seen] for recorder in recorders]
        self.inputs: list[torch.Tensor] = [hidden.cpu() for hidden, _ in recorders[0].seen]

    def tensors(self, index: int) -> dict[str, torch.Tensor]:
        """A layer's weights by their names in it, on the device in their stored dtype."""
        return {name: self._tensor(f"{layer_prefix(index)}{name}") for name in self._layers[index].state_dict()}

    def layer(self, index: int, tensors: Mapping[str, torch.Tensor]) -> Any:  # noqa: ANN401 (a module)
        """A layer with the given weights, which may be on any device."""
        layer = copy.deepcopy(self._layers[index]).requires_grad_(False)
        weights = {name: tensor.to(self._device, self._dtype) for name, tensor in tensors.items()}
        layer.load_state_dict(weights, assign=True)
        return layer

    @torch.inference_mode()
    def run(self, index: int, layer: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:  # noqa: ANN401
        """Runs a layer on the hidden states of each piece: [1, tokens, hidden_size] on the CPU."""
        outputs: list[torch.Tensor] = []
        for hidden, arguments in zip(inputs, self._arguments[index], strict=True):
            output = layer(hidden.to(self._device), **arguments)
            outputs.append((output[0] if isinstance(output, tuple) else output).cpu())
        return outputs

    def _tensor(self, name: str) -> torch.Tensor:
        return self._source.get(name).to(self._device)
