"""Gemma's norms in bfloat16 against Transformers' own, which compute 1 + weight in float32."""

from types import SimpleNamespace

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.kernels.cpu import TorchKernels, best_kernels
from bakeoff.reference_engine.models.gqa import GroupedQueryAttention
from bakeoff.reference_engine.models.weights import Weights

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
        kernels=SimpleNamespace(apply_rope=lambda heads, *_: heads),
        norm=weights_of(q_norm=query_norm, k_norm=key_norm).norm,
        columns=lambda *_, **__: lambda rows: rows,
        rows=lambda *_, **__: lambda attended: attended,
    )
    config = ModelConfig(
        vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=DIM, max_position_embeddings=64, rms_norm_eps=EPS, rope_theta=10.0,
    )  # fmt: skip
    attention = GroupedQueryAttention(config, 0, weights, qk_norm=True)
    heads = torch.randn(20, HEADS + 2 * KV_HEADS, DIM).bfloat16()
    query, key = attention(heads.flatten(1), [()], SimpleNamespace(attend=lambda _, query, key, *__: (query, key)))
    assert_same_but_for_ties(query, query_norm(heads[:, :HEADS]))
    assert_same_but_for_ties(key, key_norm(heads[:, HEADS : HEADS + KV_HEADS]))
