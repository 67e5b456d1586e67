import dataclasses
import math
import struct

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bakeoff.reference_engine.core.model_config import RopeScaling
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.loading.gguf import GgufFile
from bakeoff.reference_engine.loading.gguf_tokenizer import build_tokenizer
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.tools.convert import convert_gguf
from tests.reference_engine.models.tiny_families import make_family

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    if name.startswith("model.layers."):
        _, _, layer, rest = name.split(".", 3)
        stem, kind = rest.rsplit(".", 1)
        return f"blk.{layer}.{NAMES[stem]}.{kind}"
    return {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }[name]


def permute(weight, heads):
    """Permute the rows of q and k as llama.cpp's converter does."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, model, tokenizer, *, architecture="llama", quantize=None, changes=None, extra_tensors=None):
    config = model.config
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if index < 3 else 1 for _, index in vocabulary])
    writer.add_token_merges(["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
    for key, value in (changes or {}).items():
        add[type(value)](key, value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            values = permute(values, heads) if architecture == "llama" and part in name else values
        if quantize is not None and values.ndim == 2:
            data, kind = (
                quantize(name, values) if callable(quantize) else (gguf.quants.quantize(values, quantize), quantize)
            )
            writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(values))
    for name, values in (extra_tensors or {}).items():
        writer.add_tensor(name, np.array(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def tiny_gguf(tmp_path, hf_model, checkpoint_dir):
    tokenizer = open_checkpoint(checkpoint_dir).tokenizer.backend
    return lambda **settings: write_gguf(tmp_path / "tiny.gguf", hf_model, tokenizer, **settings)


def test_tensors_come_back_in_hugging_face_order(tiny_gguf, hf_model):
    file = GgufFile(tiny_gguf())
    expected = {name: tensor for name, tensor in hf_model.state_dict().items() if name != "lm_head.weight"}
    assert set(file.names()) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(file.get(name), tensor), name


def test_config_comes_from_the_metadata(tiny_gguf, hf_model):
    config = GgufFile(tiny_gguf()).config
    expected = hf_model.config
    assert (config.num_key_value_heads, config.head_dim) == (expected.num_key_value_heads, expected.head_dim)
    assert config.rms_norm_eps == expected.rms_norm_eps  # not float32's 9.99e-07
    assert config.rope_theta == expected.rope_parameters["rope_theta"]
    assert config.tie_word_embeddings
    assert config.eos_token_ids == (2,)


def test_biases_and_an_untied_head_are_found(tmp_path, make_model, checkpoint_dir):
    model = make_model(attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    tokenizer = open_checkpoint(checkpoint_dir).tokenizer.backend
    file = GgufFile(write_gguf(tmp_path / "b.gguf", model, tokenizer))
    assert (file.config.attention_bias, file.config.mlp_bias, file.config.tie_word_embeddings) == (True, True, False)
    for name, tensor in model.state_dict().items():
        assert torch.equal(file.get(name), tensor), name


def test_quantised_tensors_are_dequantised(tiny_gguf, hf_model):
    file = GgufFile(tiny_gguf(quantize=gguf.GGMLQuantizationType.Q8_0))
    name = "model.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(file.get(name), hf_model.state_dict()[name], atol=0.02, rtol=0.02)


def test_linear_rope_scaling_is_read(tiny_gguf):
    changes = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert GgufFile(tiny_gguf(changes=changes)).config.rope_scaling == RopeScaling("linear", 4.0)


def llama3_divisors(dim, theta, factor):
    """As llama.cpp's converter writes them, for 8,192 trained tokens and bounds of 1 and 4 wavelengths."""
    divisors = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * theta ** (i / dim)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_rope_scaling_is_read_from_its_divisors(tmp_path, make_model, checkpoint_dir, factor):
    rope = {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    model = make_model(rope_parameters=rope, head_dim=64)
    divisors = llama3_divisors(64, 5e5, factor)
    assert len(set(divisors)) > 4
    tokenizer = open_checkpoint(checkpoint_dir).tokenizer.backend
    changes = {"llama.attention.key_length": 64}
    extra = {"rope_freqs.weight": divisors}
    path = write_gguf(tmp_path / "3.gguf", model, tokenizer, changes=changes, extra_tensors=extra)
    assert GgufFile(path).config.rope_scaling == RopeScaling("llama3", factor)
    assert "rope_freqs.weight" not in GgufFile(path).names()
    convert_gguf(path, tmp_path / "out", dtype="float32", progress=lambda _: None)
    ids = torch.arange(3, 200)[None]
    with torch.inference_mode():
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "out")(ids).logits, model(ids).logits)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3, biases"])
def test_qwens_are_read_as_their_checkpoints(tmp_path, save_checkpoint, family):
    name, _, biased = family.partition(", ")
    changes = {"attention_bias": True} if biased else {}
    model = make_family(name, **changes)
    original = SafetensorsDirectory(save_checkpoint(tmp_path, model)).config
    tokenizer = open_checkpoint(tmp_path).tokenizer.backend
    key_length = {f"{name}.attention.key_length": original.head_dim}
    file = GgufFile(write_gguf(tmp_path / "q.gguf", model, tokenizer, architecture=name, changes=key_length))
    windows = (None,) * original.num_hidden_layers
    assert dataclasses.replace(file.config, dtype="float32", windows=windows) == original
    for key, tensor in model.state_dict().items():
        if key in file.names():
            assert torch.equal(file.get(key), tensor), key
    convert_gguf(tmp_path / "q.gguf", tmp_path / "out", dtype="float32", progress=lambda _: None)
    ids = torch.arange(3, 40)[None]
    with torch.inference_mode():
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "out")(ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({}, (2,)),
        ({"tokenizer.ggml.eos_token_id": 0}, (0, 2)),  # <|im_end|> is a control token
        ({"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 1}, (0, 1)),
        ({"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.eom_token_id": 5}, (2, 0, 5)),
    ],
)
def test_the_ends_of_a_turn_and_a_message_end_an_answer(tiny_gguf, changes, ends):
    assert GgufFile(tiny_gguf(changes=changes)).config.eos_token_ids == ends


@pytest.mark.parametrize("keep", [0.2, 0.6, 0.99])
def test_a_cut_file_is_one_clear_error_with_both_sizes(tiny_gguf, keep):
    path = tiny_gguf()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(CheckpointError) as caught:
        GgufFile(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert str(int(len(whole) * keep)) in message
    assert f"needs {len(whole)} bytes" in message or "more than the" in message
    assert "\n" not in message


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 something else", b"GGUF\x03\x00"])
def test_what_is_no_gguf_says_so(tmp_path, content):
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"x\.gguf: .*{len(content)}"):
        GgufFile(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"architecture": "bert"}, "architecture 'bert' is not supported"),
        ({"changes": {"llama.rope.scaling.type": "yarn"}}, "rope scaling 'yarn'"),
        ({"extra_tensors": {"rope_freqs.weight": [0] * 8}}, "is not Llama 3's rope scaling"),
        ({"extra_tensors": {"rope_freqs.weight": [1, 1, 1, 2, 3, 5, 8, 8]}}, "is not Llama 3's rope scaling"),
        ({"extra_tensors": {"rope_freqs.weight": [8] * 7}}, "is not Llama 3's rope scaling"),
        ({"extra_tensors": {"blk.0.ffn_gate_exps.weight": [0]}}, "model variant that is not supported"),
    ],
)
def test_other_models_are_refused(tiny_gguf, settings, message):
    with pytest.raises(CheckpointError, match=message):
        GgufFile(tiny_gguf(**settings))


def test_missing_tensors_and_metadata_are_named(tiny_gguf):
    with pytest.raises(CheckpointError, match=r"tensor nonsense\.q_proj\.weight is missing"):
        GgufFile(tiny_gguf()).get("nonsense.q_proj.weight")


def test_the_rebuilt_tokenizer_equals_the_original(tiny_gguf, checkpoint_dir):
    tokenizer = open_checkpoint(tiny_gguf()).tokenizer
    original = open_checkpoint(checkpoint_dir).tokenizer
    text = "<|im_start|>hello world, it's 123 o'clock — Größe 😀\n\tend<|im_end|>"
    assert tokenizer.encode(text) == original.encode(text)
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
    assert tokenizer.eos_token_id == 2


def metadata(**changes):
    tokens = ["<s>", "a", "b", "1", "2", "ab", "12", "<user>"]
    base = {"model": "gpt2", "pre": "smollm", "tokens": tokens, "merges": ["a b", "1 2"], "bos_token_id": 0}
    base |= {"token_type": [3, 1, 1, 1, 1, 1, 1, 4]} | changes
    return {f"tokenizer.ggml.{key}": value for key, value in base.items()}


@pytest.mark.parametrize(
    ("pre", "ids"),
    [("smollm", [5, 3, 4]), ("gpt-2", [5, 6]), ("llama-bpe", [5, 6]), ("qwen2", [5, 3, 4])],
)
def test_pre_tokenizers_cut_digits_as_their_models_do(pre, ids):
    assert build_tokenizer(metadata(pre=pre, add_bos_token=False), "x").encode("ab12").ids == ids


def test_llama_3_begins_with_bos_unless_told_otherwise():
    assert build_tokenizer(metadata(pre="llama-bpe"), "x").encode("ab").ids == [0, 5]
    assert build_tokenizer(metadata(pre="llama-bpe", add_bos_token=False), "x").encode("ab").ids == [5]


def test_qwen_composes_characters():
    tokens = ["<s>", "Ã", "©", "e", "Ì", "ģ"]
    qwen = build_tokenizer(metadata(pre="qwen2", tokens=tokens, merges=[], token_type=[3, 1, 1, 1, 1, 1]), "x")
    assert qwen.encode("e\u0301").ids == qwen.encode("é").ids == [1, 2]


def test_user_defined_tokens_and_a_leading_bos_are_kept():
    tokenizer = build_tokenizer(metadata(add_bos_token=True), "x")
    assert tokenizer.encode("a<user>b").ids == [0, 1, 7, 2]
    assert tokenizer.decode([1, 7], skip_special_tokens=True) == "a<user>"


@pytest.mark.parametrize("changes", [{"model": "llama"}, {"pre": "something new"}])
def test_tokenizers_that_cannot_be_rebuilt_exactly_are_refused(changes):
    with pytest.raises(CheckpointError, match=r"model\.gguf: GGUF (tokenizer|pre-tokenizer)"):
        build_tokenizer(metadata(**changes), "model.gguf")


def test_transformers_loads_what_convert_wrote(tiny_gguf, tmp_path, hf_model):
    lines = []
    convert_gguf(tiny_gguf(), tmp_path / "out", dtype="float32", progress=lines.append)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.arange(3, 40)[None]
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, hf_model(ids).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False) == "hello"
    assert lines[-1] == f"wrote {tmp_path / 'out'}"


def test_convert_replaces_an_old_checkpoint_and_leaves_no_scratch(tiny_gguf, tmp_path):
    source, target = tiny_gguf(), tmp_path / "deep" / "out"
    for dtype in ("float32", "bfloat16"):
        convert_gguf(source, target, dtype=dtype, progress=lambda _: None)
        assert open_checkpoint(target).config.dtype == dtype
    assert [path.name for path in target.parent.iterdir()] == ["out"]


def test_convert_leaves_nothing_behind_when_it_fails(tiny_gguf, tmp_path):
    source = tiny_gguf()

    def stop(line):
        if "dequantised" in line:
            raise RuntimeError("pulled the plug")

    with pytest.raises(RuntimeError, match="plug"):
        convert_gguf(source, tmp_path / "out", dtype="bfloat16", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_convert_does_not_touch_directories_of_others(tiny_gguf, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("meow")
    source = tiny_gguf()
    with pytest.raises(CheckpointError, match="is neither empty nor a checkpoint"):
        convert_gguf(source, tmp_path / "photos", dtype="bfloat16", progress=lambda _: None)
    with pytest.raises(CheckpointError, match="is a file"):
        convert_gguf(source, tmp_path / "photos" / "cat.jpg", dtype="bfloat16", progress=lambda _: None)


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<QQ", 2**40, 0),
        struct.pack("<QQ", 0, 2**40),
        struct.pack("<QQ", 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 2**50),
        struct.pack("<QQ", 0, 1) + struct.pack("<Q", 2**62),
    ],
)
def test_a_count_that_the_file_cannot_hold_is_refused_at_once(body, tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<I", 3) + body + bytes(100))
    with pytest.raises(CheckpointError, match=r"m\.gguf: its header counts \d+ items where \d+ bytes are left"):
        GgufFile(tmp_path / "m.gguf")
