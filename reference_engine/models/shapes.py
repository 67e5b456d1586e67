"""Names and shapes of every weight that a config.json implies, as Hugging Face's checkpoints have them.

gpt-oss' checkpoints stack the experts of a layer; here each has its own matrices, as `gpt_oss.SplitExperts` reads them.
"""

from collections.abc import Iterator

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.models.config_readers import DeepseekConfig, GemmaConfig, GptOssConfig, MoeConfig
from bakeoff.reference_engine.models.names import CORRECTION, LLAMA_PARTS, layer_prefix

Shape = tuple[int, ...]
_NORMS = ("input_layernorm", "post_attention_layernorm")
_GEMMA_NORMS = (*_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def weight_shapes(config: ModelConfig) -> dict[str, Shape]:
    """The shape of each weight by its name, in the order of the layers; matrices are [out_features, in_features]."""
    matrix = (config.vocab_size, config.hidden_size)
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": matrix}
    for index in range(config.num_hidden_layers):
        shapes |= {f"{layer_prefix(index)}{name}": shape for name, shape in _layer(config, index)}
    shapes["model.norm.weight"] = (config.hidden_size,)
    return shapes if config.tie_word_embeddings else shapes | {"lm_head.weight": matrix}


def _layer(config: ModelConfig, index: int) -> Iterator[tuple[str, Shape]]:
    for norm in _GEMMA_NORMS if isinstance(config, GemmaConfig) else _NORMS:
        yield f"{norm}.weight", (config.hidden_size,)
    attention = _latent_attention(config) if isinstance(config, DeepseekConfig) else _attention(config, index)
    for name, shape in attention:
        yield f"self_attn.{name}", shape
    yield from _feed_forward(config, index)


def _linear(name: str, outputs: int, inputs: int, *, has_bias: bool = False) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (outputs, inputs)
    if has_bias:
        yield f"{name}.bias", (outputs,)


def _attention(config: ModelConfig, index: int) -> Iterator[tuple[str, Shape]]:
    """Grouped-query attention; a layer that uses another layer's keys and values projects to queries only."""
    hidden, queries = config.hidden_size, config.num_attention_heads * config.head_dim
    has_bias = config.attention_bias or config.qkv_bias
    has_keys = config.shared_layer(index) is None
    if config.model_type == "phi3":
        yield from _linear("qkv_proj", queries + 2 * config.num_key_value_heads * config.head_dim, hidden)
        yield from _linear("o_proj", hidden, queries)
        return
    yield from _linear("q_proj", queries, hidden, has_bias=has_bias)
    for name in ("k_proj", "v_proj") if has_keys else ():
        yield from _linear(name, config.num_key_value_heads * config.head_dim, hidden, has_bias=has_bias)
    yield from _linear("o_proj", hidden, queries, has_bias=config.attention_bias)
    for name in ("q_norm", "k_norm") if config.qk_norm else ():
        yield f"{name}.weight", (config.head_dim,)
    if isinstance(config, GptOssConfig):
        yield "sinks", (config.num_attention_heads,)


def _latent_attention(config: DeepseekConfig) -> Iterator[tuple[str, Shape]]:
    hidden, heads, latent = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
    queries = heads * (config.qk_nope_head_dim + config.head_dim)
    if config.q_lora_rank is None:
        yield from _linear("q_proj", queries, hidden)
    else:
        yield from _linear("q_a_proj", config.q_lora_rank, hidden, has_bias=config.attention_bias)
        yield "q_a_layernorm.weight", (config.q_lora_rank,)
        yield from _linear("q_b_proj", queries, config.q_lora_rank)
    yield from _linear("kv_a_proj_with_mqa", latent + config.head_dim, hidden, has_bias=config.attention_bias)
    yield "kv_a_layernorm.weight", (latent,)
    yield from _linear("kv_b_proj", heads * (config.qk_nope_head_dim + config.v_head_dim), latent)
    yield from _linear("o_proj", hidden, heads * config.v_head_dim, has_bias=config.attention_bias)


def _feed_forward(config: ModelConfig, index: int) -> Iterator[tuple[str, Shape]]:
    if config.model_type == "phi3":
        yield from _linear("mlp.gate_up_proj", 2 * config.intermediate_size, config.hidden_size)
        yield from _linear("mlp.down_proj", config.hidden_size, config.intermediate_size)
        return
    if not isinstance(config, MoeConfig) or index in config.dense_layers:
        yield from _gated("mlp.", LLAMA_PARTS, config.intermediate_size, config, has_bias=config.mlp_bias)
        return
    prefix, router, parts, shared = config.names
    yield from _linear(f"{prefix}{router}", config.num_experts, config.hidden_size, has_bias=config.router_bias)
    if config.scoring_func == "sigmoid":
        yield f"{prefix}{router}.{CORRECTION}", (config.num_experts,)
    width, has_bias = config.moe_intermediate_size, config.expert_bias
    for expert in range(config.num_experts):
        yield from _gated(f"{prefix}experts.{expert}.", parts, width, config, has_bias=has_bias)
    if config.shared_width:
        yield from _gated(f"{prefix}{shared}.", LLAMA_PARTS, config.shared_width, config)
    if config.shared_gate:
        yield from _linear(f"{prefix}{shared}_gate", 1, config.hidden_size)


def _gated(
    prefix: str, parts: tuple[str, str, str], width: int, config: ModelConfig, *, has_bias: bool = False
) -> Iterator[tuple[str, Shape]]:
    gate, up, down = parts
    for name in (gate, up):
        yield from _linear(f"{prefix}{name}", width, config.hidden_size, has_bias=has_bias)
    yield from _linear(f"{prefix}{down}", config.hidden_size, width, has_bias=has_bias)
