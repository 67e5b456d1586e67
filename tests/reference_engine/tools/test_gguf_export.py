"""Files written by `gguf_export`, read back by the `gguf` library and by our own reader."""

import dataclasses
import json

import gguf
import pytest
import torch

from bakeoff.reference_engine.__main__ import main
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.loading.gguf import GgufFile
from bakeoff.reference_engine.tools.gguf_export import write_gguf
from bakeoff.reference_engine.tools.gguf_k_blocks import quantise as quantise_blocks
from bakeoff.reference_engine.tools.quantisation_methods import Quantising
from bakeoff.reference_engine.tools.quantising import quantise
from tests.reference_engine.models.tiny_families import make_family

BLOCKS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "mxfp4")
TEXTS = ("hello world", "Hello, wörld! 12345\n\n  x = 1", "<|im_start|>user\nhi<|im_end|>\n", "")


def quiet(_):
    pass


def exported(source, tmp_path, kind="f32"):
    write_gguf(source, tmp_path / "model.gguf", f"gguf-{kind}", say=quiet)
    return open_checkpoint(source), open_checkpoint(tmp_path / "model.gguf")


def assert_same_model(before, after):
    """Everything but the stored dtype, which GGUF does not name, and limits that only config.json has."""
    config_before, config_after = (dataclasses.replace(model.config, dtype="", windows=()) for model in (before, after))
    assert config_before == config_after
    assert set(before.weights.names()) - {"lm_head.weight"} == set(after.weights.names()) - {"lm_head.weight"}
    for name in after.weights.names():
        assert torch.equal(after.weights.get(name), before.weights.get(name).float()), name
    for text in TEXTS:
        for special in (True, False):
            assert after.tokenizer.encode(text, add_special_tokens=special) == before.tokenizer.encode(
                text, add_special_tokens=special
            )
    assert after.tokenizer.chat_template == before.tokenizer.chat_template
    assert after.tokenizer.special_tokens == before.tokenizer.special_tokens


def test_a_float32_file_is_the_checkpoint(checkpoint_dir, tmp_path):
    assert_same_model(*exported(checkpoint_dir, tmp_path))


def test_biases_and_an_untied_head_are_written(make_model, save_checkpoint, tmp_path):
    model = make_model(attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    before, after = exported(save_checkpoint(tmp_path / "source", model), tmp_path)
    assert_same_model(before, after)
    assert "lm_head.weight" in after.weights.names()


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwens_are_written(family, save_checkpoint, tmp_path):
    assert_same_model(*exported(save_checkpoint(tmp_path / "source", make_family(family)), tmp_path))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192},
    ],
    ids=lambda rope: rope["rope_type"],
)  # fmt: skip
def test_rope_scaling_is_written(rope, make_model, save_checkpoint, tmp_path):
    model = make_model(rope_parameters={"rope_theta": 5e5, **rope}, head_dim=64)
    assert_same_model(*exported(save_checkpoint(tmp_path / "source", model), tmp_path))


def test_a_vocabulary_with_less_tokens_than_rows_is_padded(make_model, save_checkpoint, tmp_path):
    before, after = exported(save_checkpoint(tmp_path / "source", make_model(vocab_size=320)), tmp_path)
    assert before.tokenizer.vocab_size < after.config.vocab_size == 320
    assert after.tokenizer.encode("hello world") == before.tokenizer.encode("hello world")


@pytest.mark.parametrize("kind", BLOCKS)
def test_matrices_are_the_librarys_blocks_and_the_vocabulary_is_not_below_eight_bits(checkpoint_dir, tmp_path, kind):
    """The file's blocks, dequantised in Hugging Face's order, are the library's rounding of the checkpoint's rows."""
    before, after = exported(checkpoint_dir, tmp_path, kind)
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert types["blk.0.attn_q.weight"] == kind.upper()
    assert types["token_embd.weight"] == "Q8_0"
    assert types["blk.0.attn_norm.weight"] == "F32"
    for name, stored in (
        ("model.layers.0.self_attn.q_proj.weight", kind.upper()),
        ("model.embed_tokens.weight", "Q8_0"),
    ):
        number = gguf.GGMLQuantizationType[stored]
        blocks = gguf.quants.quantize(before.weights.get(name).float().numpy(), number)
        expected = torch.from_numpy(gguf.quants.dequantize(blocks, number))
        assert torch.equal(after.weights.get(name), expected), name


def test_q4_k_m_gives_six_bits_to_what_matters_and_falls_back_where_rows_are_no_whole_blocks(
    make_model, save_checkpoint, tmp_path
):
    model = make_model(num_hidden_layers=8, intermediate_size=256, tie_word_embeddings=False)
    write_gguf(save_checkpoint(tmp_path / "source", model), tmp_path / "model.gguf", "gguf-q4_k_m", say=quiet)
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    # As llama.cpp chooses of eight layers: the first, the last, and every third between.
    assert [types[f"blk.{layer}.ffn_down.weight"] for layer in range(8)] == [
        "Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q6_K",
    ]  # fmt: skip
    assert [types[f"blk.{layer}.attn_v.weight"] for layer in (0, 1)] == ["Q8_0", "Q5_0"]  # rows of 64
    assert (types["blk.0.attn_q.weight"], types["output.weight"], types["token_embd.weight"]) == (
        "Q5_0",
        "Q8_0",
        "Q5_0",
    )


@pytest.mark.parametrize(("kind", "other"), [("Q4_K", "Q4_1"), ("Q6_K", "Q5_1")])
def test_blocks_of_256_are_read_back_with_smaller_errors_than_simpler_ones(kind, other):
    torch.manual_seed(0)
    weight = torch.randn(64, 512) * torch.rand(64, 1)
    weight[3] = 0
    weight[5, :256] = 0.25
    number, simple = gguf.GGMLQuantizationType[kind], gguf.GGMLQuantizationType[other]
    blocks = quantise_blocks(weight, number)
    _, size = gguf.GGML_QUANT_SIZES[number]
    assert blocks.shape == (64, 2 * size)
    decoded = torch.from_numpy(gguf.quants.dequantize(blocks.numpy(), number))
    assert torch.equal(decoded[3], torch.zeros(512))
    torch.testing.assert_close(decoded[5, :256], weight[5, :256], atol=2e-3, rtol=0)
    rounded = gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), simple), simple)
    assert (decoded - weight).square().mean() < 0.95 * (torch.from_numpy(rounded) - weight).square().mean()


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_sixteen_bits_are_rounded_to_nearest(checkpoint_dir, tmp_path, kind):
    before, after = exported(checkpoint_dir, tmp_path, kind)
    dtype = torch.bfloat16 if kind == "bf16" else torch.float16
    for name in after.weights.names():
        values = before.weights.get(name).float()
        assert torch.equal(after.weights.get(name), values.to(dtype).float() if values.ndim == 2 else values), name


def test_rows_that_are_no_whole_blocks_are_float16(make_model, save_checkpoint, tmp_path):
    source = save_checkpoint(tmp_path / "source", make_model(intermediate_size=80))
    write_gguf(source, tmp_path / "model.gguf", "gguf-q4_0", say=quiet)
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert (types["blk.0.ffn_down.weight"], types["blk.0.ffn_up.weight"]) == ("F16", "Q4_0")


def test_models_and_tokenizers_that_gguf_does_not_know_are_refused(save_checkpoint, tmp_path):
    with pytest.raises(CheckpointError, match="are written for llama, mistral, qwen2, qwen3 without windows"):
        exported(save_checkpoint(tmp_path / "source", make_family("gemma3")), tmp_path)
    assert not (tmp_path / "model.gguf").exists()


def test_a_quantised_checkpoint_is_refused(checkpoint_dir, tmp_path):
    settings = Quantising(method="int8")
    quantise(checkpoint_dir, tmp_path / "int8", settings, text=None, device="cpu", say=quiet)
    with pytest.raises(CheckpointError, match="is quantised; give the plain checkpoint that it was made of"):
        exported(tmp_path / "int8", tmp_path)


def test_a_tokenizer_with_other_rules_is_refused(checkpoint_dir, save_checkpoint, hf_model, tmp_path):
    source = save_checkpoint(tmp_path / "source", hf_model)
    content = json.loads((source / "tokenizer.json").read_text())
    content["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
    (source / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="none of the pre-tokenizers smollm, llama-bpe, qwen2, gpt-2 encodes"):
        exported(source, tmp_path)
    assert list(tmp_path.glob("*.gguf")) == []


def test_the_command_writes_a_file_and_refuses_what_means_nothing(checkpoint_dir, tmp_path, capsys):
    words = ["quantize", str(checkpoint_dir), "--method", "gguf-q8_0", "--device", "cpu", "--out"]
    assert main([*words, str(tmp_path / "m.gguf")]) == 0
    assert GgufFile(tmp_path / "m.gguf").config.hidden_size == 64
    assert main([*words, str(tmp_path / "folder")]) == 2
    assert "is not the name of a GGUF file; give --out one that ends with .gguf" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "n.gguf"), "--group-size", "64"]) == 2
    assert "--group-size means nothing to --method gguf-q8_0; leave it out" in capsys.readouterr().err
