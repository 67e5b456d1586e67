"""Draws on the logits' device, here a CPU, against the sampler on the host."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bakeoff.reference_engine.core.request import Request, SamplingParams, Watermark
from bakeoff.reference_engine.kernels import nucleus
from bakeoff.reference_engine.sampling import choose_on_device, device_sampler
from bakeoff.reference_engine.sampling.blocks import BlockedScores
from bakeoff.reference_engine.sampling.drawing import draw
from bakeoff.reference_engine.sampling.truncation import draw_truncated
from bakeoff.reference_engine.sampling.uniform import uniforms
from tests.reference_engine.stepping import sample

NUMBERS = itertools.count()
NEAR = 1e-9  # of a uniform number to a border, relative
VOCABULARY = 700


def request(output=0, **params):
    sequence = Request(f"r{next(NUMBERS)}", [1], SamplingParams(max_tokens=999, **params))
    sequence.token_ids += [3] * output
    return sequence


def on_host(logits, requests):
    with np.errstate(invalid="ignore"):  # infinite scores
        return [token.token_id for token in sample(logits.clone(), requests)]


def on_device(logits, requests):
    before = logits.clone()
    tokens = choose_on_device(logits, requests)
    assert (tokens.dtype, tokens.shape) == (torch.int64, (len(requests),))
    assert torch.equal(logits.view(torch.int32), before.view(torch.int32))
    return tokens.tolist()


def tokens_nearby(scores, sequence):
    """Tokens that the sampler on the host draws with uniform numbers just below and above the request's."""
    number = uniforms([sequence.sampling.seed], [sequence.num_sampled])[0]
    choose = draw_truncated if sequence.sampling.is_truncated else draw
    blocked = BlockedScores(scores[None])
    return {int(choose(blocked, [sequence.sampling], np.array([number * way]))[0]) for way in (1 - NEAR, 1 + NEAR)}


PARAMS = {
    "temperature": st.just(0.0) | st.floats(0.01, 5),
    "top_p": st.just(1.0) | st.floats(0.01, 1),
    "top_k": st.sampled_from([0, 1, 2, 50, 64, 65, 300, 1024, 1025, 2000]),
    "min_p": st.just(0.0) | st.floats(0, 1),
    "seed": st.integers(0, 2**63 - 1),
}
REQUESTS = st.builds(request, st.integers(0, 500), **PARAMS)
ROWS = {
    "random": lambda row: row,
    "of half precision": lambda row: row.bfloat16().float(),
    "flat": torch.zeros_like,
    "of zeros with signs": lambda row: row * 0.0,
    "cold": lambda row: row * 30,
    "forbidden here and there": lambda row: row.masked_fill(row < 0, -math.inf),
    "forbidden": lambda row: torch.full_like(row, -math.inf),
    "forbidden but for one token": lambda row: torch.full_like(row, -math.inf).index_fill_(0, row.argmax(), 2.0),
    "with NaN": lambda row: row.masked_fill(row == row.min(), math.nan),
    "all NaN": lambda row: torch.full_like(row, math.nan),
    "with an infinite score": lambda row: row.masked_fill(row == row.median(), math.inf),
}


@st.composite
def batches(draw_from):
    requests = draw_from(st.lists(REQUESTS, min_size=1, max_size=12))
    kinds = draw_from(st.lists(st.sampled_from(sorted(ROWS)), min_size=len(requests), max_size=len(requests)))
    size = draw_from(st.sampled_from([1, 10, 64, 100, 128, VOCABULARY, 2500]))
    generator = torch.Generator().manual_seed(draw_from(st.integers(0, 999)))
    rows = torch.randn(len(requests), size, generator=generator) * draw_from(st.sampled_from([0.5, 4.0]))
    return torch.stack([ROWS[kind](row) for kind, row in zip(kinds, rows, strict=True)]), requests


@pytest.mark.parametrize("most_ranked", [1 << 22, 1])
def test_tokens_are_those_of_the_sampler_on_the_host(monkeypatch, most_ranked):
    monkeypatch.setattr(device_sampler, "_MOST_RANKED", most_ranked)
    num_drawn, num_excused = 0, 0

    @given(batches())
    def check(batch):
        nonlocal num_drawn, num_excused
        logits, requests = batch
        expected = on_host(logits, requests)
        for row, token in enumerate(on_device(logits, requests)):
            num_drawn += 1
            if token != expected[row]:
                assert token in tokens_nearby(logits[row], requests[row])
                num_excused += 1

    check()
    assert num_drawn > 20
    assert num_excused <= num_drawn // 1000


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize(
    "params",
    [
        {}, {"top_k": 50}, {"top_k": 300}, {"top_k": 1500}, {"top_p": 0.9}, {"min_p": 0.1}, {"min_p": 1.0},
        {"top_p": 0.9, "top_k": 30},
    ],
    ids=str,
)  # fmt: skip
def test_for_any_scores_each_kind_of_parameters_draws_the_same(kind, params):
    rows = torch.randn(8, VOCABULARY, generator=torch.Generator().manual_seed(5)) * 2
    logits = torch.stack([ROWS[kind](row) for row in rows])
    requests = [request(temperature=0.8, seed=seed, **params) for seed in range(8)]
    assert on_device(logits, requests) == on_host(logits, requests)


@pytest.mark.parametrize("kind", ROWS)
def test_the_kernel_that_sorts_nothing_draws_the_same(monkeypatch, kind):
    monkeypatch.setattr(device_sampler, "has_triton", lambda device: True)
    monkeypatch.setattr(nucleus, "_TILE", 64)
    row = ROWS[kind](torch.randn(100, generator=torch.Generator().manual_seed(5)) * 2) + 3
    params = [{"top_p": 0.8}, {"top_p": 0.3, "temperature": 2.0}, {"min_p": 0.1}, {"top_p": 0.5, "min_p": 0.02}]
    requests = [request(seed=seed, **of_row) for seed, of_row in enumerate(params)]
    logits = row.expand(len(requests), -1).clone()
    assert on_device(logits, requests) == on_host(logits, requests)


def test_the_number_of_a_draw_counts_pending_tokens():
    logits = torch.zeros(1, VOCABULARY)
    settled, pending, before = request(5, seed=3), request(4, seed=3), request(4, seed=3)
    pending.num_pending = 1
    token = on_host(logits, [settled])
    assert on_device(logits, [pending]) == on_host(logits, [pending]) == token
    assert on_device(logits, [before]) != token


def test_logits_of_half_precision_draw_as_in_float32():
    logits = (torch.randn(9, 300, generator=torch.Generator().manual_seed(2)) * 3).bfloat16()
    requests = [request(seed=row, temperature=row / 4, top_k=row % 3 * 5) for row in range(9)]
    assert choose_on_device(logits, requests).tolist() == on_host(logits, requests)


class OpsOnHost(TorchDispatchMode):
    """Records the operations that read a tensor on the CPU."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(tensor.device.type == "cpu" for tensor in tensors):
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("vocabulary", [2500, 2560])
def test_one_copy_goes_to_the_device_and_nothing_is_read_back(monkeypatch, vocabulary):
    kinds = [{"temperature": 0.0}, {}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 5}, {"top_k": 500}, {"top_k": 1500}]
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # of a GPU's driver
    with OpsOnHost() as ops:
        # A meta tensor has no numbers: an operation whose result depends on them fails.
        tokens = choose_on_device(torch.empty(14, vocabulary, device="meta"), [request(**kind) for kind in kinds * 2])
    assert (tokens.device.type, tokens.shape) == ("meta", (14,))
    assert ops.names == ["lift_fresh", "_to_copy"]


@pytest.mark.parametrize(
    ("params", "needs_host"),
    [
        ({}, False),
        ({"temperature": 0.0, "top_k": 4, "top_p": 0.5, "min_p": 0.1, "seed": 4}, False),
        ({"stop_token_ids": frozenset({2})}, False),
        ({"min_tokens": 1}, False),  # as load generators ask for exact lengths, with ignore_eos
        ({"min_tokens": 1, "stop_token_ids": frozenset({2})}, True),
        ({"logprobs": 0}, True),
        ({"grammar": "root ::= 'a'"}, True),
        ({"logit_bias": {1: 1.0}}, True),
        ({"presence_penalty": 0.1}, True),
        ({"watermark": Watermark(), "temperature": 0.0}, True),
    ],
    ids=str,
)
def test_only_what_depends_on_earlier_tokens_or_reports_needs_the_host(params, needs_host):
    assert SamplingParams(max_tokens=1, **params).needs_host is needs_host
