"""Residual rejection leaves the distribution of answers as it is: chi-square tests against exact probabilities."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.engine.runner import ModelRunner
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.sampling import Sampler
from bakeoff.reference_engine.speculation import verification
from bakeoff.reference_engine.speculation.draft_lengths import DraftLengths
from bakeoff.reference_engine.speculation.draft_model import DraftModel
from bakeoff.reference_engine.speculation.residual import distribution, draw
from bakeoff.reference_engine.speculation.speculator import Speculator
from tests.reference_engine.conftest import write_checkpoint
from tests.reference_engine.stepping import Bench, request

VOCABULARY, OUTPUT, REQUESTS = 3, 4, 1500
GENERATOR = torch.Generator().manual_seed(9)
MODEL = 1.5 * torch.randn(VOCABULARY, VOCABULARY, generator=GENERATOR)
DRAFTER = MODEL + torch.randn(VOCABULARY, VOCABULARY, generator=GENERATOR)


class TableExecutor:
    """Logits that follow from the last token."""

    def __init__(self, table):
        self.table = table

    def execute(self, batch, read=None):
        token_ids = torch.tensor(batch.token_ids)
        if batch.previous is not None:
            token_ids = torch.where(token_ids < 0, batch.previous[(-1 - token_ids).clamp(min=0)], token_ids)
        return self.table[token_ids[batch.wanted_rows]].clone()


def answers(seeds, **sampling):
    """Output tokens of a request with each seed; and the drafts, and those that were accepted."""
    draft_model = DraftModel(TableExecutor(DRAFTER), 0, rejects_residually=True)
    bench = Bench(ModelRunner(TableExecutor(MODEL), Sampler(), draft_model), blocks=256, seqs=64, tokens=512)
    bench.engine.core._speculator = Speculator(DraftLengths(3), 512, free=draft_model.free)
    requests = [request(str(seed), prompt=[1, 2], output=OUTPUT, seed=seed, **sampling) for seed in seeds]
    counts = Counter()
    for sequence in requests:
        bench.engine.add(sequence)
    while bench.engine.has_work:
        report = bench.engine.step()
        counts.update(drafted=sum(report.drafted), accepted=sum(report.accepted))
    return [tuple(sequence.token_ids[sequence.prompt_len :]) for sequence in requests], counts


def test_a_draft_model_catches_up_by_rows_so_that_a_graph_serves():
    batches = []

    class Recording(TableExecutor):
        def execute(self, batch, read=None):
            batches.append(batch)
            return super().execute(batch, read)

    draft_model = DraftModel(Recording(MODEL), 0)
    bench = Bench(ModelRunner(TableExecutor(MODEL), Sampler(), draft_model), blocks=64, seqs=4, tokens=64)
    bench.engine.core._speculator = Speculator(DraftLengths(3), 64, free=draft_model.free)
    bench.engine.add(request("0", prompt=[1, 2, 0, 1, 2], output=12, temperature=0.0))
    while bench.engine.has_work:
        bench.engine.step()
    prompt, *decodes = [[(span.start, span.length) for span in batch.spans] for batch in batches]
    assert prompt == [(0, 5)]
    assert {length for spans in decodes for _, length in spans} == {1}
    assert [(8, 1), (9, 1)] in decodes  # all drafts were right: the last one has no entry yet


def p_value(answers, probabilities):
    """Of a chi-square test of answers against the product of the tokens' probabilities, [vocabulary, vocabulary]."""
    expected = {}
    for tokens in itertools.product(range(VOCABULARY), repeat=OUTPUT):
        chain = zip((2, *tokens[:-1]), tokens, strict=True)
        expected[tokens] = len(answers) * np.prod([probabilities[last, token] for last, token in chain])
    counts = Counter(answers)
    assert counts.keys() <= {tokens for tokens, count in expected.items() if count}
    often = [tokens for tokens, count in expected.items() if count >= 5]
    rare = [tokens for tokens in expected if tokens not in often]
    pairs = [(counts[tokens], expected[tokens]) for tokens in often]
    pairs.append((sum(counts[tokens] for tokens in rare), sum(expected[tokens] for tokens in rare)))
    observed, wanted = np.array([pair for pair in pairs if pair[1] > 0]).T
    return stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue


def softmax(temperature):
    return (MODEL.double() / temperature).softmax(dim=-1).numpy()


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_answers_have_the_distribution_of_the_model(temperature):
    tokens, counts = answers(range(REQUESTS), temperature=temperature)
    assert p_value(tokens, softmax(temperature)) > 0.001
    assert 0.3 * counts["drafted"] < counts["accepted"] < 0.95 * counts["drafted"]


def test_truncated_answers_have_the_truncated_distribution():
    tokens, _ = answers(range(REQUESTS), temperature=1.0, top_k=2)
    probabilities = softmax(1.0)
    probabilities[np.arange(VOCABULARY), probabilities.argmin(axis=-1)] = 0.0
    assert p_value(tokens, probabilities / probabilities.sum(axis=-1, keepdims=True)) > 0.001


def test_a_request_has_one_answer_whatever_is_beside_it():
    together, _ = answers(range(8), temperature=1.0)
    assert together == [answers([seed], temperature=1.0)[0][0] for seed in range(8)]


@pytest.mark.parametrize("broken", ["accepts all", "redraws from the model"])
def test_a_wrong_rule_is_found_out(monkeypatch, broken):
    right = verification.accept_or_redraw

    def wrong(scores, place, guess, origin):
        token = right(scores, place, guess, origin)
        if token == guess or broken == "accepts all":
            return guess
        return draw(distribution(scores.numpy(), place.sampling), (place.sampling.seed * 0.618) % 1)

    monkeypatch.setattr(verification, "accept_or_redraw", wrong)
    tokens, _ = answers(range(REQUESTS), temperature=1.0)
    assert p_value(tokens, softmax(1.0)) < 1e-6


def test_greedy_answers_stay_as_they_are():
    tokens, counts = answers(range(3), temperature=0.0)
    chain = [2]
    for _ in range(OUTPUT):
        chain.append(int(MODEL[chain[-1]].argmax()))
    assert set(tokens) == {tuple(chain[1:])}
    assert counts["drafted"] > 0


@pytest.mark.parametrize(
    ("params", "shares"),
    [
        ({}, [0.5, 0.25, 0.125, 0.125]),
        ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.7}, [2 / 3, 1 / 3, 0, 0]),  # the token that crosses the threshold is in
        ({"top_p": 0.74}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_k": 3, "top_p": 0.6}, [2 / 3, 1 / 3, 0, 0]),  # of what top-k leaves
        ({"min_p": 0.4}, [2 / 3, 1 / 3, 0, 0]),
        ({"temperature": 0.5}, [16 / 22, 4 / 22, 1 / 22, 1 / 22]),
    ],
)
def test_distributions_are_truncated_as_draws_are(params, shares):
    scores = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    sampling = SamplingParams(max_tokens=1, **params)
    np.testing.assert_allclose(distribution(scores, sampling), shares, atol=1e-6)
    drawn = {
        Sampler().sample(torch.tensor(scores)[None], [request("a", seed=seed, **params)])[0].token_id
        for seed in range(200)
    }
    assert drawn == set(np.flatnonzero(shares))


def test_draws_invert_the_distribution():
    shares = np.array([0.0, 0.5, 0.0, 1.5, 0.0])
    assert [draw(shares, uniform) for uniform in (0.0, 0.24, 0.26, 0.999999)] == [1, 1, 3, 3]


@pytest.mark.parametrize("speculation", ["", "ngram:3"])
def test_it_needs_drafts_of_a_model(tiny_config, speculation):
    with pytest.raises(ConfigError, match="needs drafts of a model"):
        tiny_config(speculation=speculation, ablation="residual_drafts")


def test_a_real_engine_answers_with_it(tiny_engine, tmp_path, hf_model):
    path = write_checkpoint(tmp_path, hf_model)
    engine = tiny_engine(speculation=f"draft:3:{path}", ablation="residual_drafts", adaptive_speculation=False)
    requests = [request(str(seed), output=20, seed=seed, temperature=1.0, logprobs=0) for seed in range(4)]
    drafted = accepted = 0
    for sequence in requests:
        engine.add(sequence)
    while engine.has_work:
        report = engine.step()
        drafted, accepted = drafted + sum(report.drafted), accepted + sum(report.accepted)
    assert all(sequence.num_output == 20 for sequence in requests)
    assert 0.95 * drafted < accepted <= drafted  # of equal distributions nearly all are accepted
