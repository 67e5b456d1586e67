"""Counts from a config.json: against checkpoints, against the bytes that the engine loads, and worked out by hand."""

import dataclasses
import math

import pytest
import torch

from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.models.config_readers import config_from_hf
from bakeoff.reference_engine.models.costs import Chunk, Machine, ModelCosts, floor_s
from bakeoff.reference_engine.models.gpt_oss import SplitExperts
from bakeoff.reference_engine.models.registry import FAMILIES as BUILT
from bakeoff.reference_engine.models.shapes import weight_shapes
from bakeoff.reference_engine.models.weights import Weights
from tests.reference_engine.models.tiny_families import FAMILIES, make_family

TINY = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
LAYER = 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * 12 + 2 * 8  # q, k and v, o, feed-forward, norms
HEAD = 100 * 8


def read(**changes):
    return config_from_hf(TINY | changes, "x")


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("family")
    make_family(request.param).save_pretrained(directory)
    return SafetensorsDirectory(directory)


def test_names_and_shapes_are_those_of_the_checkpoint(checkpoint):
    stored = {name: tuple(checkpoint.get(name).shape) for name in checkpoint.names()}
    shapes = weight_shapes(checkpoint.config)
    if checkpoint.config.model_type == "gpt_oss":  # stored in stacks
        split = SplitExperts(checkpoint.config, checkpoint)
        assert {name: tuple(split.get(name).shape) for name in shapes} == shapes
    else:
        assert shapes == stored
    assert ModelCosts(checkpoint.config).parameters == sum(map(math.prod, stored.values()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_bytes_are_what_the_engine_loads(checkpoint, dtype):
    config = checkpoint.config
    family = BUILT[config.model_type]
    weights = Weights(family.adapt(config, checkpoint), dtype, torch.device("cpu"), config.norm_offset)
    family.build(config, weights, 64)
    assert weights.plain_bytes == ModelCosts(config, dtype.itemsize).weight_bytes


def test_a_decode_reads_all_weights_but_the_embedding_and_the_whole_cache():
    costs = ModelCosts(read())
    assert costs.parameters == 2 * LAYER + 8 + 2 * HEAD
    assert costs.kv_bytes_per_token == 2 * 2 * 2 * 2 * 2  # layers, keys and values, heads, head_dim, bytes
    step = costs.decode(3, 10)
    assert step.bytes == 2 * (2 * LAYER + 8 + HEAD) + 3 * 11 * 32
    assert step.flops == 3 * (2 * (2 * LAYER + 8 + HEAD) + 2 * 11 * 4 * 2 * 4)  # layers, pairs, heads, head_dim
    assert costs.decode(1, 10).flops == step.flops / 3
    assert costs.memory_bytes(3, 10) == 2 * costs.parameters + 3 * 10 * 32


def test_a_tied_embedding_is_read_as_the_output_matrix():
    tied, untied = (ModelCosts(read(tie_word_embeddings=tie)) for tie in (True, False))
    assert untied.parameters - tied.parameters == HEAD
    assert tied.decode(1, 5) == untied.decode(1, 5)


def test_a_prompt_in_pieces_costs_the_same_operations_and_reads_the_weights_again():
    costs = ModelCosts(read())
    whole = costs.step([Chunk(20)])
    first, second = costs.step([Chunk(8, is_sampled=False)]), costs.step([Chunk(12, past=8)])
    assert first.flops + second.flops == whole.flops
    assert first.bytes + second.bytes == whole.bytes + 2 * (2 * LAYER + 8) + 8 * 32


def test_a_window_bounds_what_is_read_and_attended():
    config = read(model_type="mistral", sliding_window=4)
    costs, step = ModelCosts(config), ModelCosts(config).decode(1, 50)
    assert step.bytes == ModelCosts(read()).decode(1, 3).bytes
    assert step.flops == ModelCosts(read()).decode(1, 3).flops
    assert costs.step([Chunk(6)]).flops == sum(costs.decode(1, past).flops for past in range(6)) - 5 * 2 * HEAD
    assert costs.memory_bytes(1, 50) == 2 * costs.parameters + 4 * 32


def test_of_the_experts_only_the_chosen_ones_are_read():
    experts = {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 12, "head_dim": 2}
    config = read(model_type="qwen3_moe", **experts)
    one_token, expert = ModelCosts(config).decode(1, 0), 3 * 8 * 12
    shared = LAYER - expert + 4 * 8 + 2 * 2  # the router, and the norms of queries and keys
    assert one_token.bytes == 2 * (2 * (shared + expert) + 8 + HEAD) + 2 * 2 * 4 * 8 + 32
    assert one_token.flops == 2 * (2 * (shared + expert) + 8 + HEAD) + 2 * 4 * 2 * 4
    two_tokens = ModelCosts(config).decode(2, 0)
    assert two_tokens.bytes - one_token.bytes == 2 * 2 * expert * 0.75 + 32


def test_latents_are_cached_once_for_all_heads():
    latents = {"kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 4, "moe_intermediate_size": 4}
    config = read(model_type="deepseek_v2", n_routed_experts=4, num_experts_per_tok=2, **latents)
    assert ModelCosts(config).kv_bytes_per_token == 2 * (16 + 4) * 2


def test_the_floor_is_the_slower_of_memory_and_arithmetic():
    costs = ModelCosts(read())
    step = costs.decode(1, 0)
    assert floor_s(step, Machine(bytes_per_s=step.bytes, flops_per_s=1e30)) == 1
    assert floor_s(step, Machine(bytes_per_s=1e30, flops_per_s=step.flops / 2)) == 2


def test_the_floor_of_a_run_is_that_of_its_steps():
    costs, machine = ModelCosts(read()), Machine(1e6, 1e9)
    prompt = floor_s(costs.step([Chunk(6, count=2)]), machine)
    decodes = floor_s(costs.decode(2, 6), machine) + floor_s(costs.decode(2, 7), machine)
    assert costs.run_floor_s(2, 6, 3, machine) == pytest.approx(prompt + decodes)
    assert costs.run_floor_s(4, 6, 3, machine, seats=2) == pytest.approx(2 * (prompt + decodes))


def test_smaller_types_move_fewer_bytes_and_compute_as_much():
    wide, narrow = (ModelCosts(read(), size, size).decode(4, 9) for size in (2, 1))
    assert dataclasses.astuple(narrow) == (wide.bytes / 2, wide.flops)


def test_embedding_and_output_matrix_may_keep_a_wider_type():
    costs, plain = ModelCosts(read(), 0.5, end_bytes_each=2), ModelCosts(read(), 0.5)
    assert costs.weight_bytes - plain.weight_bytes == 1.5 * 2 * HEAD
    assert costs.decode(1, 0).bytes - plain.decode(1, 0).bytes == 1.5 * HEAD
