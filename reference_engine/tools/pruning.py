"""Removes layers, neurons, KV groups and single weights of a checkpoint; the rest is a normal, smaller checkpoint.

Structure is removed first, by its importance in the whole model (`importance`); then weights, by the activations of the
rest. Magnitude: Han et al., arXiv 1506.02626, smallest of each matrix. Activation: Wanda (Sun et al., arXiv
2306.11695), smallest |weight| · norm of its input in each row. Embedding and head keep all their weights.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from bakeoff.reference_engine.core.files import read_json, read_text
from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.engine.resolution import resolve_device
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.tools.checkpoint_folder import (
    check_target,
    copy_tokenizer,
    new_checkpoint,
    write_json,
    write_weights,
)
from bakeoff.reference_engine.tools.importance import MATRICES, Importance, input_norms, measure
from bakeoff.reference_engine.tools.transformers_model import load_model, open_directory, pieces_of

_LAYERS = "model.layers."
Tensors = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class Pruning:
    """Parts to keep; None keeps all. The annotations are the help texts of the options.

    Raises:
        ConfigError: a value outside these bounds, or nothing to prune.
    """

    layers: Annotated[int | None, "number of layers to keep"] = None
    neurons: Annotated[float | None, "share of each layer's MLP neurons to keep"] = None
    heads: Annotated[float | None, "share of each layer's key-value heads to keep, each with its query heads"] = None
    weights: Annotated[float | None, "share of each matrix's weights to keep; the others become zero"] = None
    by: Annotated[Literal["activation", "magnitude"], "score of single weights: activation (Wanda) or magnitude"] = (
        "activation"
    )
    calibration_tokens: Annotated[int, "tokens of the text to measure on"] = 4096

    def __post_init__(self) -> None:
        if (self.layers, self.neurons, self.heads, self.weights) == (None, None, None, None):
            raise ConfigError("nothing to prune; give --layers, --neurons, --heads or --weights")
        for name in ("neurons", "heads", "weights"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise ConfigError(f"--{name} is the share to keep, above 0 and at most 1, not {share}")
        if self.calibration_tokens < 2:
            raise ConfigError(f"--calibration-tokens must be at least 2, not {self.calibration_tokens}")


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """Indices in ascending order: of layers, and in each of those of neurons and of KV groups."""

    layers: list[int]
    neurons: list[list[int]]
    groups: list[list[int]]


def prune(
    source: Path,
    target: Path,
    pruning: Pruning,
    *,
    text: Path | None,
    device: str = "auto",
    say: Callable[[str], None],
) -> None:
    """Writes `target`: the pruned checkpoint in the dtype of the source, its tokenizer, and pruning.json.

    Args:
        source: checkpoint directory of a family in `transformers_model.FAMILIES`.
        target: directory to create; an existing one is replaced only if it is empty or another checkpoint.
        pruning: parts to keep.
        text: UTF-8 file to measure importance on; None for the standard input.
        device: ``auto``, ``cpu`` or ``cuda``.
        say: is called with one line of text at each stage.

    Raises:
        CheckpointError: the source cannot be read, or the target cannot be replaced.
        ConfigError: the model has fewer layers, or Transformers is not installed.
        RequestError: the text cannot be read, or is too short.
    """
    check_target(target)
    if target.resolve() == source.resolve():
        raise ConfigError(f"--out {target} is the model itself; give another directory")
    checkpoint = open_directory(source)
    config = checkpoint.config
    if pruning.layers is not None and not 1 <= pruning.layers <= config.num_hidden_layers:
        raise ConfigError(f"--layers must be 1 to {config.num_hidden_layers}, what the model has, not {pruning.layers}")
    place = torch.device(resolve_device(device))
    words = read_text(text)
    pieces = pieces_of(checkpoint, words, pruning.calibration_tokens)
    say(f"measuring {source} on {sum(map(len, pieces))} tokens")
    importance = measure(load_model(source, place), config, pieces)
    kept = kept_parts(importance, pruning)
    tensors = kept_tensors(SafetensorsDirectory(source), config, kept)
    with new_checkpoint(target) as scratch:
        write_json(scratch / "config.json", kept_config(read_json(source / "config.json"), config, kept))
        copy_tokenizer(source, scratch)
        if pruning.weights is not None:
            norms = None
            if pruning.by == "activation":
                say("measuring activations of what remains")
                write_weights(scratch, tensors)
                norms = input_norms(load_model(scratch, place), pieces)
            zero_weights(tensors, pruning.weights, norms)
        write_weights(scratch, tensors)
        write_json(scratch / "pruning.json", _record(source, pruning, importance, kept, tensors, text=words))
    say(f"wrote {target}: {_millions(_elements(tensors))} of {_millions(_source_elements(source))} M parameters")


def kept_parts(importance: Importance, pruning: Pruning) -> Kept:
    """The most important parts."""
    depth, width = importance.neurons.shape
    num_groups = importance.groups.shape[1]
    layers = _largest(importance.layers, pruning.layers or depth)
    neurons, groups = _count(pruning.neurons, width), _count(pruning.heads, num_groups)
    return Kept(
        layers,
        [_largest(importance.neurons[layer], neurons) for layer in layers],
        [_largest(importance.groups[layer], groups) for layer in layers],
    )


def _count(share: float | None, total: int) -> int:
    return total if share is None else max(1, round(share * total))


def _largest(scores: torch.Tensor, count: int) -> list[int]:
    """Indices of the largest scores in ascending order; of equal ones the first."""
    return sorted(scores.argsort(descending=True, stable=True)[:count].tolist())


def kept_tensors(source: SafetensorsDirectory, config: ModelConfig, kept: Kept) -> Tensors:
    """The tensors of the kept parts under their new names."""
    places = {layer: place for place, layer in enumerate(kept.layers)}
    tensors: Tensors = {}
    for name in source.names():
        if not name.startswith(_LAYERS):
            tensors[name] = source.get(name)
            continue
        number, _, rest = name.removeprefix(_LAYERS).partition(".")
        place = places.get(int(number))
        if place is not None:
            cut = _cut(rest, source.get(name), config, kept.neurons[place], kept.groups[place])
            tensors[f"{_LAYERS}{place}.{rest}"] = cut
    return tensors


def _cut(
    name: str, tensor: torch.Tensor, config: ModelConfig, neurons: Sequence[int], groups: Sequence[int]
) -> torch.Tensor:
    """One tensor of a layer with the kept neurons and KV groups; norms have neither."""
    queries = config.num_attention_heads // config.num_key_value_heads
    match name.split(".")[-2:]:
        case ["gate_proj" | "up_proj", _]:
            return tensor[list(neurons)]
        case ["down_proj", "weight"]:
            return tensor[:, list(neurons)]
        case ["q_proj", _]:
            return tensor[_rows(groups, queries * config.head_dim)]
        case ["k_proj" | "v_proj", _]:
            return tensor[_rows(groups, config.head_dim)]
        case ["o_proj", "weight"]:
            return tensor[:, _rows(groups, queries * config.head_dim)]
        case _:
            return tensor.clone()


def _rows(groups: Sequence[int], width: int) -> list[int]:
    return [row for group in groups for row in range(group * width, (group + 1) * width)]


def kept_config(raw: Mapping[str, Any], config: ModelConfig, kept: Kept) -> dict[str, Any]:
    """config.json of the kept parts."""
    num_groups = len(kept.groups[0])
    changed: dict[str, Any] = {
        "num_hidden_layers": len(kept.layers),
        "intermediate_size": len(kept.neurons[0]),
        "num_key_value_heads": num_groups,
        "num_attention_heads": num_groups * (config.num_attention_heads // config.num_key_value_heads),
        "head_dim": config.head_dim,  # its default depends on the number of heads
    }
    if "layer_types" in raw or len(set(config.windows)) > 1:
        windows = config.windows or (None,) * config.num_hidden_layers
        kinds = ["full_attention" if window is None else "sliding_attention" for window in windows]
        changed["layer_types"] = [kinds[layer] for layer in kept.layers]
    return {**raw, **changed}


def zero_weights(tensors: Tensors, share: float, norms: Mapping[str, torch.Tensor] | None) -> None:
    """Sets the least important weights of each layer's matrices to zero, in place.

    Args:
        tensors: of the model.
        share: share to keep.
        norms: norms of inputs [in_features], by name, which scale the weights of a row for comparison; None for
            magnitudes within each matrix.
    """
    for name, weight in tensors.items():
        if not name.endswith(tuple(f"{matrix}.weight" for matrix in MATRICES)):
            continue
        scores = weight.double().abs()
        scores = scores.flatten()[None] if norms is None else scores * norms[name]
        worst = scores.shape[1] - _count(share, scores.shape[1])
        unimportant = scores.argsort(dim=1, stable=True)[:, :worst]
        mask = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, unimportant, value=True)
        weight.masked_fill_(mask.view_as(weight), 0)


def _record(
    source: Path, pruning: Pruning, importance: Importance, kept: Kept, tensors: Tensors, *, text: str
) -> dict[str, Any]:
    """Content of pruning.json: measurements, and the kept parts."""
    neurons = [
        float(importance.neurons[layer, indices].sum() / importance.neurons[layer].sum().clamp_min(1e-300))
        for layer, indices in zip(kept.layers, kept.neurons, strict=True)
    ]
    matrices = [tensor for name, tensor in tensors.items() if name.endswith("_proj.weight")]
    return {
        "source": str(source),
        "settings": dataclasses.asdict(pruning),
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "parameters": {"source": _source_elements(source), "kept": _elements(tensors)},
        "zero_share_of_matrices": 1 - sum(int(m.count_nonzero()) for m in matrices) / sum(m.numel() for m in matrices),
        "importance": {
            "layers": importance.layers.tolist(),
            "kv_groups": importance.groups.tolist(),
            "kept_share_of_neurons": neurons,
        },
        "kept": {
            "layers": kept.layers,
            "neurons": kept.neurons,
            "kv_groups": kept.groups,
        },
    }


def _elements(tensors: Tensors) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


def _source_elements(source: Path) -> int:
    directory = SafetensorsDirectory(source)
    return sum(directory.get(name).numel() for name in directory.names())


def _millions(elements: int) -> str:
    return f"{elements / 1e6:,.1f}"
