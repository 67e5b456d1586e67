import dataclasses
import random

import pytest
import torch

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.engine.assembly import build_engine
from bakeoff.reference_engine.engine.resolution import resolve_config
from bakeoff.reference_engine.errors import ConfigError, EngineUnavailableError, RequestError
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.models.config_readers import config_from_hf
from bakeoff.reference_engine.offline import generate

GREEDY = SamplingParams(max_tokens=24, temperature=0.0)


def prompts(count, seed=0, longest=90):
    rng = random.Random(seed)
    return [[rng.randint(3, 260) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def assert_same_as_transformers(outputs, prompt_ids, model, greedy):
    for prompt, tokens in zip(prompt_ids, outputs, strict=True):
        expected, margins = greedy(model, prompt, len(tokens))
        for token, expected_token, margin in zip(tokens, expected, margins, strict=True):
            if margin <= 1e-4:
                break  # a tie that rounding decides
            assert token == expected_token


def test_alone_each_prompt_continues_as_in_transformers(tiny_engine, hf_model, greedy):
    engine, prompt_ids = tiny_engine(), prompts(5)
    outputs = [generate(engine, [prompt], [GREEDY])[0] for prompt in prompt_ids]
    assert_same_as_transformers(outputs, prompt_ids, hf_model, greedy)


def test_in_a_mixed_batch_with_chunked_prefill_too(tiny_engine, hf_model, greedy):
    engine, prompt_ids = tiny_engine(max_num_batched_tokens=16), prompts(8)
    assert_same_as_transformers(generate(engine, prompt_ids, [GREEDY] * 8), prompt_ids, hf_model, greedy)


def test_and_under_preemption(tiny_engine, hf_model, greedy):
    engine, prompt_ids = tiny_engine(num_blocks=10, max_num_batched_tokens=16), prompts(8)
    outputs = generate(engine, prompt_ids, [GREEDY] * 8)
    assert engine.preemptions > 0
    assert_same_as_transformers(outputs, prompt_ids, hf_model, greedy)
    engine.check_integrity()


@pytest.mark.parametrize("num_blocks", [64, 10])
def test_overlapping_steps_give_the_same_answers(tiny_engine, monkeypatch, num_blocks):
    prompt_ids, wanted = prompts(8), [dataclasses.replace(GREEDY, stop_token_ids=frozenset(range(100, 140)))] * 8
    settings = {"num_blocks": num_blocks, "max_num_batched_tokens": 16}
    expected = generate(tiny_engine(**settings), prompt_ids, wanted)
    engine = tiny_engine(**settings)
    engine.core.overlap = True
    ahead = []
    launch = engine.core._launch_ahead
    monkeypatch.setattr(engine.core, "_launch_ahead", lambda: ahead.append(launch()) or ahead[-1])
    assert generate(engine, prompt_ids, wanted) == expected
    assert sum(ahead) > 10
    engine.check_integrity()


def test_static_batches_give_the_same_answers(tiny_engine, hf_model, greedy):
    engine, prompt_ids = tiny_engine(ablation="static_batching", max_num_seqs=3), prompts(7)
    assert_same_as_transformers(generate(engine, prompt_ids, [GREEDY] * 7), prompt_ids, hf_model, greedy)


@pytest.mark.parametrize("whole_prompts", [{"enable_chunked_prefill": False}, {"ablation": "static_batching"}])
@pytest.mark.parametrize(("max_num_seqs", "num_blocks"), [(1, 64), (2, 48)])
def test_a_prompt_longer_than_a_step_fits_into_windowed_layers(tiny_engine, whole_prompts, max_num_seqs, num_blocks):
    settings = {"attention_window": 12, "block_size": 4, "max_num_batched_tokens": 16}
    prompt_ids, wanted = [[5] * 150, [6] * 30], [GREEDY] * 2
    whole = tiny_engine(max_num_seqs=max_num_seqs, num_blocks=num_blocks, **settings, **whole_prompts)
    assert generate(whole, prompt_ids, wanted) == generate(tiny_engine(**settings), prompt_ids, wanted)
    whole.check_integrity()


def test_what_no_chunking_cannot_hold_in_one_piece_is_refused(tiny_engine):
    engine = tiny_engine(enable_chunked_prefill=False, attention_window=12, block_size=4, num_blocks=40)
    with pytest.raises(RequestError, match="need more than the 40 KV blocks"):
        generate(engine, [[5] * 150], [GREEDY])


def test_contiguous_memory_is_refused_where_the_model_has_windows():
    raw = {
        "model_type": "mistral", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "sliding_window": 4,
    }  # fmt: skip
    config = EngineConfig(model="m", dtype="float32", ablation="contiguous_cache", enable_prefix_caching=False)
    with pytest.raises(ConfigError, match=r"contiguous_cache cannot give back .*; drop it"):
        resolve_config(config, config_from_hf(raw, "x"))


def test_a_seeded_request_is_the_same_alone_and_in_company(tiny_engine):
    seeded = SamplingParams(max_tokens=20, temperature=0.9, top_p=0.95, seed=5)
    beside = [SamplingParams(max_tokens=10 + i, temperature=1.0, seed=i) for i in range(6)]
    alone = generate(tiny_engine(), [[5, 6, 7]], [seeded])[0]
    crowd = generate(tiny_engine(max_num_batched_tokens=12), [*prompts(6), [5, 6, 7]], [*beside, seeded])[-1]
    assert crowd == alone
    again = generate(tiny_engine(), [[5, 6, 7]], [dataclasses.replace(seeded, seed=6)])[0]
    assert again != alone


def test_random_adds_cancels_and_finishes_leak_no_block_of_the_real_engine(tiny_engine):
    engine, rng, live = tiny_engine(num_blocks=24, block_size=4, max_num_batched_tokens=12), random.Random(3), set()
    for number in range(250):
        if rng.random() < 0.5:
            params = SamplingParams(max_tokens=rng.randint(1, 30), temperature=rng.choice([0.0, 1.0]), seed=number)
            engine.add(Request(str(number), prompts(1, number, 60)[0], params))
            live.add(str(number))
        if live and rng.random() < 0.2:
            live.remove(name := rng.choice(sorted(live)))
            engine.cancel(name)
        live -= {output.request_id for output in engine.step().outputs if output.finish_reason}
        engine.check_integrity()
    for name in live:
        engine.cancel(name)
    report = engine.step()
    assert (report.used_blocks, report.running, report.waiting) == (0, 0, 0)
    assert engine.preemptions > 0


def test_an_engine_whose_step_was_broken_off_computes_no_more(tiny_engine, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    engine, params = tiny_engine(), SamplingParams(max_tokens=4, temperature=0.0)
    engine.add(Request("a", [5, 6, 7], params))
    with monkeypatch.context() as broken:
        broken.setattr(engine.core._runner._executor, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    with pytest.raises(EngineUnavailableError, match=r"broken off \(KeyboardInterrupt\); start the engine again"):
        engine.step()


@pytest.mark.parametrize(
    ("prompt", "tokens", "message"),
    [
        ([], 1, "the prompt is empty"),
        ([5] * 256, 1, "has 256 tokens; .* maximum model length of 256"),
        ([5] * 200, 57, "200 prompt tokens and 57 output tokens are more than .* 256; ask for at most 56"),
        ([5, 999], 1, "token id 999 is outside the vocabulary of 266"),
        ([5, -1], 1, "token id -1 is outside"),
    ],
)
def test_impossible_requests_are_refused_with_the_numbers(tiny_engine, prompt, tokens, message):
    with pytest.raises(RequestError, match=message):
        tiny_engine().add(Request("x", prompt, SamplingParams(max_tokens=tokens)))


def resolved(checkpoint_dir, stored="bfloat16", **changes):
    model = dataclasses.replace(open_checkpoint(checkpoint_dir).config, dtype=stored)
    return resolve_config(EngineConfig(model="x/y/", **changes), model)


def test_resolving_leaves_nothing_open(checkpoint_dir):
    config = resolved(checkpoint_dir, dtype="bfloat16")
    assert (config.device, config.max_model_len, config.served_model_name) == ("cpu", 256, "y")
    assert config.num_blocks == 64 * 16  # 64 full sequences
    assert config.kv_cache_memory_bytes == 64 * 16 * 16 * 2 * 2 * 2 * 16 * 2
    assert None not in dataclasses.asdict(config).values()


def test_auto_dtype_keeps_what_is_stored_and_makes_half_precision_bf16_on_cpus(checkpoint_dir):
    has_bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    sixteen = "bfloat16" if has_bf16 else "float32"
    assert [resolved(checkpoint_dir, stored).dtype for stored in ("float32", "bfloat16", "float16", "weird")] == [
        "float32",
        sixteen,
        sixteen,
        "float32",
    ]


def test_cache_bytes_become_whole_blocks(checkpoint_dir):
    block = 16 * 2 * 2 * 2 * 16 * 4
    config = resolved(checkpoint_dir, dtype="float32", kv_cache_memory_bytes=block * 5 + block // 2)
    assert (config.num_blocks, config.kv_cache_memory_bytes) == (5, block * 5)


def test_room_beyond_what_sequences_need_is_the_prefix_caches(checkpoint_dir, tiny_engine):
    few = {"max_num_seqs": 1, "max_model_len": 64, "dtype": "float32"}
    block = 16 * 2 * 2 * 2 * 16 * 4
    assert resolved(checkpoint_dir, **few).num_blocks == 4
    assert resolved(checkpoint_dir, kv_cache_memory_bytes=50 * block, **few).num_blocks == 50
    engine = tiny_engine(num_blocks=40, **few)
    prompt_ids = [[number] * 33 for number in range(10, 18)]
    cached_tokens = []
    for number in range(16):
        engine.add(Request(str(number), prompt_ids[number % 8], SamplingParams(max_tokens=2)))
        cached_tokens.append(sum(engine.step().cached_tokens for _ in range(2)))
    assert cached_tokens == [0] * 8 + [32] * 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_model_len": 300}, "--max-model-len 300 is more than the 256 tokens"),
        ({"num_blocks": 4, "kv_cache_memory_bytes": 10**6}, "give one of them"),
        ({"kv_cache_memory_bytes": 10}, "less than one block"),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, "--max-num-batched-tokens 8 is less than"),
        ({"block_size": 0}, "--block-size must be at least 1"),
        ({"port": 70000}, "--port must be 0 to 65535"),
    ],
)
def test_contradictory_settings_are_refused(checkpoint_dir, changes, message):
    with pytest.raises(ConfigError, match=message):
        resolved(checkpoint_dir, **changes)


def test_cuda_without_a_gpu_is_the_callers_mistake(checkpoint_dir, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="finds no CUDA device"):
        resolved(checkpoint_dir, device="cuda")


def test_bf16_runs_and_mostly_agrees_with_float32(tiny_config, checkpoint_dir):
    checkpoint = open_checkpoint(checkpoint_dir)
    config = resolve_config(tiny_config(dtype="bfloat16"), checkpoint.config)
    bf16 = generate(
        build_engine(config, checkpoint)[0], prompts(4), [SamplingParams(max_tokens=1, temperature=0.0)] * 4
    )
    config = resolve_config(tiny_config(), checkpoint.config)
    fp32 = generate(
        build_engine(config, checkpoint)[0], prompts(4), [SamplingParams(max_tokens=1, temperature=0.0)] * 4
    )
    assert sum(a == b for a, b in zip(bf16, fp32, strict=True)) >= 3


def test_a_model_too_small_for_the_warm_up_still_starts(tiny_engine):
    engine = tiny_engine(max_model_len=2, num_blocks=1, block_size=2)
    assert len(generate(engine, [[4]], [SamplingParams(max_tokens=1)])[0]) == 1


LONGROPE = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


@pytest.mark.parametrize(
    ("rope", "length", "default"),
    [
        ({}, 99, 99),
        ({"type": "linear", "factor": 2.0}, 99, 99),
        ({"type": "yarn", "factor": 4.0}, 396, 396),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256, 256),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 99, 99),
        ({"type": "dynamic", "factor": 4.0}, 396, 99),
        (LONGROPE | {"original_max_position_embeddings": 64}, 99, 64),
        (LONGROPE, 99, 99),
    ],
)
def test_scalings_reach_as_far_as_they_stretch_the_trained_length(rope, length, default):
    raw = {"model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    model = config_from_hf(
        raw | {"num_attention_heads": 1, "max_position_embeddings": 99, "rope_scaling": rope or None}, "x"
    )
    assert resolve_config(EngineConfig(model="m", dtype="float32"), model).max_model_len == default
    longest = resolve_config(EngineConfig(model="m", dtype="float32", max_model_len=length), model)
    assert longest.max_model_len == length
    with pytest.raises(ConfigError, match=f"more than the {length} tokens"):
        resolve_config(EngineConfig(model="m", dtype="float32", max_model_len=length + 1), model)


@pytest.mark.parametrize("ablation", ["", "static_batching"])
def test_nothing_is_kept_of_requests_that_have_ended(tiny_engine, ablation):
    engine = tiny_engine(ablation=ablation)
    penalised = SamplingParams(max_tokens=4, seed=1, repetition_penalty=1.2)
    for number in range(3):
        siblings = [Request(f"{number}/1", [5, 6], penalised)]
        engine.add(Request(str(number), [5, 6], penalised, siblings=siblings))
    engine.step()
    engine.cancel("0")
    while engine.has_work:
        engine.step()
    scheduler, sampler = engine.core._scheduler, engine.core._sampler
    dictionaries = (scheduler._requests, scheduler._queues.ranks, scheduler.cache._blocks, sampler._histories)
    assert [len(dictionary) for dictionary in dictionaries] == [0] * len(dictionaries)
    assert not scheduler._ended
