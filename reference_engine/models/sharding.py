"""Checks whether a model can be split over ranks, and computes a rank's share."""

import dataclasses

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.core.ranks import Stage
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.models.config_readers import MoeConfig


def layers_of_stage(config: ModelConfig, stage: Stage) -> range:
    """The layers of a stage, so that stages read about as many weights: the last one has the head besides.

    Raises:
        ConfigError: there are fewer layers than stages, or layers that share keys would be parted.
    """
    total = config.num_hidden_layers
    if stage.count == 1:
        return range(total)
    if stage.count > total:
        raise ConfigError(f"--pipeline-parallel-size {stage.count} is more than the model's {total} layers; lower it")
    if any(config.shared_layer(index) is not None for index in range(total)):
        raise ConfigError("--pipeline-parallel-size parts layers, and some of this model's share keys; leave it out")
    # Of numbers that are the same in the config of a rank.
    is_mixed = isinstance(config, MoeConfig)
    width = config.num_experts * config.moe_intermediate_size if is_mixed else config.intermediate_size
    return stage.layers(total, config.vocab_size / (3 * config.hidden_size + 3 * width))


def place_in_stage(config: ModelConfig, index: int, stage: Stage) -> int:
    """The place of a layer among those of its stage."""
    return index - layers_of_stage(config, stage).start


def config_of_rank(config: ModelConfig, size: int, *, whole_experts: bool = False) -> ModelConfig:
    """The config with the attention heads of one of `size` ranks, and so with its share of the KV cache.

    All other fields stay those of the whole model.

    Args:
        config: of the whole model.
        size: number of ranks.
        whole_experts: see `Weights`.

    Raises:
        ConfigError: `size` does not divide the heads or the feed-forward networks.
    """
    if size == 1:
        return config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    cut = {"attention heads": heads, "feed-forward columns (intermediate_size)": config.intermediate_size}
    if isinstance(config, MoeConfig):
        cut["columns of an expert (moe_intermediate_size)"] = 0 if whole_experts else config.moe_intermediate_size
        cut["columns of the shared experts"] = config.shared_width
    for part, count in cut.items():
        if count % size:
            raise ConfigError(
                f"--tensor-parallel-size {size} does not divide the model's {count} {part}; choose a divisor"
            )
    if kv_heads % size and size % kv_heads:
        raise ConfigError(
            f"--tensor-parallel-size {size} neither divides the model's {kv_heads} key/value heads nor is a multiple "
            "of them; choose one that does"
        )
    return dataclasses.replace(config, num_attention_heads=heads // size, num_key_value_heads=max(1, kv_heads // size))
