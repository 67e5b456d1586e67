import pytest
import torch

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.attention.torch_backend import TorchAttention
from bakeoff.reference_engine.core.model_config import ModelConfig, RopeScaling, config_to_hf
from bakeoff.reference_engine.engine.resolution import cache_layout
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.kv_cache.storage import allocate_storage
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.models.config_readers import config_from_hf
from bakeoff.reference_engine.models.linear import PackedLinear, PlainLinear, can_pack, make_linear
from bakeoff.reference_engine.models.registry import build_model

CPU = torch.device("cpu")
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}


@torch.inference_mode()
def logits_of(directory, prompt):
    weights = SafetensorsDirectory(directory)
    model = build_model(weights.config, weights, max_positions=256, dtype=torch.float32, device=CPU)
    layout = cache_layout(weights.config)
    groups = len(layout.groups)
    store = allocate_storage(layout, num_blocks=[16] * groups, block_size=16, dtype=torch.float32, device=CPU)
    step = TorchAttention(store).begin_step([Span([list(range(16))] * groups, 0, len(prompt))])
    rows = torch.arange(len(prompt))
    return model.forward(torch.tensor(prompt), rows, step, rows)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {"attention_bias": True, "mlp_bias": True},
        {"num_key_value_heads": 1},
        {"num_key_value_heads": 4, "head_dim": 32},
        {"rope_parameters": LINEAR},
        {"rope_parameters": LLAMA3},
    ],
    ids=["tied", "untied", "biases", "mqa", "mha wide heads", "linear rope", "llama3 rope"],
)
def test_logits_equal_transformers(tmp_path, make_model, save_checkpoint, changes):
    model = make_model(**changes)
    save_checkpoint(tmp_path, model)
    prompt = torch.randint(3, 200, (150,)).tolist()
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(logits_of(tmp_path, prompt), expected, atol=2e-4, rtol=1e-4)


def test_a_missing_tensor_is_named(tmp_path, make_model, save_checkpoint):
    model = make_model(tie_word_embeddings=True)
    save_checkpoint(tmp_path, model)
    weights = SafetensorsDirectory(tmp_path)
    weights.config = config_from_hf(config_to_hf(weights.config) | {"tie_word_embeddings": False}, "here")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        build_model(weights.config, weights, max_positions=8, dtype=torch.float32, device=CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 8, 70])
@pytest.mark.parametrize("biased", [False, True])
def test_packed_weights_multiply_like_plain_ones(dtype, rows, biased):
    torch.manual_seed(0)
    weight, bias = torch.randn(96, 64).to(dtype), torch.randn(96).to(dtype) if biased else None
    x = torch.randn(rows, 64).to(dtype)
    assert can_pack(weight) == (dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if not can_pack(weight):  # a CPU without bf16: the plain way is the one that is taken
        assert isinstance(make_linear(weight, bias), PlainLinear)
        return
    with torch.inference_mode():
        packed, plain = PackedLinear(weight, bias)(x), PlainLinear(weight, bias)(x)
    tolerance = 1e-4 if dtype == torch.float32 else 0.13  # one bf16 step at the size of these sums
    torch.testing.assert_close(packed, plain, atol=tolerance, rtol=1e-2)


def test_half_precision_is_not_packed():
    assert isinstance(make_linear(torch.zeros(4, 4, dtype=torch.float16)), PlainLinear)
    assert isinstance(make_linear(torch.zeros(4, 4)), PackedLinear)


def test_packing_is_skipped_where_the_operator_is_missing(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert isinstance(make_linear(torch.zeros(4, 4)), PlainLinear)


def raw(**changes):
    base = {"model_type": "llama", "vocab_size": 9, "hidden_size": 8, "intermediate_size": 4, "num_hidden_layers": 1}
    return base | {"num_attention_heads": 2} | changes


def test_old_and_new_spellings_of_config_mean_the_same():
    old = config_from_hf(
        raw(rope_theta=5.0, rope_scaling={"type": "linear", "factor": 2.0}, torch_dtype="float16"), "x"
    )
    new = config_from_hf(
        raw(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0}, dtype="float16"), "x"
    )
    assert old == new
    assert old.rope_scaling == RopeScaling("linear", 2.0)


@pytest.mark.parametrize("rope", [LLAMA3, LINEAR, DYNAMIC, LONGROPE, {"rope_type": "default", "rope_theta": 7.0}])
@pytest.mark.parametrize("eos", [None, 3, [3, 4]])
def test_config_survives_the_way_to_hf_and_back(rope, eos):
    config = config_from_hf(raw(rope_parameters=rope, eos_token_id=eos, head_dim=16, num_key_value_heads=1), "x")
    assert config_from_hf(config_to_hf(config), "y") == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_parameters": {"rope_type": "ntk", "factor": 2.0}}, "rope scaling 'ntk' is not supported"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "not a multiple"),
    ],
)
def test_what_we_cannot_compute_exactly_is_refused(changes, message):
    with pytest.raises(CheckpointError, match=message):
        config_from_hf(raw(**changes), "config.json")


def test_a_missing_field_is_named():
    with pytest.raises(CheckpointError, match="field 'hidden_size' is missing"):
        config_from_hf({"model_type": "llama", "vocab_size": 1, "num_attention_heads": 1}, "config.json")


def test_kv_elements_count_keys_and_values_of_all_layers():
    assert isinstance(config := config_from_hf(raw(num_hidden_layers=3, num_key_value_heads=1), "x"), ModelConfig)
    assert cache_layout(config).elements_per_token(0) == 2 * 3 * 1 * 4
