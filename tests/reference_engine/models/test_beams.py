"""Every hypothesis of a beam search is the one that Transformers finds, whatever happens to its beams on the way."""

import random

import pytest

from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.offline import LLM
from tests.reference_engine.beam_truth import agreement, beam_params, searched, transformers_beams
from tests.reference_engine.models.tiny_families import VOCAB_SIZE, make_family

SOME = frozenset(range(20, 40))  # stop tokens that occur
SEARCHES = {
    "two": beam_params(2, 1.0, False, max_tokens=20),
    "four": beam_params(4, 1.0, False, max_tokens=20, stop_token_ids=frozenset({3, 17, 80, 99})),
    "until there are five": beam_params(5, 0.5, True, max_tokens=20, stop_token_ids=SOME),
    "short ones": beam_params(3, -1.0, False, max_tokens=20, stop_token_ids=SOME),
    "short ones, never early": beam_params(3, -1.0, "never", max_tokens=20, stop_token_ids=SOME),
    "long ones": beam_params(4, 2.0, "never", max_tokens=20, stop_token_ids=SOME),
    "by probability": beam_params(4, 0.0, "never", max_tokens=20, stop_token_ids=SOME),
    "penalised": beam_params(3, 1.0, True, max_tokens=16, stop_token_ids=SOME, min_tokens=5, repetition_penalty=1.3),
    "one token": beam_params(3, 1.0, False, max_tokens=1, stop_token_ids=SOME),
}
FAMILIES = ("llama", "qwen3, biases and windows", "gemma3", "mixtral, window", "deepseek_v2")
WAYS = {
    "with room": {"num_blocks": 256},
    "pushed out": {"num_blocks": 30, "block_size": 4, "max_num_batched_tokens": 16},
    "swapped": {"num_blocks": 30, "block_size": 4, "max_num_batched_tokens": 16, "preemption": "swap"},
    "a cache for little more than one": {"num_blocks": 85, "block_size": 1, "max_num_batched_tokens": 12},
    "nothing found again": {"num_blocks": 30, "block_size": 4, "enable_prefix_caching": False},
    "in one piece": {"num_blocks": 30, "block_size": 4, "enable_chunked_prefill": False, "max_num_batched_tokens": 16},
}


def prompts():
    rng = random.Random(5)
    beginning = [rng.randrange(3, VOCAB_SIZE) for _ in range(30)]
    tails = [[rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in (2, 30, 1, 20)]
    return [beginning + tail if number % 2 else tail for number, tail in enumerate(tails)]


class Subject:
    def __init__(self, name, directory, save_checkpoint):
        self.reference_model = make_family(name)
        self.directory = save_checkpoint(directory, self.reference_model)
        self.truths = {}

    def truth(self, name):
        if name not in self.truths:
            self.truths[name] = [
                transformers_beams(self.reference_model, prompt, SEARCHES[name]) for prompt in prompts()
            ]
        return self.truths[name]

    def assert_same(self, llm, name):
        for actual, expected in zip(searched(llm, prompts(), SEARCHES[name]), self.truth(name), strict=True):
            if SEARCHES[name].repetition_penalty != 1.0:  # our sums are the model's own
                assert [hypothesis.token_ids for hypothesis in actual] == [
                    hypothesis.token_ids for hypothesis in expected
                ]
                continue
            assert agreement(actual, expected) != "different"
            for a, b in zip(actual, expected, strict=True):
                assert a.log_prob == pytest.approx(b.log_prob, abs=2e-4)

    def llm(self, **settings):
        settings = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 256} | settings
        return LLM(self.directory, dtype="float32", threads=1, **settings)


@pytest.fixture(scope="module", params=FAMILIES)
def subject(request, tmp_path_factory, save_checkpoint):
    return Subject(request.param, tmp_path_factory.mktemp("beams"), save_checkpoint)


@pytest.fixture(scope="module")
def llama(tmp_path_factory, save_checkpoint):
    return Subject("llama", tmp_path_factory.mktemp("beams"), save_checkpoint)


@pytest.mark.parametrize("name", SEARCHES)
def test_all_hypotheses_equal_those_of_transformers(llama, name):
    llama.assert_same(llama.llm(), name)


def test_some_of_these_searches_end_at_stop_tokens_and_some_at_the_limit(llama):
    for name in ("four", "until there are five", "short ones", "penalised"):
        lengths = [len(hypothesis.token_ids) for hypotheses in llama.truth(name) for hypothesis in hypotheses]
        assert len(set(lengths)) > 2, name


@pytest.mark.parametrize("name", ["four", "until there are five"])
def test_in_every_family(subject, name):
    subject.assert_same(subject.llm(), name)


@pytest.mark.parametrize("way", WAYS)
def test_and_whatever_becomes_of_the_blocks(llama, way):
    llm = llama.llm(**WAYS[way])
    for name in ("two", "until there are five", "penalised"):
        llama.assert_same(llm, name)
    assert (llm.engine.preemptions > 0) == (way != "with room")
    assert llm.engine.step().used_blocks == 0


def test_windows_are_left_beam_by_beam(tmp_path, save_checkpoint):
    mistral = Subject("mistral", tmp_path, save_checkpoint)
    llm = mistral.llm(num_blocks=14, block_size=4, max_num_batched_tokens=16)
    mistral.assert_same(llm, "four")
    assert llm.engine.preemptions > 0


def test_a_search_is_the_same_beside_requests_that_draw(llama):
    llm = llama.llm(num_blocks=40, block_size=4, max_num_batched_tokens=16)
    drawn = [SamplingParams(max_tokens=9, seed=3)] * 4
    prompt_ids = [prompt for pair in zip(prompts(), prompts(), strict=True) for prompt in pair]
    every = [params for pair in zip([SEARCHES["four"]] * 4, drawn, strict=True) for params in pair]
    answers = llm.generate(prompt_ids, every, n=1, ignore_eos=True)
    alone = llm.generate(prompts(), drawn, ignore_eos=True)
    assert [answer.completions for answer in answers[1::2]] == [answer.completions for answer in alone]
    assert [answer.completions[0].token_ids for answer in answers[::2]] == [
        hypotheses[0].token_ids for hypotheses in llama.truth("four")
    ]
