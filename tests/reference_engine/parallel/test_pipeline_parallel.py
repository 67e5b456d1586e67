"""Stages are threads here; `test_tensor_parallel.py` starts them as processes."""

import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.attention.torch_backend import TorchAttention
from bakeoff.reference_engine.attention.triton_backend import TritonAttention
from bakeoff.reference_engine.core.ranks import Alone, Stage
from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.engine import graph_execution
from bakeoff.reference_engine.engine.graph_execution import GraphExecutor
from bakeoff.reference_engine.engine.resolution import cache_layout, resolve_config
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.kernels import paged_attention
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.block_table import block_list
from bakeoff.reference_engine.kv_cache.storage import allocate_storage
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.models.execution import Batch, LocalExecutor
from bakeoff.reference_engine.models.registry import build_model
from bakeoff.reference_engine.models.sharding import layers_of_stage
from bakeoff.reference_engine.offline import generate, load_engine
from bakeoff.reference_engine.parallel.group import Shape, connect
from tests.reference_engine.models.tiny_families import make_family

CPU = torch.device("cpu")
DEATH_S = 20.0  # more than noticing takes
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
PROMPTS = [[5], [*range(3, 43)], [9, 8, 7, 6]]


def outputs_of(engine):
    try:
        return generate(engine, PROMPTS, [GREEDY] * len(PROMPTS))
    finally:
        engine.close()


@given(st.integers(1, 6), st.integers(0, 40), st.floats(0, 30))
def test_stages_are_the_whole_model_and_none_is_empty(count, more, head):
    total = count + more
    parts = [Stage(number, count).layers(total, head) for number in range(count)]
    assert [layer for part in parts for layer in part] == list(range(total))
    assert all(parts)


def test_the_last_stage_has_fewer_layers_for_its_head():
    assert [len(Stage(number, 2).layers(32, 2.4)) for number in (0, 1)] == [17, 15]
    assert [len(Stage(number, 4).layers(4, 9.0)) for number in range(4)] == [1, 1, 1, 1]


def test_the_first_processes_are_the_last_stage():
    shape = Shape(2, 3)
    assert [shape.stage_of(process).number for process in range(shape.size)] == [2, 2, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("family", "changes", "settings"),
    [
        ("llama", {}, {"pipeline_parallel_size": 2}),
        ("llama", {"num_hidden_layers": 3}, {"pipeline_parallel_size": 3}),
        ("gemma3", {}, {"pipeline_parallel_size": 2}),
        ("deepseek_v2", {}, {"pipeline_parallel_size": 2}),
        ("qwen2", {}, {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}),
        ("mixtral", {}, {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}),
    ],
)
def test_stages_give_the_tokens_of_one_process(
    tmp_path, save_checkpoint, tiny_config, ranks_as_threads, family, changes, settings
):
    path = str(save_checkpoint(tmp_path, make_family(family, **changes)))
    assert outputs_of(load_engine(tiny_config(model=path, **settings))) == outputs_of(
        load_engine(tiny_config(model=path))
    )


@pytest.mark.parametrize("settings", [{}, {"kv_cache_dtype": "int8"}, {"num_blocks": 10, "preemption": "swap"}])
def test_several_steps_are_in_flight(tiny_engine, ranks_as_threads, settings):
    """As on GPUs: steps of different requests follow one another, and their tokens reach the first stage later."""
    engine = tiny_engine(pipeline_parallel_size=2, max_num_batched_tokens=16, **settings)
    engine.core.overlap = True
    prompts = [[number, *range(7, 7 + 3 * number)] for number in range(7)]
    in_flight, ahead = [], []
    execute = engine.core._runner._executor.execute

    def watched(batch, read=None):
        in_flight.append(len(engine.core._in_flight))
        ahead.append(batch.previous is not None)
        return execute(batch, read)

    engine.core._runner._executor.execute = watched
    assert generate(engine, prompts, [GREEDY] * 7) == generate(
        tiny_engine(max_num_batched_tokens=16, **settings), prompts, [GREEDY] * 7
    )
    assert max(in_flight) == 2
    assert sum(ahead) > 10
    engine.close()


class Link(Alone):
    """A stage whose rows go to, or come from, a list."""

    def __init__(self, stage, rows):
        self.stage, self.sent = stage, rows

    def send(self, rows):
        self.sent.append(rows)

    def receive(self, rows):
        return rows.copy_(self.sent.pop())


@torch.inference_mode()
def test_stages_that_repeat_their_steps_equal_a_computed_whole(checkpoint_dir, monkeypatch):
    """Under Triton's interpreter: decodes, and prompts beside them, whose rows come from the other stage's graphs."""
    for name, value in {"_MIXED_SIZES": (8, 16), "_MIXED_DECODES": (0, 2)}.items():
        monkeypatch.setattr(graph_execution, name, value)
    monkeypatch.setattr(paged_attention, "_PROGRAMS", 6)
    source = SafetensorsDirectory(checkpoint_dir)
    layout, rows, rng = cache_layout(source.config), [], random.Random(2)

    def model_of(ranks):
        return build_model(source.config, source, max_positions=64, dtype=torch.float32, device=CPU, ranks=ranks)

    def storage_of(part):
        return allocate_storage(part, num_blocks=[40], block_size=4, dtype=torch.float32, device=CPU)

    stages = []
    for number in (0, 1):
        link = Link(Stage(number, 2), rows)
        part = layout.part(layers_of_stage(source.config, link.stage))
        storage = storage_of(part)
        assert len(storage.stores) < len(layout.layers)
        stages.append(
            GraphExecutor(
                model_of(link), TritonAttention(storage), max_rows=4, max_tokens=32, capture=lambda run: run, ranks=link
            )
        )
    whole_storage = storage_of(layout)
    whole = LocalExecutor(model_of(Alone()), TorchAttention(whole_storage), whole_storage)
    tables = [block_list(range(8 * number, 8 * number + 8)) for number in range(4)]
    lengths = [0] * 4
    for step in ({0: 5, 1: 7}, {0: 1, 1: 1, 2: 9}, {0: 1, 1: 1, 2: 1}, {3: 20}, {0: 1, 3: 1}):
        spans = [Span([tables[row]], lengths[row], count) for row, count in step.items()]
        tokens = [rng.randrange(200) for count in step.values() for _ in range(count)]
        positions = [position for span in spans for position in range(span.start, span.end)]
        ends = torch.tensor(list(step.values())).cumsum(0) - 1
        batch = Batch(BlockCopies(), spans, tokens, positions, ends.tolist())
        assert stages[0].execute(batch) is None
        torch.testing.assert_close(stages[1].execute(batch), whole.execute(batch), atol=2e-5, rtol=1e-5)
        assert not rows
        for row, count in step.items():
            lengths[row] += count


def test_a_process_keeps_its_layers_only(checkpoint_dir, tiny_config):
    model = open_checkpoint(checkpoint_dir).config
    assert model.num_hidden_layers == 2
    single, stages = (resolve_config(tiny_config(pipeline_parallel_size=count), model) for count in (1, 2))
    assert stages.kv_cache_memory_bytes * 2 == single.kv_cache_memory_bytes


def test_models_that_cannot_be_parted_are_refused(checkpoint_dir, tiny_config, monkeypatch):
    model = open_checkpoint(checkpoint_dir).config
    with pytest.raises(ConfigError, match="--pipeline-parallel-size 3 is more than the model's 2 layers"):
        resolve_config(tiny_config(pipeline_parallel_size=3), model)
    with pytest.raises(ConfigError, match="parts layers, and some of this model's share keys"):
        resolve_config(tiny_config(pipeline_parallel_size=2), dataclasses.replace(model, cla_factor=2))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    wanted = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "device": "cuda"}
    with pytest.raises(ConfigError, match="2 times --pipeline-parallel-size 2 wants as many GPUs, torch finds 3"):
        resolve_config(tiny_config(**wanted), model)


def test_waiting_for_the_least_ends_with_the_group(tmp_path):
    """A process that cannot load its part never names its number."""
    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(lambda process: connect(tmp_path, process, Shape(1, 2), CPU), range(2)))
        waiting = pool.submit(groups[0].least, 7)
        groups[0].abort()
        with pytest.raises(RuntimeError, match="another process has ended"):
            waiting.result(DEATH_S)
    groups[1].abort()
