"""Arithmetic of known models: published parameter counts and KV sizes, precisions, and what config.json may be."""

import json
from pathlib import Path

import pytest

from bakeoff.harness.errors import BadPlan
from bakeoff.harness.sizing.model import known_models, load_model
from bakeoff.harness.sizing.precision import CACHES, PRECISIONS, cache_named, precision_named
from tests.test_imports import ROOT, import_graph

BF16, KV16 = PRECISIONS["bf16"], CACHES["bf16"]
# As the checkpoints on Hugging Face have them.
PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b-v0.1": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,  # less the 58 × 256 biases of its routers, and its layer for a second next token
    "phi-3-mini": 3_821_079_552,
    "smollm2-135m": 134_515_008,
}


def costs(name: str, precision: str = "bf16", cache: str = "bf16"):
    return load_model(name).costs(PRECISIONS[precision], CACHES[cache])


@pytest.mark.parametrize("name", PARAMETERS)
def test_known_shapes_have_the_published_number_of_parameters(name: str):
    assert costs(name).parameters == PARAMETERS[name]


def test_gemma_3_is_the_language_model_of_the_published_12_b():
    assert costs("gemma-3-12b").parameters == pytest.approx(11.77e9, rel=1e-3)
    assert set(known_models()) == {*PARAMETERS, "gemma-3-12b"}


def test_14_gb_for_7_b_in_fp16_is_rounded_up_from_the_parameters():
    assert 7e9 * 2 == 14e9
    assert costs("llama-2-7b", "fp16").weight_bytes == 13_476_831_232


def test_a_token_of_13_b_takes_800_kb_of_kv_cache():
    """Kwon et al., PagedAttention (2309.06180): 2 × 5120 × 40 × 2 bytes for OPT-13B, whose shapes Llama-2-13B has."""
    assert costs("llama-2-13b").kv_bytes_per_token == 2 * 5120 * 40 * 2 == 800 * 1024


def test_a_token_of_8_b_takes_128_kib_and_of_70_b_327_kb():
    assert costs("llama-3.1-8b").kv_bytes_per_token == 128 * 1024
    assert costs("llama-3.1-70b").kv_bytes_per_token == 327_680


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("llama-2-7b", "32 layers × 2 × 32 heads × 128 elements (MHA)", 524_288),
        ("llama-3.1-8b", "32 layers × 2 × 8 heads × 128 elements (GQA)", 131_072),
        ("deepseek-v2-lite", "27 layers × 1 latent of 576 elements (MLA)", 27 * 576 * 2),
        ("deepseek-v3", "61 layers × 1 latent of 576 elements (MLA)", 70_272),
        ("gemma-3-12b", "40 layers keep 1,024 tokens at most", 393_216),
        ("phi-3-mini", "32 layers keep 2,047 tokens at most", 393_216),
    ],
)
def test_what_a_token_of_kv_cache_is_made_of(name: str, kind: str, size: int):
    assert kind in load_model(name).kv_parts
    assert costs(name).kv_bytes_per_token == size


def test_multi_query_attention_and_shared_layers(tmp_path: Path):
    raw = {**known_models()["llama-3.1-8b"], "num_key_value_heads": 1, "cla_factor": 2}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    model = load_model(str(tmp_path))
    assert model.kv_parts == "16 layers × 2 × 1 heads × 128 elements (MQA)"
    costs = model.costs(BF16, KV16)
    assert costs.kv_bytes_per_token == 16 * 2 * 128 * 2
    assert costs.decode(1, 1001).bytes - costs.decode(1, 1000).bytes == 32 * 2 * 128 * 2, "each of 32 layers reads it"


def test_layers_with_a_window_keep_only_that():
    gemma = costs("gemma-3-12b")
    growth = gemma.memory_bytes(1, 8193) - gemma.memory_bytes(1, 8192)
    assert growth == 393_216 * 8 / 48


def test_of_experts_only_the_chosen_ones_are_active():
    assert load_model("qwen3-30b-a3b").active_parameters == pytest.approx(3.04e9, rel=0.01)  # 3.3 with the embedding
    assert load_model("mixtral-8x7b").active_parameters == pytest.approx(12.7e9, rel=0.01)
    assert load_model("deepseek-v3").active_parameters == pytest.approx(37e9, rel=0.02)  # arXiv 2412.19437
    model = load_model("llama-3.1-8b")
    assert model.active_parameters == PARAMETERS["llama-3.1-8b"] - 128_256 * 4096


def test_int4_in_groups_of_128_is_4_125_bits_and_leaves_embedding_and_head_alone():
    ends = 2 * 128_256 * 4096
    matrices = PARAMETERS["llama-3.1-8b"] - ends
    assert costs("llama-3.1-8b", "int4").weight_bytes == ends * 2 + matrices * 4.125 / 8
    assert costs("llama-3.1-8b", "int4", "int8").kv_bytes_per_token == 32 * 2 * 8 * (128 + 2)
    assert costs("llama-3.1-8b", "fp8", "fp8").kv_bytes_per_token == 64 * 1024


def test_quantised_caches_take_their_scales():
    model = load_model("llama-3.1-8b")
    bf16 = precision_named("bf16")
    rows = 32 * 2 * 8  # of 128 elements
    for name, row_bytes in (("bf16", 256), ("fp8", 128), ("int8", 130), ("int4", 64 + 4 * 4)):
        assert model.costs(bf16, cache_named(name)).kv_bytes_per_token == rows * row_bytes


def test_a_multimodal_config_is_read_as_its_language_model(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": known_models()["gemma-3-12b"]}))
    assert load_model(str(path)).config == load_model("gemma-3-12b").config


def test_the_published_config_of_gemma_3_leaves_out_what_transformers_knows(tmp_path: Path):
    """google/gemma-3-12b-it, whose text_config lacks vocab_size; that of the 4B lacks num_attention_heads, too."""
    text = {
        "model_type": "gemma3_text", "hidden_size": 3840, "intermediate_size": 15360, "num_attention_heads": 16,
        "num_hidden_layers": 48, "num_key_value_heads": 8, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    assert load_model(str(path)).costs(BF16, KV16).parameters == costs("gemma-3-12b").parameters
    del text["num_attention_heads"]
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    assert load_model(str(path)).config.num_attention_heads == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is neither a config.json nor a known model; known: llama-2-7b"),
        ("{", "is not JSON"),
        ("[]", "holds no object"),
        ('{"model_type": "mamba"}', "model_type 'mamba' is not supported"),
        ('{"model_type": "llama"}', "the field 'num_attention_heads' is missing"),
        ('{"model_type": "gemma3", "text_config": 5}', "text_config holds no object"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(tmp_path: Path, text: str | None, message: str):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadPlan, match=message.replace("(", r"\(")) as error:
        load_model(str(path))
    assert "\n" not in str(error.value)


def test_unknown_precisions_are_refused():
    with pytest.raises(BadPlan, match="unknown precision 'int3'; known: fp32, bf16"):
        precision_named("int3")
    with pytest.raises(BadPlan, match="KV cache 'int3'; known: fp32"):
        cache_named("int3")


def test_tensor_parallelism_divides_heads_and_columns():
    assert load_model("llama-3.1-8b").why_not_split(8) is None
    assert load_model("qwen2.5-7b").why_not_split(8) == "8 GPUs do not divide 28 attention heads"
    assert load_model("smollm2-135m").why_not_split(2) == "2 GPUs do not divide 9 attention heads"
    assert load_model("qwen3-30b-a3b").why_not_split(8) is None


def test_the_planner_imports_no_torch():
    """Neither do the modules of the reference engine that it reaches."""
    graph = import_graph("bakeoff.reference_engine")
    entry = (ROOT / "harness/sizing/model.py").read_text(encoding="utf-8")
    reached = {name for name in graph if f"from {name} import" in entry}
    assert {"bakeoff.reference_engine.models.costs", "bakeoff.reference_engine.models.config_readers"} <= reached
    waiting = list(reached)
    while waiting:
        new = graph[waiting.pop()] - reached
        reached |= new
        waiting += new
    for name in reached:
        text = (ROOT / "src" / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert "import torch" not in text, name
