"""Model families by the `model_type` of config.json."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch

from bakeoff.reference_engine.core.config import QuantizationName
from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.core.ranks import ALONE, Ranks
from bakeoff.reference_engine.models import deepseek, gemma, gpt_oss, phi3, pre_norm
from bakeoff.reference_engine.models.decoder import Model
from bakeoff.reference_engine.models.offload import WeightOffload
from bakeoff.reference_engine.models.sharding import config_of_rank
from bakeoff.reference_engine.models.source import WeightSource
from bakeoff.reference_engine.models.weights import Weights

_log = logging.getLogger(__name__)


def _as_stored(config: ModelConfig, source: WeightSource) -> WeightSource:  # noqa: ARG001 (see Family)
    return source


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """Functions that build the models of a family; its config is read by `config_readers`.

    Attributes:
        build: takes the config with a rank's share of the heads, the weights, and the maximum sequence length in
            tokens.
        adapt: takes the config of the whole model and the weights as stored, and provides them under the names that
            `build` uses.
    """

    build: Callable[[Any, Weights, int], Model]
    adapt: Callable[[ModelConfig, WeightSource], WeightSource] = _as_stored


FAMILIES: Mapping[str, Family] = {
    "deepseek_v2": Family(deepseek.build),
    "deepseek_v3": Family(deepseek.build),
    "gemma2": Family(gemma.build),
    "gemma3_text": Family(gemma.build, gemma.TextWeights),
    "gpt_oss": Family(gpt_oss.build, gpt_oss.SplitExperts),
    "llama": Family(pre_norm.build),
    "mistral": Family(pre_norm.build),
    "mixtral": Family(pre_norm.build),
    "phi3": Family(pre_norm.build, phi3.SplitWeights),
    "qwen2": Family(pre_norm.build),
    "qwen2_moe": Family(pre_norm.build),
    "qwen3": Family(pre_norm.build),
    "qwen3_moe": Family(pre_norm.build),
    "smollm3": Family(pre_norm.build),
}


def build_model(
    config: ModelConfig,
    source: WeightSource,
    *,
    max_positions: int,
    dtype: torch.dtype,
    device: torch.device,
    ranks: Ranks = ALONE,
    quantization: QuantizationName = "none",
    batch_invariant: bool = False,
    offload: WeightOffload | None = None,
    whole_experts: bool = False,
    sinks_seen_from: int | None = None,
) -> Model:
    """Builds the decoder, or a rank's shard of it.

    Args:
        config: shapes and constants.
        source: the weights under Hugging Face's names.
        max_positions: maximum sequence length in tokens.
        dtype: of weights and activations.
        device: of the model.
        ranks: this rank and its collectives.
        quantization: whether quantised matrices are kept, or a method to quantise matrices with.
        batch_invariant: whether a token's bits must not depend on the batch; see `Weights`.
        offload: see `Weights`; finished here.
        whole_experts: see `Weights`.
        sinks_seen_from: see `Weights`.

    Raises:
        CheckpointError: a tensor is missing.
        ConfigError: the number of ranks does not divide the model.
    """
    family = FAMILIES[config.model_type]
    weights = Weights(
        family.adapt(config, source),
        dtype,
        device,
        config.norm_offset,
        ranks=ranks,
        quantization=quantization,
        batch_invariant=batch_invariant,
        offload=offload,
        whole_experts=whole_experts,
        sinks_seen_from=sinks_seen_from,
    )
    model = family.build(config_of_rank(config, ranks.size, whole_experts=whole_experts), weights, max_positions)
    if offload is not None:
        offload.finish()
    plain, quantised = weights.plain_bytes / 2**20, weights.quantised_bytes / 2**20
    _log.info("weights: %.1f MiB in %s, %.1f MiB quantised", plain, str(dtype).removeprefix("torch."), quantised)
    return model
