"""Writes EAGLE-3 heads in the layout of the speculators project (version 0.9), which vLLM can load, too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bakeoff.reference_engine.core.files import read_json
from bakeoff.reference_engine.core.model_config import config_to_hf
from bakeoff.reference_engine.models.eagle import SPECULATORS_TYPE, EagleConfig
from bakeoff.reference_engine.tools.checkpoint_folder import write_json, write_weights

_LAYOUT_VERSION = "0.9.0"
_NOT_OF_A_LAYER = ("architectures", "bos_token_id", "eos_token_id", "dtype")


def write_head(
    directory: Path,
    config: EagleConfig,
    tensors: Mapping[str, torch.Tensor],
    *,
    tokens: torch.Tensor | None,
    model: Path,
    num_tokens: int,
) -> None:
    """Writes config.json and model.safetensors.

    Args:
        directory: must exist.
        config: config of the head, with known depths.
        tensors: named as by `eagle.head_shapes`, without the maps of the vocabulary.
        tokens: int64 [draft_vocab_size], ascending, the token of each row of the head's logits; None for all.
        model: checkpoint directory of the head's model.
        num_tokens: drafts per step that it suggests to engines.
    """
    maps: dict[str, torch.Tensor] = {}
    if tokens is not None:
        is_drafted = torch.zeros(config.layer.vocab_size, dtype=torch.bool)
        maps["d2t"] = tokens - torch.arange(len(tokens))
        maps["t2d"] = is_drafted.index_fill_(0, tokens, value=True)
    write_weights(directory, {**tensors, **maps})
    write_json(directory / "config.json", _config_json(config, model, num_tokens))


def _config_json(config: EagleConfig, model: Path, num_tokens: int) -> dict[str, Any]:
    layer = {name: value for name, value in config_to_hf(config.layer).items() if name not in _NOT_OF_A_LAYER}
    return {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": config.draft_vocab_size,
        "dtype": config.layer.dtype,
        "eagle_aux_hidden_state_layer_ids": None if config.taps is None else list(config.taps),
        "norm_before_fc": False,
        "norm_before_residual": config.norm_before_residual,
        "speculators_config": {
            "algorithm": SPECULATORS_TYPE,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "accept_tolerance": 0.0,
                    "proposal_type": "greedy",
                    "speculative_tokens": num_tokens,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {
                "architectures": read_json(model / "config.json").get("architectures") or [],
                "name_or_path": str(model),
            },
        },
        "speculators_model_type": SPECULATORS_TYPE,
        "speculators_version": _LAYOUT_VERSION,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
    }
