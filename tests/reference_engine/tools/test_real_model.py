"""The real SmolLM2 weights: what a tiny random model cannot show."""

import asyncio
import dataclasses
import json
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bakeoff.engines.models.store import GGUF_NAME
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.offline import generate, load_engine
from bakeoff.reference_engine.tools.evaluator import Sample, Scorer
from tests.reference_engine.gguf_blocks import requantised
from tests.selection import sampled

pytestmark = pytest.mark.model
PROMPTS = Path(__file__).parents[3] / "benchmarks" / "engine" / "prompts.json"
LENGTH = 16


@pytest.fixture(scope="module")
def prompt_ids(model_folder):
    tokenizer = open_checkpoint(model_folder).tokenizer
    entries = json.loads(PROMPTS.read_text(encoding="utf-8"))
    chosen = [entries[index] for index in (24, 0, 3, 7, 12)]
    return [
        tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": entry["text"]}]))
        if entry["kind"] == "chat"
        else tokenizer.encode(entry["text"])
        for entry in chosen
    ]


@pytest.fixture(scope="module")
def truths(model_folder, prompt_ids, greedy):
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    return [greedy(model, prompt, LENGTH) for prompt in prompt_ids]


@pytest.mark.parametrize(
    ("settings", "together"),
    sampled(
        [
            ({}, 1),
            ({"max_num_batched_tokens": 24, "max_num_seqs": 6}, 6),
            ({"num_blocks": 98, "block_size": 4, "max_num_seqs": 6}, 6),
        ],
        ["mixed with chunks", "under preemption"],
        ["alone", "mixed with chunks", "under preemption"],
    ),
)
def test_greedy_tokens_are_those_of_transformers(model_folder, prompt_ids, truths, settings, together):
    config = EngineConfig(model=str(model_folder), dtype="float32", **({"num_blocks": 256} | settings))
    engine = load_engine(config)
    params = SamplingParams(max_tokens=LENGTH, temperature=0.0)
    outputs = []
    for group in chunks(prompt_ids, together):
        outputs += generate(engine, group, [params] * len(group))
    for tokens, (expected_tokens, margins) in zip(outputs, truths, strict=True):
        for token, expected, margin in zip(tokens, expected_tokens, margins, strict=True):
            if token != expected:
                assert margin <= 1e-4, "differs where Transformers was sure"
                break
    engine.check_integrity()
    if "num_blocks" in settings:
        assert engine.preemptions > 0


@pytest.mark.nightly
def test_cached_prompts_continue_as_computed_ones(model_folder, prompt_ids):
    config = EngineConfig(model=str(model_folder), dtype="float32", num_blocks=256)
    with_cache, without = load_engine(config), load_engine(dataclasses.replace(config, enable_prefix_caching=False))
    params = [SamplingParams(max_tokens=12, temperature=0.0)]
    first, second = sorted(prompt_ids, key=len)[1:3]
    for prompt in (first, first[: len(first) // 2] + second, first):
        assert generate(with_cache, [prompt], params) == generate(without, [prompt], params)


def chunks(items, size):
    return [items[first : first + size] for first in range(0, len(items), size)]


def test_the_tokenizer_agrees_with_transformers(model_folder):
    tokenizer, reference = open_checkpoint(model_folder).tokenizer, AutoTokenizer.from_pretrained(model_folder)
    messages = [{"role": "user", "content": "How much is 123 + 4567?\n\n Größe 😀"}]
    text = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.render_chat(messages) == text
    assert tokenizer.encode(text) == reference.encode(text)


def test_it_knows_the_capital_of_france_over_http_and_the_loop_stays_free(serve, model_folder):
    async def test():
        # In bfloat16 another beginning of the answer is as likely, within rounding.
        config = EngineConfig(model=str(model_folder), served_model_name="smol", num_blocks=256, dtype="float32")
        async with serve(config=config) as s:
            body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
            answer = await s.post("/v1/chat/completions", body)
            assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."
            assert answer["choices"][0]["finish_reason"] == "stop"
            lags = await lags_during(
                asyncio.gather(*(s.stream("/v1/chat/completions", body | {"max_tokens": 20}) for _ in range(4)))
            )
        # A step takes 10 ms and more; a loop that waited for steps would lag by that much most of the time.
        assert sorted(lags)[len(lags) // 2] < 0.005

    asyncio.run(test())


async def lags_during(work):
    lags = []
    while not work.done():
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        lags.append(time.perf_counter() - before - 0.001)
    await work
    return lags


@pytest.mark.nightly
def test_a_file_kept_in_blocks_answers_as_its_dequantised_twin(model_folder, tmp_path, prompt_ids):
    path = requantised(model_folder / GGUF_NAME, tmp_path / "small.gguf", "Q4_1", "Q8_0")
    config = EngineConfig(model=str(path), dtype="float32", quantization="stored", num_blocks=256)
    scorer = Scorer(open_checkpoint(path), "float32", "cpu")
    some = sorted(prompt_ids, key=len)[:2]  # benchmarks/engine/gguf.py asks for more
    outputs = generate(load_engine(config), some, [SamplingParams(max_tokens=LENGTH // 2, temperature=0.0)] * len(some))
    for number, (prompt, output) in enumerate(zip(some, outputs, strict=True)):
        assert scorer.score(Sample(str(number), prompt, output)).max_regret <= 1e-4, "differs where it is sure"
