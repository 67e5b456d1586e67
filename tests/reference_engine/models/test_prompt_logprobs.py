"""Log-probabilities of prompts: against Transformers, and the same however the engine computes them."""

import functools

import aiohttp
import pytest
import torch

from bakeoff.engines import Deployment
from bakeoff.harness.quality.prompt_logprobs import PromptScorer
from bakeoff.reference_engine.core.request import BeamParams, Request, SamplingParams
from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.models.execution import SLAB_ROWS
from bakeoff.reference_engine.offline import LLM
from bakeoff.reference_engine.sampling.prompt_scores import prompt_logprobs
from tests.reference_engine.conftest import VOCAB_SIZE
from tests.reference_engine.server_calls import CHAT, HELLO, TEXT, with_server

PROMPT = [(7 * i * i + 3 * i) % VOCAB_SIZE for i in range(70)]
NEAR = 2e-4  # sums of floats in different orders
ASKING = SamplingParams(max_tokens=3, temperature=0.0, prompt_logprobs=3)


@pytest.fixture(scope="module")
def llm(checkpoint_dir):
    """`llm(**settings)`: the tiny model, which tests share."""

    @functools.cache
    def build(**changes):
        settings = {"dtype": "float32", "num_blocks": 64, "max_num_seqs": 8, "threads": 1}
        return LLM(checkpoint_dir, **(settings | changes))

    return build


@pytest.fixture(scope="module")
def expected(hf_model):
    """Transformers' log-probabilities of what follows each token of the prompt: [length, vocabulary]."""
    with torch.inference_mode():
        return hf_model(torch.tensor([PROMPT])).logits[0].log_softmax(dim=-1)


def near(value):
    return pytest.approx(value, abs=NEAR)


def check(scores, expected, prompt=PROMPT, count=3):
    assert [score.token_id for score in scores] == prompt[1:]
    for score, row in zip(scores, expected, strict=False):
        assert score.logprob == near(float(row[score.token_id]))
        assert [value for _, value in score.alternatives] == near(row.topk(count).values.tolist())
        assert [value for _, value in score.alternatives] == near(
            [float(row[token]) for token, _ in score.alternatives]
        )
        assert score.rank in ranks(row, score.token_id)


def ranks(row, token):
    """The ranks that a token can have: nearly equal ones may change places."""
    return range(1 + int((row > row[token] + NEAR).sum()), 1 + int((row > row[token] - NEAR).sum()))


def generated(llm, prompts=(PROMPT,), params=ASKING, **how):
    return llm.generate(prompts, params, ignore_eos=True, **how)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 17},
        {"max_num_batched_tokens": 33, "speculation": "ngram:3"},
    ],
)
def test_each_token_has_the_log_probability_that_transformers_gives_it(llm, settings, expected):
    (answer,) = generated(llm(**settings))
    assert len(answer.completions[0].token_ids) == 3
    check(answer.prompt_logprobs, expected)


@pytest.mark.usefixtures("ranks_as_threads")
def test_ranks_that_share_the_vocabulary_give_the_same(llm, expected):
    with llm(tensor_parallel_size=2, max_num_batched_tokens=66) as engine:
        (answer,) = generated(engine)
    check(answer.prompt_logprobs, expected)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_prompt_that_loses_its_blocks_is_scored_once(llm, preemption, expected):
    engine = llm(num_blocks=18, block_size=4, max_num_batched_tokens=24, preemption=preemption)
    other = SamplingParams(max_tokens=20, temperature=0.0, prompt_logprobs=3)
    answers = generated(engine, [PROMPT[:28], PROMPT[:29], PROMPT[:30]], [other] * 3)
    assert engine.engine.preemptions > 0
    for length, answer in enumerate(answers, start=28):
        check(answer.prompt_logprobs, expected, PROMPT[:length])


def test_a_victim_in_the_middle_of_its_prompt_begins_again(llm, expected):
    engine = llm(max_num_batched_tokens=17).engine
    request = Request("a", PROMPT, ASKING)
    engine.add(request)
    engine.step()
    engine.core._scheduler._preempt(request, "recompute", None)
    assert request.num_computed == 0
    outputs = []
    with torch.inference_mode():
        while engine.has_work:
            outputs += engine.step().outputs
    check(outputs[0].prompt_logprobs, expected)
    assert [output.prompt_logprobs for output in outputs[1:]] == [None, None]


def test_the_prefix_cache_is_filled_and_not_read(llm, expected, monkeypatch):
    engine = llm()
    engine.engine.reset_prefix_cache()
    plain = SamplingParams(max_tokens=1, temperature=0.0)
    cached = []
    step = engine.engine.step

    def watched():
        report = step()
        cached.append(report.cached_tokens)
        return report

    monkeypatch.setattr(engine.engine, "step", watched)
    check(generated(engine)[0].prompt_logprobs, expected)
    check(generated(engine)[0].prompt_logprobs, expected)
    assert sum(cached) == 0
    generated(engine, params=plain)
    assert sum(cached) == len(PROMPT) - 1


def test_completions_and_beams_share_the_scores_of_their_prompt(llm, expected):
    engine = llm(max_num_batched_tokens=33, speculation="ngram:3")
    check(generated(engine, n=3)[0].prompt_logprobs, expected)
    beams = SamplingParams(max_tokens=3, prompt_logprobs=3, beams=BeamParams(2))
    (answer,) = generated(engine, params=beams, n=2)
    check(answer.prompt_logprobs, expected)
    assert len(answer.completions) == 2


def test_those_who_ask_and_those_who_do_not_share_steps(llm, expected):
    few = SamplingParams(max_tokens=5, temperature=0.0, prompt_logprobs=0)
    plain = SamplingParams(max_tokens=5, temperature=0.0)
    engine = llm(max_num_batched_tokens=17)
    answers = generated(engine, [PROMPT[:40], PROMPT, PROMPT[:1], PROMPT[:50]], [few, ASKING, few, plain])
    check(answers[1].prompt_logprobs, expected)
    assert all(score.alternatives == () for score in answers[0].prompt_logprobs)
    assert [score.logprob for score in answers[0].prompt_logprobs] == near(
        [score.logprob for score in answers[1].prompt_logprobs[:39]]
    )
    assert answers[2].prompt_logprobs == ()
    assert answers[3].prompt_logprobs is None
    without = generated(llm(), [PROMPT[:50]], plain)
    assert answers[3].completions == without[0].completions


def test_logits_of_a_long_chunk_exist_some_rows_at_a_time(llm, monkeypatch):
    engine = llm()
    sizes = []
    read = engine.engine.core._sampler.prompts.read
    monkeypatch.setattr(
        engine.engine.core._sampler.prompts,
        "read",
        lambda logits, positions: (sizes.append(tuple(logits.shape)), read(logits, positions)),
    )
    generated(engine)
    assert sizes == [(SLAB_ROWS, VOCAB_SIZE), (len(PROMPT) - 1 - SLAB_ROWS, VOCAB_SIZE)]


def test_equals_are_ranked_by_their_ids_as_in_the_list():
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0], [5.0, 5.0, 5.0, float("-inf")]])
    first, second = prompt_logprobs(logits, [3, 2], [2, 0])
    assert (first.rank, [token for token, _ in first.alternatives]) == (2, [1, 3])
    assert (second.rank, second.alternatives) == (3, ())
    assert second.logprob == pytest.approx(-1.0986, abs=1e-4)
    (impossible,) = prompt_logprobs(logits[1:].bfloat16(), [3], [0])
    assert (impossible.logprob, impossible.rank) == (float("-inf"), 4)


def test_a_negative_number_is_refused():
    with pytest.raises(RequestError, match="prompt_logprobs -1 is negative") as caught:
        SamplingParams(max_tokens=1, prompt_logprobs=-1)
    assert caught.value.param == "prompt_logprobs"


def test_completions_write_them_as_vllm_does(serve, expected):
    async def test(s):
        body = {"prompt": [PROMPT[:5], "hello"], "max_tokens": 1, "prompt_logprobs": 2, "n": 2, "temperature": 0}
        choices = (await s.post(TEXT, body))["choices"]
        first, again, hello, _ = [choice["prompt_logprobs"] for choice in choices]
        assert first == again
        assert (len(first), first[0], hello) == (5, None, [None])
        for place, entry in enumerate(first[1:]):
            row, token = expected[place], PROMPT[place + 1]
            assert (next(iter(entry)), len(entry)) == (str(token), 2 if entry[str(token)]["rank"] <= 2 else 3)
            assert {1, 2} <= {score["rank"] for score in entry.values()}
            for token_id, score in entry.items():
                assert score["logprob"] == near(float(row[int(token_id)]))
                assert score["rank"] in ranks(row, int(token_id))
                text = s.service.ready().tokenizer.decode([int(token_id)], skip_special_tokens=False)
                assert score["decoded_token"] == text
        (plain,) = (await s.post(TEXT, {"prompt": [5, 6], "max_tokens": 1}))["choices"]
        assert "prompt_logprobs" not in plain

    with_server(serve, test)


def test_chats_have_them_beside_the_choices(serve):
    async def test(s):
        answer = await s.post(CHAT, {"messages": HELLO, "max_tokens": 1, "prompt_logprobs": 0, "n": 2})
        entries = answer["prompt_logprobs"]
        assert len(entries) == answer["usage"]["prompt_tokens"]
        assert entries[0] is None
        assert all(len(entry) == 1 for entry in entries[1:])
        assert not any("prompt_logprobs" in choice for choice in answer["choices"])

    with_server(serve, test)


def test_bakeoff_models_eval_reads_them(serve, expected):
    async def test(s):
        async with aiohttp.ClientSession() as session:
            deployment = Deployment(url=str(s.client.make_url("/")))
            predictions = await PromptScorer(session, deployment, "tiny").predictions(PROMPT)
        for token, row, prediction in zip(PROMPT[1:], expected, predictions, strict=False):
            assert prediction.logprob == near(float(row[token]))
            assert 1 in ranks(row, prediction.likeliest)

    with_server(serve, test)


MISTAKES = [
    ({"prompt_logprobs": -1}, "Expected `int` >= 0 - at `$.prompt_logprobs`"),
    ({"prompt_logprobs": 21}, "Expected `int` <= 20 - at `$.prompt_logprobs`"),
    ({"prompt_logprobs": True}, "Expected `int | null`, got `bool` - at `$.prompt_logprobs`"),
    ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs are not in streams; leave out stream"),
]


def test_bad_values_are_one_line(serve):
    async def test(s):
        for field, complaint in MISTAKES:
            error = (await s.post(TEXT, {"prompt": [5, 6]} | field, status=400))["error"]
            assert (error["message"], error["param"]) == (complaint, "prompt_logprobs")

    with_server(serve, test)
