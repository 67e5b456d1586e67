"""Checks whether a model can be split over ranks, and computes a rank's share."""

import dataclasses

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.models.config_readers import MoeConfig


def config_of_rank(config: ModelConfig, size: int) -> ModelConfig:
    """The config with the attention heads of one of `size` ranks, and so with its share of the KV cache.

    All other fields stay those of the whole model.

    Raises:
        ConfigError: `size` does not divide the heads or the feed-forward networks.
    """
    if size == 1:
        return config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    cut = {"attention heads": heads, "feed-forward columns (intermediate_size)": config.intermediate_size}
    if isinstance(config, MoeConfig):
        cut["columns of an expert (moe_intermediate_size)"] = config.moe_intermediate_size
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
