"""What config.json of each family means, and what is refused."""

import dataclasses
import math

import pytest
import transformers as hf

from bakeoff.reference_engine.engine.resolution import cache_layout
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.kv_cache.block_table import Visible
from bakeoff.reference_engine.kv_cache.layout import LayerLayout
from bakeoff.reference_engine.models.config_readers import config_from_hf
from bakeoff.reference_engine.models.registry import FAMILIES

SIZES = {
    "vocab_size": 99, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 7, "num_attention_heads": 8,
}  # fmt: skip
OLD_YARN = {
    "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
LONG = {"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 4.0, 8.0]}
FOUR_FACTORS = dict(LONG)  # Transformers adds to the other one
SHORT = LONG | {"short_factor": [1.0, 1.1, 1.2], "long_factor": [1.0, 2.0, 4.0]}
# As they are on the hub, or were in older versions of Transformers.
WRITTEN = {
    "llama": (hf.LlamaConfig, {"rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    "mistral": (hf.MistralConfig, {}),
    "qwen2": (hf.Qwen2Config, {"use_sliding_window": True, "max_window_layers": 3, "num_key_value_heads": 2}),
    "qwen3": (hf.Qwen3Config, {"num_key_value_heads": 2, "sliding_window": None}),
    "gemma3_text": (hf.Gemma3TextConfig, {"sliding_window": 512, "rope_local_base_freq": 10000, "rope_theta": 1e6}),
    "gemma2": (hf.Gemma2Config, {"sliding_window": 512, "head_dim": 16}),
    "gpt_oss": (hf.GptOssConfig, {"num_local_experts": 16, "head_dim": 16, "rope_theta": 150000}),
    "smollm3": (hf.SmolLM3Config, {"rope_theta": 5e6}),
    "mixtral": (hf.MixtralConfig, {}),
    "phi3": (
        hf.Phi3Config,
        {"rope_scaling": LONG, "max_position_embeddings": 131072, "original_max_position_embeddings": 2048},
    ),
    "qwen2_moe": (
        hf.Qwen2MoeConfig,
        {"num_experts": 16, "use_sliding_window": True, "max_window_layers": 5, "num_key_value_heads": 8},
    ),
    "qwen3_moe": (hf.Qwen3MoeConfig, {"num_experts": 16, "head_dim": 16, "norm_topk_prob": True}),
    "deepseek_v2": (
        hf.DeepseekV2Config,
        {
            "num_experts_per_tok": 6, "topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3,
            "max_position_embeddings": 163840, "rope_scaling": OLD_YARN, "scoring_func": "softmax",
            "moe_layer_freq": 1,
        },
    ),
    "deepseek_v3": (
        hf.DeepseekV3Config,
        {
            "topk_method": "noaux_tc", "max_position_embeddings": 163840, "rope_scaling": OLD_YARN | {"mscale": 1.0},
            "scoring_func": "sigmoid", "moe_layer_freq": 1, "num_key_value_heads": 8,
        },
    ),
}  # fmt: skip


def raw(model_type, **changes):
    return SIZES | {"model_type": model_type} | WRITTEN[model_type][1] | changes


def read(model_type, **changes):
    return config_from_hf(raw(model_type, **changes), "config.json")


@pytest.mark.parametrize("model_type", FAMILIES)
def test_old_and_short_configs_mean_what_transformers_takes_them_for(model_type):
    # Transformers modifies its argument.
    reference = WRITTEN[model_type][0](
        **{name: value for name, value in raw(model_type).items() if name != "model_type"}
    )
    short, full = read(model_type), config_from_hf(reference.to_dict(), "full")
    same = {"bos_token_id": None, "eos_token_ids": (), "dtype": "float32"}
    assert dataclasses.replace(short, **same) == dataclasses.replace(full, **same)


def test_an_unknown_family_is_refused_with_a_list_of_those_that_are_known():
    with pytest.raises(CheckpointError, match=r"'mamba' is not supported, these are: 'deepseek_v2', .*'smollm3'$"):
        config_from_hf(SIZES | {"model_type": "mamba"}, "config.json")
    with pytest.raises(CheckpointError, match="model_type None is not supported"):
        config_from_hf(SIZES, "config.json")


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}}, "partial_rotary"),
        ("llama", {"rope_scaling": {"type": "ntk", "factor": 2.0}}, "rope scaling 'ntk' is not supported"),
        ("llama", {"rope_scaling": {"type": "longrope", "factor": 2.0}}, "the field 'short_factor' is missing"),
        ("llama", {"rope_scaling": LONG | {"long_factor": [1.0] * 3}}, "long_factor .* be 4 pos"),
        (
            "llama",
            {"rope_scaling": LONG | {"short_factor": [0.0] * 4}},
            "short_factor .* be 4 pos",
        ),
        ("llama", {"rope_scaling": LONG | {"attention_factor": -1.0}}, "attention_factor -1.0"),
        ("phi3", {"original_max_position_embeddings": 1}, "original_max_position_embeddings 1 .* at least 2"),
        ("phi3", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope scaling 'linear' is not supported, only"),
        ("phi3", {"rope_scaling": LONG | {"long_factor": "wide"}}, "a field is not of its type"),
        ("llama", {"rope_scaling": {"type": "dynamic"}}, "the field 'factor' is missing"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 0.5}}, "a finite factor of at least 1 .* 0.5"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "head_dim": 2}, "a head_dim above 2"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "the field 'factor' is missing"),
        ("llama", {"cla_factor": 0}, "cla_factor 0"),
        ("llama", {"hidden_size": "wide"}, "a field is not of its type"),
        ("llama", {"hidden_size": math.inf}, "a field is not of its type or range"),
        ("llama", {"hidden_size": 64.5}, "hidden_size 64.5 is not a whole number"),
        ("llama", {"num_key_value_heads": 1.5}, "num_key_value_heads 1.5 is not a whole number"),
        ("mistral", {"sliding_window": 4.5}, "sliding_window 4.5 is not a whole number"),
        ("mixtral", {"num_local_experts": 7.5}, "num_local_experts 7.5 is not a whole number"),
        ("llama", {"rope_scaling": "linear"}, "a field is not of its type"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers 0 must be at least 1"),
        ("llama", {"num_key_value_heads": -1}, "num_key_value_heads -1 must be at least 1"),
        ("llama", {"hidden_size": 66}, "num_attention_heads 8 does not divide hidden_size 66"),
        ("mistral", {"sliding_window": 0}, "sliding_window 0 must be at least 1"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "a field is not of its type or range"),
        ("qwen2", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported, only 'silu' is"),
        ("qwen2", {"layer_types": ["full_attention"] * 3}, "layer_types names 3 layers"),
        ("qwen3", {"layer_types": ["linear_attention"] * 7}, "layer_types 'linear_attention' is not supported"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 7}, "there is no sliding_window"),
        ("gemma3_text", {"hidden_activation": "gelu"}, "hidden_activation 'gelu' .* only 'gelu_pytorch_tanh' is"),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0 is not supported"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention True is not supported"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ("phi3", {"partial_rotary_factor": 0.75, "rope_scaling": FOUR_FACTORS}, "short_factor .* be 3 pos"),
        ("phi3", {"partial_rotary_factor": 0.4, "rope_scaling": None}, "0.4 of head_dim 8 is not an even number"),
        ("gemma2", {"hidden_activation": "relu"}, "hidden_activation 'relu' .* only 'gelu_pytorch_tanh' is"),
        ("gemma2", {"final_logit_softcapping": -1.0}, "final_logit_softcapping -1.0 is not positive"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "a field is not of its type or range"),
        ("gpt_oss", {"swiglu_limit": "low"}, "a field is not of its type or range"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported, only 'sigmoid' is"),
        ("deepseek_v3", {"n_group": 7}, "cannot be chosen"),
        ("mixtral", {"num_experts_per_tok": 9}, "9 experts per token cannot be chosen"),
        ("qwen3_moe", {"num_experts": 0}, "experts per token cannot be chosen"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported"),
        ("deepseek_v2", {"scoring_func": "sigmoid"}, "scoring_func 'sigmoid' is not supported, only 'softmax' is"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob True is not supported"),
        ("deepseek_v2", {"n_group": 7}, "cannot be chosen"),
        ("deepseek_v2", {"num_experts_per_tok": None}, "a field is not of its type"),
    ],
)
def test_what_is_not_computed_exactly_is_refused_in_one_line(model_type, changes, message):
    with pytest.raises(CheckpointError, match=message) as refused:
        read(model_type, **changes)
    assert "\n" not in str(refused.value)


def test_gemmas_every_sixth_layer_sees_everything():
    assert [layer.visible.window for layer in cache_layout(read("gemma3_text")).layers] == [512] * 5 + [None, 512]


def test_qwens_windows_begin_at_a_layer_and_only_if_they_are_switched_on():
    assert read("qwen2").windows == (None,) * 3 + (4096,) * 4
    assert read("qwen2", use_sliding_window=False).windows == (None,) * 7


def test_of_phi4_mini_only_a_part_of_each_head_is_rotated():
    config = read("phi3", partial_rotary_factor=0.75, rope_scaling=SHORT)
    assert (config.head_dim, config.rotary_dim) == (8, 6)


def test_of_a_model_that_takes_images_the_text_decoder_is_read():
    text = {name: value for name, value in raw("gemma3_text").items() if name != "rope_theta"}
    whole = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}, "eos_token_id": [1, 106]}
    assert config_from_hf(whole, "x") == dataclasses.replace(config_from_hf(text, "x"), eos_token_ids=(1, 106))


@pytest.mark.parametrize("earlier", ["su", "yarn"])
def test_phi3s_earlier_names_of_longrope_are_read(earlier):
    assert read("phi3", rope_scaling=LONG | {"type": earlier}) == read("phi3")


def test_a_latent_cache_keeps_one_key_for_all_heads_whose_beginning_is_the_value():
    layout = cache_layout(read("deepseek_v2"))
    assert layout.layers == (LayerLayout(1, 576, 512, value_in_key=True),) * 7
    assert layout.elements_per_token(0) == 7 * 576


def test_layers_that_share_a_cache_keep_nothing_of_their_own():
    layout = cache_layout(read("llama", cla_factor=3, num_key_value_heads=2))
    assert [layer.shares for layer in layout.layers] == [None, 0, 0, None, 3, 3, None]
    assert layout.groups == [Visible()]
    assert layout.elements_per_token(0) == 3 * 2 * 2 * 8
