"""Ranks are threads in tests of numbers, and processes in tests of how they start, fail and end."""

import array
import asyncio
import dataclasses
import os
import subprocess
import sys
import threading
import time

import msgspec
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.core.ranks import Alone, share, vocabulary_share
from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.engine import assembly
from bakeoff.reference_engine.engine.resolution import resolve_config
from bakeoff.reference_engine.errors import ConfigError, EngineUnavailableError
from bakeoff.reference_engine.kernels import small_products
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.block_table import RELEASED, block_list
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.models import linear
from bakeoff.reference_engine.models.execution import Batch
from bakeoff.reference_engine.models.sharding import config_of_rank
from bakeoff.reference_engine.offline import LLM, generate, load_engine
from bakeoff.reference_engine.parallel import workers
from bakeoff.reference_engine.parallel.messages import SentBatch, SentSpan, decode_batch, encode_batch
from tests.reference_engine.models.tiny_families import make_family
from tests.selection import sampled

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
PROMPTS = [[5], [*range(3, 43)], [9, 8, 7, 6]]
DEATH_S = 20.0  # more than a process takes to be seen as gone, less than an exchange waits


def outputs_of(engine):
    try:
        return generate(engine, PROMPTS, [GREEDY] * len(PROMPTS))
    finally:
        engine.close()


def children():
    """Processes below this one; Python's own tracker of semaphores, that other tests may have needed, is none."""
    processes = psutil.Process().children(recursive=True)
    return [process for process in processes if not any("resource_tracker" in word for word in process.cmdline())]


class Rank(Alone):
    def __init__(self, rank, size):
        self.rank, self.size = rank, size


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 30))
def test_shares_are_the_whole(size, pieces, width, vocab_size):
    ranks = [Rank(rank, size) for rank in range(size)]
    whole = torch.arange(size * width)
    assert torch.cat([share(whole, 0, rank) for rank in ranks]).equal(whole)
    heads = torch.arange(pieces * width)
    if pieces % size == 0 or size % pieces == 0:
        count = max(1, pieces // size) * width
        shares = [share(heads, 0, rank, count) for rank in ranks]
        assert torch.cat(shares).equal(heads.view(-1, count).repeat_interleave(max(1, size // pieces), 0).flatten())
    matrix = torch.rand(vocab_size, 2) + 1
    parts = [vocabulary_share(matrix, rank) for rank in ranks]
    assert len({len(part) for part in parts}) == 1
    assert torch.cat(parts)[:vocab_size].equal(matrix)
    assert not torch.cat(parts)[vocab_size:].any()


def test_a_batch_travels_whole_and_its_block_tables_as_arrays():
    spans = [Span([block_list([3, RELEASED, 70_000]), block_list()], 40, 2), Span([[5, 5]], 0, 1)]
    batch = Batch(BlockCopies(to_host=[(0, 1, 2)], within=[(1, 2, 3)]), spans, [7, 8, 9], [40, 41, 0], [1, 2], [0])
    received = decode_batch(encode_batch(batch), pytest.fail)
    tables = [table for span in received.spans for table in span.tables]
    assert all(isinstance(table, array.array) and table.typecode == "i" for table in tables)
    assert [list(table) for table in tables] == [[3, -1, 70_000], [], [5, 5]]
    assert [(span.start, span.length) for span in received.spans] == [(40, 2), (0, 1)]
    assert msgspec.structs.replace(received, spans=spans) == batch
    assert SentBatch.__struct_fields__ == Batch.__struct_fields__[:-1]  # but for the event
    ahead = decode_batch(encode_batch(msgspec.structs.replace(batch, previous=torch.tensor([5, 6]))), torch.arange)
    assert ahead.previous.tolist() == [0, 1]
    assert SentSpan.__struct_fields__ == Span.__struct_fields__


@pytest.mark.parametrize(
    "family", sampled(["qwen2", "mistral, no window", "gemma3", "deepseek_v2"], ["qwen2", "deepseek_v2"])
)
def test_four_ranks_with_shared_key_value_heads_and_an_uneven_vocabulary(
    tmp_path, save_checkpoint, tiny_config, ranks_as_threads, family
):
    path = str(save_checkpoint(tmp_path, make_family(family)))
    assert open_checkpoint(tmp_path).config.vocab_size % 4
    single, four = (load_engine(tiny_config(model=path, tensor_parallel_size=size)) for size in (1, 4))
    assert outputs_of(four) == outputs_of(single)


@pytest.fixture
def _loaded_as_on_a_gpu(monkeypatch):
    """Weights go to Triton's products, and only a conversion copies them."""
    to = torch.Tensor.to

    def converted(tensor, *args, copy=False, **options):
        return to(tensor, *args, **options)

    monkeypatch.setattr(torch.Tensor, "to", converted)
    monkeypatch.setattr(linear, "has_triton", lambda device: True)
    for name in ("can_tile", "can_pack"):
        monkeypatch.setattr(linear, name, lambda weight: False)


WIDE = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 1}


@pytest.mark.usefixtures("_loaded_as_on_a_gpu")
def test_small_products_multiply_the_columns_of_a_rank(
    tmp_path, make_model, save_checkpoint, tiny_config, ranks_as_threads, monkeypatch
):
    model = make_model(num_key_value_heads=8, head_dim=64, initializer_range=0.05, **WIDE).bfloat16()
    path = str(save_checkpoint(tmp_path, model))
    multiply, one_at_a_time, widths = small_products.multiply, threading.Lock(), []

    def product(rows, weight, *rest):
        with one_at_a_time:  # the interpreter replaces Triton's functions for all threads
            widths.append(weight.shape)
            return multiply(rows, weight, *rest)

    monkeypatch.setattr(small_products, "multiply", product)
    monkeypatch.setattr(small_products, "_ROW_TILE_OUTPUTS", 64)  # each program takes milliseconds here
    two = load_engine(tiny_config(model=path, dtype="bfloat16", tensor_parallel_size=2))
    monkeypatch.setattr(linear, "has_triton", lambda device: False)
    single = load_engine(tiny_config(model=path, dtype="bfloat16"))
    # Steps of one row: the interpreter multiplies tiles of bfloat16 as if they were integers (Triton 3.7).
    params = SamplingParams(max_tokens=4, min_tokens=4, temperature=0.0)
    answers = []
    for engine in (two, single):
        answers.append(generate(engine, [[5]], [params]))
        engine.close()
    assert answers[0] == answers[1]
    assert (512, 512) in widths  # half the columns of the projection of heads, and of the one down


@pytest.mark.parametrize("settings", [{"kv_cache_dtype": "int4"}, {"attention_window": 16, "attention_sinks": 2}])
def test_settings_of_the_cache_hold_on_every_rank(tiny_engine, ranks_as_threads, settings):
    expected = outputs_of(tiny_engine(**settings))
    assert expected != outputs_of(tiny_engine())
    assert outputs_of(tiny_engine(tensor_parallel_size=2, **settings)) == expected


def test_steps_overlap_on_every_rank(tiny_engine, ranks_as_threads):
    """As on GPUs: the tokens of a step reach the other ranks in front of the next one, without the host."""
    engine = tiny_engine(tensor_parallel_size=2)
    engine.core.overlap = True
    launched = []
    execute = engine.core._runner._executor.execute
    engine.core._runner._executor.execute = lambda batch, read=None: launched.append(batch) or execute(batch, read)
    assert outputs_of(engine) == outputs_of(tiny_engine())
    assert sum(batch.previous is not None for batch in launched) > 8


@pytest.mark.parametrize("family", sampled(["mixtral", "deepseek_v2", "gpt_oss"], ["deepseek_v2"]))
def test_whole_experts_give_the_tokens_of_one_process(tmp_path, save_checkpoint, tiny_config, ranks_as_threads, family):
    path = str(save_checkpoint(tmp_path, make_family(family)))
    engine = load_engine(tiny_config(model=path, tensor_parallel_size=2, expert_parallel=True))
    layers = [executor._model._layers[-1]._mlp for executor in engine.core._runner._executor.executors]
    own = [getattr(layer, "_routed", layer)._networks._own for layer in layers]
    assert own[0].stop == own[1].start > 0
    assert outputs_of(engine) == outputs_of(load_engine(tiny_config(model=path)))


def test_only_mixtures_have_whole_experts(tiny_config):
    with pytest.raises(ConfigError, match="--expert-parallel is for mixtures of experts, and llama is none"):
        resolve_config(tiny_config(tensor_parallel_size=2, expert_parallel=True), MODEL)


def test_one_process_has_all_experts_anyway(tmp_path, save_checkpoint, tiny_config):
    model = open_checkpoint(save_checkpoint(tmp_path, make_family("mixtral"))).config
    with pytest.raises(ConfigError, match="--tensor-parallel-size, which is 1; raise it"):
        resolve_config(tiny_config(expert_parallel=True), model)


def test_more_processes_than_experts_are_refused(tmp_path, save_checkpoint, tiny_config):
    model = open_checkpoint(save_checkpoint(tmp_path, make_family("mixtral", num_local_experts=2))).config
    with pytest.raises(ConfigError, match="4 processes are more than the model's 2 experts; lower --tensor-parallel"):
        resolve_config(tiny_config(tensor_parallel_size=4, expert_parallel=True), model)


def test_static_batches_are_padded_on_every_rank(tiny_engine, ranks_as_threads):
    assert outputs_of(tiny_engine(tensor_parallel_size=2, ablation="static_batching")) == outputs_of(tiny_engine())


def test_biases_behind_both_matrices_are_added_once(
    tmp_path, make_model, save_checkpoint, tiny_config, ranks_as_threads
):
    path = str(save_checkpoint(tmp_path, make_model(attention_bias=True, mlp_bias=True)))
    single, two = (load_engine(tiny_config(model=path, tensor_parallel_size=size)) for size in (1, 2))
    assert outputs_of(two) == outputs_of(single)


@pytest.mark.parametrize(("family", "of_whole"), [("llama", 0.5), ("mistral, no window", 1), ("deepseek_v2", 1)])
def test_a_rank_keeps_its_heads_only(tmp_path, save_checkpoint, tiny_config, family, of_whole):
    model = open_checkpoint(save_checkpoint(tmp_path, make_family(family))).config
    single, shared = (resolve_config(tiny_config(tensor_parallel_size=size), model) for size in (1, 2))
    assert shared.kv_cache_memory_bytes == of_whole * single.kv_cache_memory_bytes


MODEL = ModelConfig(
    vocab_size=9, hidden_size=8, intermediate_size=24, num_hidden_layers=1, num_attention_heads=12,
    num_key_value_heads=4, head_dim=2, max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("size", "changes", "message"),
    [
        (5, {}, "5 does not divide the model's 12 attention heads"),
        (2, {"intermediate_size": 7}, r"2 does not divide the model's 7 feed-forward columns \(intermediate_size\)"),
        (6, {}, "6 neither divides the model's 4 key/value heads nor is a multiple of them"),
    ],
)
def test_models_that_cannot_be_cut_are_refused(tiny_config, size, changes, message):
    with pytest.raises(ConfigError, match=message):
        resolve_config(tiny_config(tensor_parallel_size=size), dataclasses.replace(MODEL, **changes))


def test_experts_that_cannot_be_cut_are_refused(tmp_path, save_checkpoint):
    model = open_checkpoint(save_checkpoint(tmp_path, make_family("qwen3_moe"))).config
    with pytest.raises(ConfigError, match=r"2 does not divide the model's 31 columns of an expert"):
        config_of_rank(dataclasses.replace(model, moe_intermediate_size=31), 2)


def test_too_few_gpus_are_refused(tiny_config, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="--tensor-parallel-size 2 wants as many GPUs, torch finds 1"):
        resolve_config(tiny_config(tensor_parallel_size=2, device="cuda"), MODEL)


def test_settings_that_contradict_it_are_refused(tiny_config):
    with pytest.raises(ConfigError, match="--tensor-parallel-size must be at least 1, not 0"):
        tiny_config(tensor_parallel_size=0)
    with pytest.raises(ConfigError, match=r"heavy_hitter excludes --tensor-parallel-size: .*; drop one"):
        tiny_config(tensor_parallel_size=2, ablation="heavy_hitter:8:0", enable_prefix_caching=False)


def test_cores_are_shared(tiny_config):
    torch.set_num_threads(3)
    try:
        threads = [
            resolve_config(tiny_config(threads=None, tensor_parallel_size=size), MODEL).threads for size in (1, 2, 4)
        ]
    finally:
        torch.set_num_threads(1)
    assert threads == [3, 1, 1]


@pytest.mark.parametrize("form", sampled(["tensor", "pipeline", "context"], ["tensor", "context"]))
def test_two_processes_answer_as_one_and_end_with_the_model(checkpoint_dir, tiny_engine, form):
    settings = {"dtype": "float32", "num_blocks": 64, "max_num_seqs": 8, "threads": 1, "max_num_batched_tokens": 256}
    prompts = [*PROMPTS, [number % 190 + 3 for number in range(150)]]  # long enough for two processes to share it out
    with LLM(checkpoint_dir, **settings, **{f"{form}_parallel_size": 2}) as llm:
        (worker,) = children()
        answers = llm.generate(prompts, GREEDY, ignore_eos=True)
    assert not worker.is_running()
    expected = generate(tiny_engine(max_num_batched_tokens=256), prompts, [GREEDY] * len(prompts))
    assert [answer.completions[0].token_ids for answer in answers] == expected


def test_a_model_that_is_forgotten_takes_its_processes_along(tiny_engine):
    engine = tiny_engine(tensor_parallel_size=2)
    (worker,) = children()
    del engine
    assert not worker.is_running()


def test_a_server_that_stops_leaves_no_process(serve):
    async def main():
        async with serve(tensor_parallel_size=2) as served:
            (worker,) = children()
            await served.post("/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 3})
        assert not worker.is_running()

    asyncio.run(main())


@pytest.mark.parametrize("in_a_step", [False, True])
def test_a_process_that_dies_is_an_error_soon(tiny_engine, in_a_step):
    engine = tiny_engine(tensor_parallel_size=2)
    (worker,) = children()
    if in_a_step:
        worker.suspend()
        threading.Timer(0.3, worker.kill).start()
    else:
        worker.kill()
    began = time.monotonic()
    message = rf"rank 1 \(pid {worker.pid}\) ended with signal 9; start the engine again"
    with pytest.raises(EngineUnavailableError, match=message):
        generate(engine, PROMPTS, [GREEDY] * len(PROMPTS))
    with pytest.raises(EngineUnavailableError, match=message):
        engine.step()
    assert time.monotonic() - began < DEATH_S
    engine.close()
    assert children() == []


def test_a_process_that_cannot_load_says_why(tmp_path, make_model, save_checkpoint, tiny_config):
    directory = save_checkpoint(tmp_path, make_model())
    checkpoint = open_checkpoint(directory)
    config = resolve_config(tiny_config(model=str(directory), tensor_parallel_size=2), checkpoint.config)
    (directory / "config.json").unlink()
    with pytest.raises(
        EngineUnavailableError, match=r"rank 1 .* ended with status 1: CheckpointError: .*no config\.json"
    ):
        assembly.build_engine(config, checkpoint)
    assert children() == []


@pytest.mark.parametrize("is_closing", [False, True])
def test_a_process_that_exits_is_noticed_unless_it_may(is_closing):
    seen, closing = threading.Event(), threading.Event()
    if is_closing:
        closing.set()
    with subprocess.Popen(["sleep", "60"]) as process:
        watching = threading.Thread(target=workers._watch, args=([os.pidfd_open(process.pid)], closing, seen.set))
        watching.start()
        process.kill()
        watching.join(DEATH_S)
    assert seen.is_set() is not is_closing


ORPHANS = """
import sys
from bakeoff.reference_engine.offline import LLM
llm = LLM(sys.argv[1], dtype="float32", num_blocks=64, threads=1, tensor_parallel_size=2)
print("ready", flush=True)
sys.stdin.read()
"""


def test_processes_end_with_rank_0_however_it_dies(checkpoint_dir):
    command = [sys.executable, "-c", ORPHANS, str(checkpoint_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"ready\n"
        (worker,) = psutil.Process(first.pid).children()
        first.kill()
    worker.wait(DEATH_S)
