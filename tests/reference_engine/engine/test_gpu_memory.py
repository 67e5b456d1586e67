"""The KV cache of a GPU is sized after the weights are loaded; the GPU is a fake, the step is real."""

import dataclasses

import pytest
import torch

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.engine import executors
from bakeoff.reference_engine.engine.assembly import build_engine
from bakeoff.reference_engine.engine.gpu_memory import GpuBudget, largest_batch
from bakeoff.reference_engine.engine.resolution import demand_of, resolve_config
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.kv_cache.layout import CacheLayout, LayerLayout
from bakeoff.reference_engine.kv_cache.sizing import Demand
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.offline import generate

BLOCK = 16 * 2 * 2 * 2 * 16 * 4  # tokens, layers, keys and values, heads, head_dim, bytes


class FakeCuda:
    """A GPU of 1,000 bytes of which other processes have 100; `use` allocates by torch, `take` by another library."""

    def __init__(self, other_processes=100):
        self.outside, self.allocated, self.peak = other_processes, 0, 0

    def mem_get_info(self, device):
        return 1000 - self.outside - self.allocated, 1000

    def memory_reserved(self, device):
        return self.allocated

    def max_memory_allocated(self, device):
        return self.peak

    def reset_peak_memory_stats(self, device):
        self.peak = self.allocated

    def synchronize(self, device):
        pass

    def empty_cache(self):
        pass

    def use(self, size):
        self.allocated += size
        self.peak = max(self.peak, self.allocated)

    def take(self, size):
        self.outside += size


def budget(cuda, share):
    return GpuBudget(torch.device("cuda"), share, cuda)


def test_what_weights_step_and_libraries_leave_of_the_share_is_the_caches():
    cuda = FakeCuda()
    measured = budget(cuda, 0.8)
    cuda.use(300)  # weights

    def step():
        cuda.use(200)
        cuda.take(50)
        cuda.use(-200)

    assert measured.left(step) == 800 - 300 - 200 - 50


def test_memory_of_other_processes_cannot_be_used_and_some_stays_free():
    cuda = FakeCuda(other_processes=600)
    assert budget(cuda, 0.8).left(lambda: None) == 400 - 30


def test_what_the_process_had_before_counts_towards_its_share():
    cuda = FakeCuda()
    cuda.use(100)
    assert budget(cuda, 0.8).left(lambda: None) == 700
    assert budget(cuda, 1.0).left(lambda: None) == 800 - 30


@pytest.mark.parametrize(
    ("seqs", "tokens", "length", "lengths"),
    [
        (4, 32, 256, [29, 1, 1, 1]),
        (4, 32, 10, [10, 10, 10, 2]),
        (2, 32, 10, [10, 10]),
        (3, 3, 10, [1, 1, 1]),
    ],
)
def test_the_largest_batch_has_all_tokens_and_all_seats(seqs, tokens, length, lengths):
    demand = Demand(CacheLayout((LayerLayout(1, 8, 8),)), 4, length, seqs, tokens, [64])
    batch, needed = largest_batch(demand, seqs)
    assert [span.length for span in batch.spans] == lengths
    assert len(batch.token_ids) == len(batch.positions) == sum(lengths)
    assert [batch.positions[row] for row in batch.wanted_rows] == [size - 1 for size in lengths]
    blocks = [block for span in batch.spans for block in span.tables[0]]
    assert blocks == list(range(needed))


@pytest.fixture
def measured(monkeypatch, tiny_config, checkpoint_dir):
    """Builds an engine as on GPUs with this many bytes left beside the weights and the largest step."""

    def build(*lefts, **changes):
        checkpoint, remaining, steps = open_checkpoint(checkpoint_dir), list(lefts), []

        class Budget:
            def __init__(self, device, share):
                self.bytes = remaining.pop()

            def left(self, step):
                steps.append(step())
                _, needed = largest_batch(demand, demand.max_num_seqs)
                return self.bytes - demand.bytes(needed + 1)  # the cache of that step, which is not there to stay

        monkeypatch.setattr(executors, "GpuBudget", Budget)
        config = resolve_config(tiny_config(**changes), checkpoint.config)
        demand = demand_of(config, checkpoint.config)
        opened = dataclasses.replace(config, num_blocks=None, kv_cache_memory_bytes=None)
        engine, complete = build_engine(opened, checkpoint)
        assert len(steps) == len(lefts)
        return engine, complete

    return build


def test_settings_and_limits_show_the_measured_size(measured):
    engine, config = measured(10 * BLOCK + 5)
    assert (config.num_blocks, config.kv_cache_memory_bytes) == (10, 10 * BLOCK)
    assert engine.limits.cache_tokens == 160
    assert len(generate(engine, [[5, 6, 7]], [SamplingParams(max_tokens=4)])[0]) == 4
    engine.core.check_integrity()


def test_a_model_that_leaves_no_block_says_what_to_change(measured):
    with pytest.raises(ConfigError, match=r"step of 64 tokens leave no KV block .* lower --max-num-batched-tokens"):
        measured(BLOCK - 1)


def test_a_step_that_does_not_fit_says_what_to_change(measured, monkeypatch):
    def out_of_memory(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(executors.LocalExecutor, "execute", out_of_memory)
    with pytest.raises(ConfigError, match="step of 64 tokens do not fit"):
        measured(10 * BLOCK)


def test_ranks_agree_on_the_least(measured, ranks_as_threads):
    engine, config = measured(6 * BLOCK // 2, 9 * BLOCK // 2, tensor_parallel_size=2)
    ranks = engine.core._runner._executor.executors
    assert config.num_blocks == 6
    assert [executor.storage.padding_blocks for executor in ranks] == [(6,), (6,)]


def test_a_gpu_runs_larger_batches_and_leaves_the_size_of_its_cache_open(monkeypatch, checkpoint_dir):
    model = open_checkpoint(checkpoint_dir).config
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = resolve_config(EngineConfig(model="m"), model)
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.num_blocks) == (256, 8192, None)
    named = resolve_config(EngineConfig(model="m", max_num_seqs=3, max_num_batched_tokens=9, num_blocks=7), model)
    assert (named.max_num_seqs, named.max_num_batched_tokens, named.num_blocks) == (3, 9, 7)
    block = 16 * 2 * 2 * 2 * 16 * getattr(torch, config.dtype).itemsize
    assert resolve_config(EngineConfig(model="m", kv_cache_memory_bytes=5 * block), model).num_blocks == 5


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_of_memory_is_one(share):
    with pytest.raises(ConfigError, match="--gpu-memory-utilization must be above 0 and at most 1"):
        EngineConfig(model="m", gpu_memory_utilization=share)
