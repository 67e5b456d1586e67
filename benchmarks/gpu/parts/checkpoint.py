"""One checkpoint of random weights for all sides of a comparison.

Engines that make random weights themselves make different ones, some mostly zeros, which draw less power: neither
joules nor, at the power limit, speeds would be comparable.
"""

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file

from bakeoff.reference_engine.loading.dummy import DummyWeights
from bakeoff.reference_engine.loading.tokenizer import number_tokenizer
from bakeoff.reference_engine.models.config_readers import config_from_hf
from bakeoff.reference_engine.models.names import layer_prefix
from bakeoff.reference_engine.quantization.formats.base import CheckpointFormat, IntegerScheme
from bakeoff.reference_engine.quantization.formats.registry import format_for, integer_format
from bakeoff.reference_engine.quantization.formats.schemes import Fp8Scheme

FormatName = Literal["int4", "fp8"]
FORMATS: dict[FormatName, CheckpointFormat] = {
    "int4": integer_format("pack-quantized", IntegerScheme(4, 128)),
    "fp8": format_for(Fp8Scheme()),
}
"""Of all matrices but embedding and head, as compressed-tensors: int4 in groups of 128, fp8 with a scale per output."""
_WEIGHT = ".weight"


@torch.inference_mode()
def write_checkpoint(folder: Path, raw: dict[str, Any], quantization: FormatName | None, device: str) -> None:
    """Writes a checkpoint unless there is one; config.json comes last.

    Args:
        folder: to create.
        raw: config.json, with ``torch_dtype``.
        quantization: of the matrices; None for plain ones.
        device: that generates the weights and rounds them.
    """
    if (folder / "config.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    config, encoding = config_from_hf(raw, "config"), None if quantization is None else FORMATS[quantization]
    weights, dtype = DummyWeights(config), getattr(torch, raw["torch_dtype"])
    prefixes = [layer_prefix(index) for index in range(config.num_hidden_layers)]
    names = {
        prefix: [name for name in weights.names() if name.startswith(prefix)] for prefix in prefixes
    }  # fmt: skip
    of_layers = {name for of_layer in names.values() for name in of_layer}
    parts = [*names.values(), [name for name in weights.names() if name not in of_layers]]
    weight_map: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file, tensors = f"model-{number:05}-of-{len(parts):05}.safetensors", dict[str, torch.Tensor]()
        for name in part:
            tensor, module = weights.get(name, dtype, torch.device(device)), name.removesuffix(_WEIGHT)
            scheme = None if encoding is None or tensor.ndim < 2 or name not in of_layers else encoding.scheme(module)
            if encoding is None or scheme is None:
                tensors[name] = tensor
                continue
            encoded = encoding.encode(module, scheme.nearest(tensor))
            tensors |= {f"{module}.{part_name}": stored for part_name, stored in encoded.items()}
        save_file(
            {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / file, {"format": "pt"}
        )
        weight_map |= dict.fromkeys(tensors, file)
    number_tokenizer(config.vocab_size).backend.save(str(folder / "tokenizer.json"))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    settings = {} if encoding is None else {"quantization_config": encoding.config()}
    (folder / "config.json").write_text(json.dumps(raw | settings), encoding="utf-8")
