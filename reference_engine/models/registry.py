"""Which families there are, by the `model_type` of config.json."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch

from reference_engine.engine.config import QuantizationName
from reference_engine.errors import CheckpointError
from reference_engine.loading.source import WeightSource
from reference_engine.models import deepseek_v2, gemma3, llama, mistral, mixtral, qwen2, qwen3, qwen3_moe
from reference_engine.models.config import ModelConfig, check_options
from reference_engine.models.decoder import Model
from reference_engine.models.weights import Weights
from reference_engine.parallel.ranks import ALONE, Ranks
from reference_engine.parallel.sharding import config_of_rank

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """How models of one kind are read and built.

    Attributes:
        read_config: from a decoded config.json and its path, for messages; raises CheckpointError for what is not
            computed exactly.
        build: from what `read_config` returned, with a rank's share of the heads, the weights, and the longest
            sequence's tokens.
    """

    read_config: Callable[[Mapping[str, Any], str], ModelConfig]
    build: Callable[[Any, Weights, int], Model]


FAMILIES: Mapping[str, Family] = {
    "deepseek_v2": Family(deepseek_v2.read_config, deepseek_v2.build),
    "gemma3_text": Family(gemma3.read_config, gemma3.build),
    "llama": Family(llama.read_config, llama.build),
    "mistral": Family(mistral.read_config, mistral.build),
    "mixtral": Family(mixtral.read_config, mixtral.build),
    "qwen2": Family(qwen2.read_config, qwen2.build),
    "qwen3": Family(qwen3.read_config, qwen3.build),
    "qwen3_moe": Family(qwen3_moe.read_config, qwen3_moe.build),
}


def config_from_hf(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Reads a decoded config.json (Transformers 4 and 5 spellings).

    Raises:
        CheckpointError: for a family, activation or rope scaling that this engine does not compute exactly.
    """
    family = FAMILIES.get(str(raw.get("model_type")))
    if family is None:
        known = ", ".join(map(repr, FAMILIES))
        raise CheckpointError(f"{where}: model_type {raw.get('model_type')!r} is not supported, these are: {known}")
    check_options(raw, where, quantization_config=(None,), partial_rotary_factor=(None, 1.0))
    try:
        return family.read_config(raw, where)
    except KeyError as error:
        raise CheckpointError(f"{where}: the field {error} is missing; fetch the checkpoint again") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: a field is not of its type ({error}); fetch the checkpoint again") from error


def build_model(
    config: ModelConfig,
    source: WeightSource,
    *,
    max_positions: int,
    dtype: torch.dtype,
    device: torch.device,
    ranks: Ranks = ALONE,
    quantization: QuantizationName = "none",
) -> Model:
    """The decoder, or a rank's part of it.

    Args:
        config: shapes and constants.
        source: the weights under Hugging Face's names.
        max_positions: tokens; the longest sequence that will be computed.
        dtype: of weights and activations.
        device: where it runs.
        ranks: who computes the layers together.
        quantization: whether matrices that are stored in blocks stay so.

    Raises:
        CheckpointError: a tensor is missing.
        ConfigError: so many ranks cannot share it.
    """
    weights = Weights(source, dtype, device, config.norm_offset, ranks=ranks, quantization=quantization)
    model = FAMILIES[config.model_type].build(config_of_rank(config, ranks.size), weights, max_positions)
    plain, blocks = weights.plain_bytes / 2**20, weights.block_bytes / 2**20
    _log.info("weights: %.1f MiB in %s, %.1f MiB in blocks as stored", plain, str(dtype).removeprefix("torch."), blocks)
    return model
