"""A tiny random model of every family, made with Transformers, and what the engine answers with it."""

from collections import Counter

import torch
import transformers as hf

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import Request, SamplingParams

VOCAB_SIZE = 266  # that of the tests' tokenizer
WINDOW = 12  # tokens
COMMON = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.15,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "rms_norm_eps": 1e-5,
}  # fmt: skip
# Heads whose size is a multiple of 16 are attended by the compiled kernel, the others by stock operators.
YARN = {
    "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 64,
    "beta_fast": 8, "beta_slow": 1,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 500.0, "short_factor": [1 + 0.1 * i for i in range(8)],
    "long_factor": [1.0 + i for i in range(8)],
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 16, "qk_nope_head_dim": 12, "v_head_dim": 10,
    "num_key_value_heads": 4, "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1, **EXPERTS,
}  # fmt: skip

LATENT_V3 = LATENT | {"n_shared_experts": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5}
QWEN2_EXPERTS = EXPERTS | {"num_experts": 6, "shared_expert_intermediate_size": 48}
THREE_QUARTERS = LONGROPE | {
    "short_factor": [1 + 0.1 * i for i in range(6)], "long_factor": [1.0 + i for i in range(6)], "factor": 4.0,
    "partial_rotary_factor": 0.75,
}  # fmt: skip

FAMILIES = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama, yarn": ("Llama", {"rope_parameters": YARN}),
    "llama, two layers a cache": ("Llama", {"cla_factor": 2}),
    "llama, three layers a cache": ("Llama", {"cla_factor": 3, "attention_bias": True}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2, windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3, biases and windows": (
        "Qwen3",
        {
            "head_dim": 16, "attention_bias": True, "use_sliding_window": True, "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "rope_parameters": YARN,
        },
    ),
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
    "mistral, no window": ("Mistral", {"sliding_window": None, "num_key_value_heads": 1, "head_dim": 20}),
    "gemma3": (
        "Gemma3",
        {
            "head_dim": 32, "sliding_window": WINDOW, "sliding_window_pattern": 3, "query_pre_attn_scalar": 10,
            "tie_word_embeddings": True, "initializer_range": 0.05, "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 32, "sliding_window": WINDOW, "query_pre_attn_scalar": 10, "initializer_range": 0.05,
            "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "tie_word_embeddings": True,
        },
    ),
    "gpt_oss": (
        "GptOss", {"head_dim": 16, "sliding_window": WINDOW, "num_local_experts": 6, "num_experts_per_tok": 2,
                   "swiglu_limit": 0.6, "rope_parameters": YARN | {"truncate": False}},
    ),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2, "tie_word_embeddings": True}),
    "smollm3, windows": (
        "SmolLM3",
        {"no_rope_layers": [1, 0, 0, 1], "use_sliding_window": True, "sliding_window": WINDOW, "attention_bias": True},
    ),
    "phi3": ("Phi3", {"sliding_window": WINDOW}),
    "phi3, short factors": (
        "Phi3", {"original_max_position_embeddings": 256, "rope_parameters": LONGROPE | {"factor": 4.0}},
    ),
    # Transformers, too, takes the long factors from the first token that is turned.
    "phi3, long factors": (
        "Phi3", {"original_max_position_embeddings": 1, "rope_parameters": LONGROPE | {"attention_factor": 1.2}},
    ),
    "phi3, three quarters of each head": (
        "Phi3",
        {
            "original_max_position_embeddings": 256, "partial_rotary_factor": 0.75, "rope_parameters": THREE_QUARTERS,
            "tie_word_embeddings": True,
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral, window": ("Mixtral", {"num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": WINDOW}),
    "qwen2_moe": ("Qwen2Moe", QWEN2_EXPERTS),
    "qwen2_moe, some layers dense": (
        "Qwen2Moe",
        QWEN2_EXPERTS | {
            "decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 3,
            "norm_topk_prob": True, "qkv_bias": False,
        },
    ),
    "qwen3_moe": ("Qwen3Moe", {"head_dim": 16, "num_experts": 6, "norm_topk_prob": True, **EXPERTS}),
    "qwen3_moe, some layers dense": (
        "Qwen3Moe",
        {
            "head_dim": 16, "num_experts": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3], "attention_bias": True,
            "use_sliding_window": True, "sliding_window": WINDOW, **EXPERTS,
        },
    ),
    "deepseek_v2": ("DeepseekV2", LATENT),
    "deepseek_v2, all options": (
        "DeepseekV2",
        LATENT | {
            "q_lora_rank": 20, "attention_bias": True, "topk_method": "group_limited_greedy", "n_group": 4,
            "topk_group": 2, "num_experts_per_tok": 3, "routed_scaling_factor": 1.5,
            "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.9},
        },
    ),
    "deepseek_v3": ("DeepseekV3", LATENT_V3),
    "deepseek_v3, other options": (
        "DeepseekV3",
        LATENT_V3 | {
            "q_lora_rank": 20, "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "rope_interleave": False,
            "rope_parameters": YARN | {"mscale": 0.9, "mscale_all_dim": 0.9},
        },
    ),
}  # fmt: skip


def make_family(name, **more):
    """A model of Transformers with nothing in it that is 0 or 1 everywhere."""
    kind, changes = FAMILIES[name][0], FAMILIES[name][1] | more
    torch.manual_seed(11)
    text = "Text" if kind == "Gemma3" else ""
    config = getattr(hf, f"{kind}{text}Config")(**COMMON | changes)
    model = getattr(hf, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        corrections = [buffer for name, buffer in model.named_buffers() if name.endswith("correction_bias")]
        stacked_biases = [parameter for name, parameter in model.named_parameters() if name.endswith("proj_bias")]
        vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
        for numbers in (*vectors, *corrections, *stacked_biases):
            numbers.add_(torch.randn_like(numbers) * 0.3)
    if "cla_factor" in changes:
        share_caches(model, changes["cla_factor"])
    return model


class Replayed(torch.nn.Module):
    """Returns what a projection of an earlier layer returned in the same step."""

    def __init__(self, projection):
        super().__init__()
        projection.register_forward_hook(lambda module, inputs, output: self.outputs.append(output))
        self.outputs = []

    def forward(self, rows):
        return self.outputs.pop()


def share_caches(model, factor):
    """Lets each layer of a group of neighbours attend to the keys and values of the first."""
    layers = model.model.layers
    for index, layer in enumerate(layers):
        first = layers[index - index % factor]
        if layer is not first:
            layer.self_attn.k_proj = Replayed(first.self_attn.k_proj)
            layer.self_attn.v_proj = Replayed(first.self_attn.v_proj)


def engine_config(directory, **changes):
    settings = {"model": str(directory), "dtype": "float32", "threads": 1, "max_model_len": 256}
    settings |= {"num_blocks": 256, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return EngineConfig(**(settings | changes))


def answers(engine, prompts, length):
    """Greedy tokens of each prompt, all queued at once, and what happened on the way; the page tables are audited."""
    outputs, counts = [[] for _ in prompts], Counter()
    for number, prompt in enumerate(prompts):
        engine.add(Request(str(number), list(prompt), SamplingParams(max_tokens=length, temperature=0.0)))
    while engine.has_work:
        report = engine.step()
        counts.update(preemptions=report.preemptions, swaps=report.swaps, cached_tokens=report.cached_tokens)
        for output in report.outputs:
            outputs[int(output.request_id)].append(output.token.token_id)
    engine.check_integrity()
    return outputs, counts
