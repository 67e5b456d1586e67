import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.request import Request, SamplingParams
from reference_engine.sampling import sample


def request(name="r", outputs=0, **params):
    one = Request(name, [1], SamplingParams(max_tokens=99, **params))
    one.token_ids.extend([0] * outputs)
    return one


def draw(logits, count=400, **params):
    one = request(**params)
    return [sample(logits.clone()[None], [one])[0].token_id for _ in range(count)]


LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()


def test_temperature_zero_takes_the_most_likely():
    assert set(draw(LOGITS, temperature=0.0)) == {0}


def test_plain_sampling_follows_the_distribution():
    drawn = draw(LOGITS, count=4000, seed=1)
    for token, expected in enumerate((0.5, 0.3, 0.15, 0.05)):
        share, error = drawn.count(token) / 4000, math.sqrt(expected * (1 - expected) / 4000)
        assert abs(share - expected) < 4 * error


def test_temperature_sharpens():
    drawn = draw(LOGITS, count=2000, temperature=0.5, seed=2)
    expected = 0.25 / (0.25 + 0.09 + 0.0225 + 0.0025)
    assert abs(drawn.count(0) / 2000 - expected) < 0.04


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.4}, {0}),
        ({"top_p": 0.49}, {0}),
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 0.9, "top_k": 3}, {0, 1, 2}),
        ({"top_p": 1e-9}, {0}),
    ],
)
def test_filters_keep_what_they_should(params, allowed):
    assert set(draw(LOGITS, **params)) == allowed


def test_a_flat_distribution_over_a_large_vocabulary_needs_the_full_sort():
    drawn = draw(torch.zeros(5000), count=60, top_p=0.9)
    assert len(set(drawn)) > 40


def test_the_same_seed_gives_the_same_tokens_in_any_company():
    torch.manual_seed(0)
    logits = torch.randn(30, 500)

    def run(mates):
        one = request("me", seed=11, top_p=0.9)
        chosen = []
        for row in logits:
            others = torch.randn(len(mates), 500)
            chosen.append(sample(torch.cat([row[None], others]), [one, *mates])[0].token_id)
        return chosen

    alone = run([])
    assert run([request("a", temperature=0.0), request("b", top_k=3), request("c", seed=11)]) == alone
    assert len(set(alone)) > 5


def test_stop_tokens_wait_for_min_tokens():
    params = {"temperature": 0.0, "min_tokens": 2, "stop_token_ids": frozenset({0})}
    assert sample(LOGITS.clone()[None], [request(outputs=1, **params)])[0].token_id == 1
    assert sample(LOGITS.clone()[None], [request(outputs=2, **params)])[0].token_id == 0


def test_logprobs_are_the_models_own_whatever_the_sampler_did():
    params = {"temperature": 0.0, "min_tokens": 1, "stop_token_ids": frozenset({0}), "logprobs": True}
    token = sample((LOGITS + 3.0)[None], [request(**params)])[0]
    assert token.token_id == 1
    assert token.logprob == pytest.approx(math.log(0.3), abs=1e-5)
    assert sample(LOGITS.clone()[None], [request()])[0].logprob is None


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
    temperature=st.floats(0.01, 5),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 50),
    seed=st.integers(0, 2**63 - 1),
)
def test_any_parameters_give_a_token_of_the_vocabulary(values, temperature, top_p, top_k, seed):
    logits = torch.tensor(values)
    one = request(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
    token = sample(logits.clone()[None], [one])[0].token_id
    assert 0 <= token < len(values)
    if top_k:
        assert logits[token] >= logits.sort(descending=True).values[min(top_k, len(values)) - 1]
