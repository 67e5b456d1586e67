"""Which models can be cut into how many parts."""

import dataclasses

from reference_engine.errors import ConfigError
from reference_engine.models.config import ModelConfig
from reference_engine.models.experts import MoeConfig


def config_of_rank(config: ModelConfig, size: int) -> ModelConfig:
    """The same model with the attention heads that one of `size` ranks has, and so with its part of the KV cache.

    Everything else stays the whole model's.

    Raises:
        ConfigError: heads or feed-forward networks cannot be cut into so many parts.
    """
    if size == 1:
        return config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    cut = {"attention heads": heads, "feed-forward columns (intermediate_size)": config.intermediate_size}
    if isinstance(config, MoeConfig):
        cut["columns of an expert (moe_intermediate_size)"] = config.moe_intermediate_size
    for what, count in cut.items():
        if count % size:
            raise ConfigError(
                f"--tensor-parallel-size {size} does not divide the model's {count} {what}; choose a divisor"
            )
    if kv_heads % size and size % kv_heads:
        raise ConfigError(
            f"--tensor-parallel-size {size} neither divides the model's {kv_heads} key/value heads nor is a multiple "
            "of them; choose one that does"
        )
    return dataclasses.replace(config, num_attention_heads=heads // size, num_key_value_heads=max(1, kv_heads // size))
