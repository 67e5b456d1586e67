"""A prompt whose beginning comes from the cache continues as a computed one does: tiny model, real arithmetic."""

import random

import pytest
import torch

from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.engine import runner
from bakeoff.reference_engine.offline import generate

GREEDY = SamplingParams(max_tokens=20, temperature=0.0)


def tokens(count, seed):
    rng = random.Random(seed)
    return [rng.randint(3, 260) for _ in range(count)]


@pytest.fixture
def logits_of(monkeypatch):
    """Runs one prompt and returns its tokens and the logits behind each, [num_tokens, vocab]."""
    rows = []
    original = runner.argmax  # greedy, and nothing else is asked for
    monkeypatch.setattr(runner, "argmax", lambda logits: rows.append(logits) or original(logits))

    def run(engine, prompt):
        rows.clear()
        (output,) = generate(engine, [prompt], [GREEDY])
        return output, torch.cat(rows)

    return run


@pytest.mark.parametrize("length", [16, 17, 32, 33, 100], ids=lambda length: f"{length} tokens")
@pytest.mark.parametrize("budget", [16, 64], ids=lambda budget: f"chunks of {budget}")
def test_logits_behind_a_cached_beginning_are_those_without(tiny_engine, logits_of, length, budget):
    beginning, prompt = tokens(length, 1), tokens(length, 1) + tokens(7, 2)
    output, expected = logits_of(tiny_engine(enable_prefix_caching=False, max_num_batched_tokens=budget), prompt)
    engine = tiny_engine(max_num_batched_tokens=budget)
    generate(engine, [beginning], [GREEDY])  # leaves the beginning behind
    for _ in range(2):  # the second time the whole prompt is cached
        cached_output, logits = logits_of(engine, prompt)
        assert cached_output == output
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_the_next_turn_of_a_conversation_continues_as_if_all_were_computed(tiny_engine, logits_of):
    engine, prompt = tiny_engine(), tokens(30, 3)
    for turn in range(4):
        output, logits = logits_of(engine, prompt)
        same, expected = logits_of(tiny_engine(enable_prefix_caching=False), prompt)
        assert output == same
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
        prompt = prompt + output + tokens(5, turn + 10)


def test_batches_under_eviction_and_preemption_answer_as_without_a_cache(tiny_engine):
    families = [tokens(40, seed) for seed in range(3)]
    prompts = [families[number % 3][: 10 + number * 3] + tokens(number % 5 + 1, 50 + number) for number in range(18)]
    settings = {"num_blocks": 24, "block_size": 4, "max_num_batched_tokens": 24, "max_num_seqs": 4}
    engine, without = tiny_engine(**settings), tiny_engine(**settings, enable_prefix_caching=False)
    arguments = (prompts * 2, [GREEDY] * 36)
    assert generate(engine, *arguments) == generate(without, *arguments)
    engine.check_integrity()
    assert engine.preemptions > 0
    assert engine.core._scheduler.cache.num_evicted > 50


def test_a_seeded_request_draws_the_same_tokens_behind_a_cached_beginning(tiny_engine):
    engine, prompt = tiny_engine(), tokens(50, 4)
    params = SamplingParams(max_tokens=20, temperature=0.9, top_p=0.95, seed=11)
    assert generate(engine, [prompt], [params]) == generate(engine, [prompt], [params])


def test_the_warm_up_leaves_nothing_to_be_found(tiny_engine):
    engine = tiny_engine()
    engine.add(Request("a", [0] * 40, GREEDY))
    report = engine.step()
    assert (report.looked_up_tokens, report.cached_tokens) == (40, 0)
