"""Gemma: norms in bfloat16 against Transformers' own, which compute 1 + weight in float32; models that take images."""

from types import SimpleNamespace

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.core.ranks import ALONE
from bakeoff.reference_engine.kernels.cpu import TorchKernels, best_kernels
from bakeoff.reference_engine.models.decoder import Rotations
from bakeoff.reference_engine.models.gqa import GroupedQueryAttention
from bakeoff.reference_engine.models.weights import Weights
from bakeoff.reference_engine.offline import load_engine
from tests.reference_engine.models.tiny_families import answers, engine_config, make_family

CPU, EPS = torch.device("cpu"), 1e-6
HEADS, KV_HEADS, DIM = 4, 2, 64


def random_norm(dim):
    norm = Gemma3RMSNorm(dim, eps=EPS).bfloat16()
    torch.nn.init.normal_(norm.weight, std=0.3)
    return norm.requires_grad_(False)


def weights_of(**norms):
    source = SimpleNamespace(get=lambda name, *_: norms[name.split(".")[-2]].weight)
    return Weights(source, torch.bfloat16, CPU, norm_offset=1.0)


def assert_same_but_for_ties(actual, expected):
    assert (actual != expected).float().mean() < 0.01
    torch.testing.assert_close(actual, expected, atol=0.0, rtol=2**-7)


@pytest.mark.parametrize("kernels", [best_kernels(CPU, torch.bfloat16), TorchKernels()], ids=["compiled", "stock"])
def test_one_plus_the_weight_is_not_rounded(kernels):
    torch.manual_seed(1)
    norm, rows = random_norm(512), torch.randn(40, 512).bfloat16()
    actual = kernels.add_rms_norm(rows.clone(), None, weights_of(norm=norm).norm("norm"), EPS)
    assert_same_but_for_ties(actual, norm(rows))


def test_heads_are_normalised_in_float32():
    torch.manual_seed(2)
    query_norm, key_norm = random_norm(DIM), random_norm(DIM)
    weights = SimpleNamespace(
        kernels=SimpleNamespace(apply_rope=lambda heads, *_: heads, add_rms_norm=None),
        ranks=ALONE,
        norm=weights_of(q_norm=query_norm, k_norm=key_norm).norm,
        columns=lambda *_, **__: lambda rows: rows,
        rows=lambda *_, **__: lambda attended: attended,
    )
    config = ModelConfig(
        vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=DIM, max_position_embeddings=64, rms_norm_eps=EPS, rope_theta=10.0,
        qk_norm=True,
    )  # fmt: skip
    attention = GroupedQueryAttention(config, 0, weights)
    heads = torch.randn(20, HEADS + 2 * KV_HEADS, DIM).bfloat16()
    query, key = attention(
        heads.flatten(1), Rotations([()]), SimpleNamespace(attend=lambda _, query, key, *__, **___: (query, key))
    )
    assert_same_but_for_ties(query, query_norm(heads[:, :HEADS]))
    assert_same_but_for_ties(key, key_norm(heads[:, HEADS : HEADS + KV_HEADS]))


@pytest.mark.parametrize("prefix", [None, "language_model."], ids=["version 5", "on the hub"])
def test_of_a_checkpoint_that_takes_images_the_text_decoder_answers(tmp_path, save_checkpoint, greedy, prefix):
    text = make_family("gemma3").config
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 28, "patch_size": 14}  # fmt: skip
    config = hf.Gemma3Config(text_config=text.to_dict(), vision_config=vision, mm_tokens_per_image=4, eos_token_id=2)
    whole = hf.Gemma3ForConditionalGeneration(config).eval()
    save_checkpoint(tmp_path, whole)
    if prefix is not None:
        file = tmp_path / "model.safetensors"
        save_file({old_name(name, prefix): tensor for name, tensor in load_file(file).items()}, file)
    prompts = [list(range(3, 40)), [7, 8, 9]]
    outputs, _ = answers(load_engine(engine_config(tmp_path)), prompts, 8)
    assert outputs == [greedy(whole, prompt, 8)[0] for prompt in prompts]


def old_name(name, prefix):
    _, text, rest = name.partition("model.language_model.")
    return f"{prefix}model.{rest}" if text else name
