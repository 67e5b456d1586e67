"""Sampling against a plain twin that handles one row at a time, in float64."""

import itertools
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from bakeoff.reference_engine.core.request import Request, SamplingParams, Watermark
from bakeoff.reference_engine.offline import generate
from bakeoff.reference_engine.sampling.uniform import philox, uniforms
from bakeoff.reference_engine.sampling.watermark import are_green
from tests.reference_engine.stepping import sample

PROMPT = [1, 2, 2, 5]
OUTPUT = [5, 7, 7, 7, 9]
NUMBERS = itertools.count()
LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()


def request(name=None, prompt=(1,), output=(), **params):
    sequence = Request(name or f"r{next(NUMBERS)}", prompt, SamplingParams(max_tokens=999, **params))
    sequence.token_ids.extend(output)
    return sequence


def draw(logits, count=400, **params):
    """Tokens of this many requests that differ only in their seeds."""
    drawn = sample(logits.repeat(count, 1), [request(**(params | {"seed": seed})) for seed in range(count)])
    return [token.token_id for token in drawn]


def changed_scores(logits, params, prompt, output):
    """Bias, penalties and forbidden stop tokens, one token at a time; in float32, as the scores are."""
    scores = list(logits.numpy())
    factor, per_token, per_use = map(
        np.float32, (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    )
    for token, value in params.logit_bias.items():
        scores[token] += np.float32(value)
    for token in set(prompt) | set(output):
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    for token in set(output):
        scores[token] -= per_use * np.float32(output.count(token)) + per_token
    if params.watermark is not None:
        previous = np.full(len(scores), [*prompt, *output][-1])
        green = are_green(params.watermark, previous, np.arange(len(scores)))
        scores = [
            score + np.float32(params.watermark.delta * is_green) for score, is_green in zip(scores, green, strict=True)
        ]
    if len(output) < params.min_tokens:
        for token in params.stop_token_ids:
            scores[token] = -math.inf
    return [float(score) for score in scores]


def ranked_weights(scores, params):
    """Token ids, most likely first, and what min-p, top-k and top-p leave of their probabilities."""
    best = max(scores)
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    weights = [math.exp((scores[token] - best) / params.temperature) for token in order]
    weights = [weight if weight >= params.min_p else 0.0 for weight in weights]
    if params.top_k:
        weights[params.top_k :] = [0.0] * len(weights[params.top_k :])
    total, before = sum(weights), 0.0
    for place, weight in enumerate(weights):
        if before >= params.top_p * total:
            weights[place] = 0.0
        before += weight
    return order, weights


def exact(logits, params, prompt=(), output=()):
    """The probability of each token."""
    order, weights = ranked_weights(changed_scores(logits, params, list(prompt), list(output)), params)
    shares = np.zeros(len(order))
    shares[order] = np.array(weights) / sum(weights)
    return shares


OPTIONS = {
    "nothing": {},
    "temperature": {"temperature": 0.6},
    "a high temperature": {"temperature": 3.0},
    "top-k": {"top_k": 7},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.15},
    "repetition penalty": {"repetition_penalty": 1.6},
    "presence penalty": {"presence_penalty": 1.2},
    "frequency penalty": {"frequency_penalty": 0.7},
    "negative penalties": {"presence_penalty": -1.0, "frequency_penalty": -0.5, "repetition_penalty": 0.8},
    "logit bias": {"logit_bias": {3: 2.0, 4: -100.0, 5: -1.0}},
    "watermark": {"watermark": Watermark(1.5, 0.5, 3)},
    "min_tokens": {"min_tokens": 9, "stop_token_ids": frozenset({0, 7, 11})},
    "all together": {
        "temperature": 1.3,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.2,
        "logit_bias": {8: 1.0},
        "watermark": Watermark(),
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_draws_from_its_exact_distribution(name):
    torch.manual_seed(3)
    logits, count = torch.randn(32) * 1.5, 4000
    params = SamplingParams(max_tokens=999, **OPTIONS[name])
    drawn = np.bincount(draw(logits, count, prompt=PROMPT, output=OUTPUT, **OPTIONS[name]), minlength=32)
    expected = exact(logits, params, PROMPT, OUTPUT) * count
    assert not drawn[expected == 0].any()
    # Cells with few expected draws are put together, as the test asks for.
    few = expected < 5
    cells = np.append(drawn[~few], drawn[few].sum()), np.append(expected[~few], expected[few].sum())
    filled = cells[1] > 0
    assert chisquare(cells[0][filled], cells[1][filled]).pvalue > 0.001


def test_the_numbers_of_one_seed_are_uniform_and_do_not_follow_each_other():
    numbers = uniforms([7] * 5000, range(5000))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    cells = np.histogram2d(numbers[:-1], numbers[1:], bins=8, range=[[0, 1], [0, 1]])[0]
    assert chisquare(cells.ravel()).pvalue > 0.001
    neighbours = uniforms(range(5000), [0] * 5000)
    assert chisquare(np.histogram(neighbours, bins=50, range=(0, 1))[0]).pvalue > 0.001


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_words_that_its_authors_publish(counter, key, words):
    made = philox(np.array(counter, np.uint64)[:, None], np.array(key, np.uint64)[:, None])
    assert made[:, 0].tolist() == words


def test_seeds_count_modulo_two_to_the_64():
    assert uniforms([-1, 2**64 + 5], [0, 1]).tolist() == uniforms([2**64 - 1, 5], [0, 1]).tolist()


def test_temperature_zero_takes_the_most_likely():
    assert set(draw(LOGITS, 9, temperature=0.0)) == {0}
    assert set(draw(LOGITS, 9, temperature=1e-6)) == {0}


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.4}, {0}),
        ({"top_p": 0.49}, {0}),
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 0.9, "top_k": 3}, {0, 1, 2}),
        ({"top_p": 0.6, "top_k": 2}, {0}),  # of what top-k leaves, the first has 0.625
        ({"top_p": 0.6, "min_p": 0.5}, {0}),
        ({"top_p": 1e-9}, {0}),
        ({"min_p": 0.25}, {0, 1, 2}),
        ({"min_p": 1.0}, {0}),
    ],
)
def test_filters_keep_what_they_should(params, allowed):
    assert set(draw(LOGITS, **params)) == allowed


def test_a_flat_distribution_over_a_large_vocabulary_has_a_large_nucleus():
    drawn = draw(torch.zeros(5000), count=60, top_p=0.9)
    assert len(set(drawn)) > 40
    assert max(drawn) < 4500


def test_of_equal_scores_top_k_takes_the_first_tokens():
    assert set(draw(torch.zeros(500), top_k=3)) == {0, 1, 2}
    assert set(draw(torch.zeros(500), top_k=400)) <= set(range(400))
    assert set(draw(torch.tensor([-0.0, 0.0] * 250), top_k=3)) == {0, 1, 2}


values = st.floats(-30, 30, width=16)  # many are equal
PARAMS = {
    "temperature": st.floats(0.01, 5),
    "top_p": st.floats(0.01, 1) | st.just(1.0),
    "top_k": st.integers(0, 300),
    "min_p": st.just(0.0) | st.floats(0, 1),
    "repetition_penalty": st.just(1.0) | st.floats(0.3, 3),
    "presence_penalty": st.just(0.0) | st.floats(-2, 2),
    "frequency_penalty": st.just(0.0) | st.floats(-2, 2),
    "logit_bias": st.dictionaries(st.integers(0, 9), st.floats(-9, 9), max_size=3),
    "min_tokens": st.integers(0, 8),
    "stop_token_ids": st.frozensets(st.integers(1, 9), max_size=2),
    "seed": st.integers(0, 2**63 - 1),
}
any_params = st.fixed_dictionaries({}, optional=PARAMS)


@st.composite
def cases(draw_from):
    size = draw_from(st.sampled_from([10, 64, 100, 256, 700]))
    logits = torch.randn(size, generator=torch.Generator().manual_seed(draw_from(st.integers(0, 99)))) * 4
    logits[:10] = torch.tensor(draw_from(st.lists(values, min_size=10, max_size=10)))
    if draw_from(st.booleans()):
        logits = logits.bfloat16().float()
    tokens = st.lists(st.integers(0, size - 1), max_size=200)
    return logits, draw_from(tokens) or [0], draw_from(tokens), draw_from(any_params)


@given(cases())
def test_any_parameters_choose_what_the_plain_twin_chooses(case):
    logits, prompt, output, given_params = case
    sequence = request("me", prompt, output, **given_params)
    token = sample(logits.clone()[None], [sequence])[0].token_id
    scores = changed_scores(logits, sequence.sampling, prompt, output)
    if sequence.sampling.is_greedy:
        assert scores[token] == pytest.approx(max(scores), rel=1e-5, abs=1e-5)
        return
    order, weights = ranked_weights(scores, sequence.sampling)
    if not sequence.sampling.is_truncated:
        weights = [weights[order.index(token)] for token in range(len(order))]
        order = list(range(len(order)))
    ends = np.cumsum(weights) / sum(weights)
    number = uniforms([sequence.sampling.seed], [len(output)])[0]
    place = order.index(token)
    # The sum over all tokens is made of float32 exponentials: a number next to an edge may fall on either side.
    near = 1e-5 / min(1.0, sequence.sampling.temperature)
    if np.abs(ends - number).min() > near and not near_a_threshold(scores, sequence.sampling, near):
        assert (ends[place - 1] if place else 0.0) <= number < ends[place]


def near_a_threshold(scores, params, near):
    """Whether rounding could move a token in or out."""
    best = max(scores)
    every = sorted((math.exp((score - best) / params.temperature) for score in scores), reverse=True)
    close_to_min_p = params.min_p > 0 and any(abs(weight - params.min_p) < near for weight in every)
    weights = [weight for weight in every if weight >= params.min_p][: params.top_k or None]
    shares = np.cumsum(weights) / sum(weights)
    return close_to_min_p or (params.top_p < 1 and bool((np.abs(shares - params.top_p) < near).any()))


@given(st.lists(any_params, min_size=2, max_size=12), st.randoms(use_true_random=False))
def test_a_request_gets_the_same_token_alone_and_in_any_company(all_params, order):
    torch.manual_seed(1)
    logits = torch.randn(len(all_params), 200) * 3
    batch = [request(str(i), [1, 4], [7, 4, 9], **params) for i, params in enumerate(all_params)]
    alone = [sample(row.clone()[None], [sequence])[0] for row, sequence in zip(logits, batch, strict=True)]
    shuffled = order.sample(range(len(batch)), len(batch))
    together = sample(logits[shuffled].clone(), [batch[i] for i in shuffled])
    assert together == [alone[i] for i in shuffled]


def test_a_seeded_request_says_the_same_alone_in_company_and_after_preemption(tiny_engine):
    rng = random.Random(5)
    prompts = [[rng.randrange(3, 266) for _ in range(12)] for _ in range(6)]
    params = [
        SamplingParams(max_tokens=30, temperature=1.2, seed=9, top_p=0.9),
        SamplingParams(max_tokens=25, temperature=0.9, seed=9, top_k=30, frequency_penalty=0.5),
        SamplingParams(max_tokens=28, seed=3, repetition_penalty=1.3),
        SamplingParams(max_tokens=30, temperature=0.0, presence_penalty=0.5),
        SamplingParams(max_tokens=20, seed=11, min_p=0.05),
        SamplingParams(max_tokens=30, seed=4, watermark=Watermark()),
    ]
    roomy, tight = tiny_engine(), tiny_engine(num_blocks=14, block_size=4, enable_prefix_caching=False)
    alone = [generate(roomy, [prompt], [wanted])[0] for prompt, wanted in zip(prompts, params, strict=True)]
    assert generate(roomy, prompts, params) == alone
    assert generate(tight, prompts[::-1], params[::-1])[::-1] == alone
    assert tight.preemptions > 0
    assert len({token for tokens in alone for token in tokens}) > 30


def test_a_row_of_its_own_precision_is_not_changed_by_greedy_rows_beside_it():
    logits = (torch.randn(2, 300, generator=torch.Generator().manual_seed(2)) * 3).bfloat16()
    greedy, other = request("a", temperature=0.0), request("b", top_k=5, seed=3)
    tokens = sample(logits.clone(), [greedy, other])
    assert tokens == [sample(logits[:1].clone(), [greedy])[0], sample(logits[1:].clone(), [other])[0]]


def test_stop_tokens_wait_for_min_tokens():
    params = {"temperature": 0.0, "min_tokens": 2, "stop_token_ids": frozenset({0})}
    assert sample(LOGITS.clone()[None], [request(output=[0], **params)])[0].token_id == 1
    assert sample(LOGITS.clone()[None], [request(output=[0, 0], **params)])[0].token_id == 0


@pytest.mark.parametrize("params", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}, {"temperature": 0.0}])
def test_a_row_in_which_everything_is_forbidden_still_gives_a_token(params):
    assert 0 <= draw(torch.full((70,), -math.inf), 1, **params)[0] < 70


def test_logprobs_are_the_models_own_whatever_the_sampler_did():
    params = {"temperature": 0.0, "min_tokens": 1, "stop_token_ids": frozenset({0}), "logprobs": 0}
    token = sample((LOGITS + 3.0)[None], [request(**params)])[0]
    assert token.token_id == 1
    assert token.logprob == pytest.approx(math.log(0.3), abs=1e-5)
    assert token.alternatives == ()
    assert sample(LOGITS.clone()[None], [request()])[0].logprob is None


def test_each_row_gets_as_many_alternatives_as_it_asks_for():
    wanted = [None, 0, 1, 3, 20]
    batch = [request(str(i), temperature=0.0, logit_bias={3: 50.0}, logprobs=k) for i, k in enumerate(wanted)]
    tokens = sample(LOGITS.repeat(5, 1), batch)
    assert [token.token_id for token in tokens] == [3] * 5
    assert [len(token.alternatives) for token in tokens] == [0, 0, 1, 3, 4]
    assert [token.logprob for token in tokens[1:]] == pytest.approx([math.log(0.05)] * 4, abs=1e-5)
    assert [token for token, _ in tokens[4].alternatives] == [0, 1, 2, 3]
    assert [value for _, value in tokens[4].alternatives] == pytest.approx(LOGITS.tolist(), abs=1e-5)
