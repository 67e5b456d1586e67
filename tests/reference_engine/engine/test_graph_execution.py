"""Captured steps on the CPU: Triton's interpreter runs the kernels, and a step that is captured simply runs again."""

import random

import pytest
import torch

import bakeoff.reference_engine.attention as attention_package
from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.attention.torch_backend import TorchAttention
from bakeoff.reference_engine.attention.triton_backend import TritonAttention
from bakeoff.reference_engine.engine import executors, graph_execution, resolution
from bakeoff.reference_engine.engine.graph_execution import GraphExecutor, GraphShape
from bakeoff.reference_engine.engine.resolution import cache_layout
from bakeoff.reference_engine.kernels import cpu, paged_attention
from bakeoff.reference_engine.kernels.cpu import TorchKernels
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.block_table import block_list
from bakeoff.reference_engine.kv_cache.storage import allocate_storage
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.models import experts
from bakeoff.reference_engine.models.decoder import Taps
from bakeoff.reference_engine.models.execution import Batch, LocalExecutor
from bakeoff.reference_engine.models.registry import build_model
from bakeoff.reference_engine.offline import load_engine
from bakeoff.reference_engine.quantization import coded_linear
from tests.reference_engine.models.tiny_families import answers, engine_config, make_family
from tests.selection import sampled

CPU = torch.device("cpu")
BLOCKS, SIZE = 120, 4
SIZES = (8, 16, 32)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch):
    """Each program takes milliseconds here."""
    monkeypatch.setattr(paged_attention, "_PROGRAMS", 6)
    monkeypatch.setattr(paged_attention, "_LEAST_KEYS", 4)
    monkeypatch.setattr(graph_execution, "_MIXED_SIZES", SIZES)
    monkeypatch.setattr(graph_execution, "_MIXED_DECODES", (0, 2, 8))
    monkeypatch.setattr(graph_execution, "_SPARE_TILES", 3)


@pytest.fixture(scope="module")
def model_and_layout(checkpoint_dir):
    weights = SafetensorsDirectory(checkpoint_dir)
    model = build_model(weights.config, weights, max_positions=256, dtype=torch.float32, device=CPU)
    return model, cache_layout(weights.config)


def storage_of(layout):
    return allocate_storage(layout, num_blocks=[BLOCKS], block_size=SIZE, dtype=torch.float32, device=CPU)


class Recorded:
    """An executor, and the shapes that it captures and repeats."""

    def __init__(self, model, storage):
        self.captured, self.replayed = [], []
        self.executor = GraphExecutor(model, TritonAttention(storage), max_rows=8, max_tokens=64, capture=self.capture)

    def capture(self, run):
        (shape,) = run.args
        self.captured.append(shape)
        decode_parts = run.func.__self__._inputs._groups[0][1]
        assert (decode_parts[: shape.decodes, 0] < max(1, shape.tokens)).all(), "a capture begins with a run"
        return lambda: self.replayed.append(shape) or run()


@torch.inference_mode()
def test_repeated_decode_steps_equal_computed_ones(model_and_layout):
    """Any number of rows, even and uneven ones, tables that grow and change, tokens that only the device knows."""
    model, layout = model_and_layout
    taps, expected_taps = Taps((0, 2, 1)), Taps((0, 2, 1))
    rng = random.Random(3)
    graph_storage, plain_storage = storage_of(layout), storage_of(layout)
    graphs = Recorded(model.tapped(taps), graph_storage)
    assert graphs.captured == [GraphShape(rows, rows, splits) for rows in (8, 4, 2, 1) for splits in (True, False)]
    plain = LocalExecutor(model.tapped(expected_taps), TorchAttention(plain_storage), plain_storage)
    spare = list(range(BLOCKS))
    rng.shuffle(spare)
    lengths = [1, 9, 4, 17, 30]
    tables = [block_list(spare.pop() for _ in range(-(-length // SIZE))) for length in lengths]
    for table, length in zip(tables, lengths, strict=True):
        prompt = [rng.randrange(200) for _ in range(length)]
        batch = Batch(BlockCopies(), [Span([table], 0, length)], prompt, list(range(length)), [length - 1])
        torch.testing.assert_close(graphs.executor.execute(batch), plain.execute(batch), atol=2e-5, rtol=1e-5)
    previous = torch.tensor([7, 8, 9, 10, 11])
    # Rows of sequences, and which of them have logits: those of a draft model's latest token, or twice for siblings.
    whole = [[0, 1, 2, 3, 4], [2], [4, 3], [1, 2, 3], [3, 0, 4, 1]]
    parts = [([0, 1, 2, 3, 4], [4]), ([4, 3], [1, 1]), ([1, 2, 3], [0, 2])]
    for rows, wanted in [*((rows, list(range(len(rows)))) for rows in whole), *parts]:
        for row in rows:
            lengths[row] += 1
            tables[row].extend(spare.pop() for _ in range(-(-lengths[row] // SIZE) - len(tables[row])))
        spans = [Span([tables[row]], lengths[row] - 1, 1) for row in rows]
        token_ids = [rng.choice([rng.randrange(200), -1 - row]) for row in rows]
        positions = [span.start for span in spans]
        batch = Batch(BlockCopies(), spans, token_ids, positions, wanted, previous=previous)
        logits = graphs.executor.execute(batch)
        assert len(logits) == len(wanted)
        torch.testing.assert_close(logits, plain.execute(batch), atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(taps.rows, expected_taps.rows, atol=2e-4, rtol=1e-4)
        previous = TorchKernels().argmax(logits)
        previous = previous.repeat(5)[:5]  # as many as rows may name
    assert {shape.tokens for shape in graphs.replayed} == {8, 4, 2, 1}
    assert {shape.has_splits for shape in graphs.replayed} == {True, False}


@torch.inference_mode()
def test_repeated_steps_with_prompts_equal_computed_ones(model_and_layout, monkeypatch):
    """Chunks with and without a past, beside no, few and many decodes; tokens that only the device knows."""
    model, layout = model_and_layout
    rng = random.Random(5)
    graph_storage, plain_storage = storage_of(layout), storage_of(layout)
    for store in graph_storage.stores:
        for part in store.parts:
            part.fill_(float("nan"))  # what nobody wrote must not reach a result
    graphs = Recorded(model, graph_storage)
    shapes = [
        GraphShape(tokens, decodes)
        for tokens, most in zip(reversed(SIZES), ((8, 2, 0),) * 3, strict=True)
        for decodes in most
    ]
    assert graphs.captured[: len(shapes)] == shapes
    plain = LocalExecutor(model, TorchAttention(plain_storage), plain_storage)
    spare = list(range(BLOCKS))
    rng.shuffle(spare)
    lengths = [0] * 7
    tables = [block_list(spare.pop() for _ in range(12)) for _ in lengths]
    previous = torch.tensor([7, 8, 9])
    steps = [  # new tokens by sequence, and the shape that serves
        ({0: 5}, (8, 0)),
        ({0: 1, 1: 4, 2: 3}, (8, 2)),
        ({0: 1, 1: 1, 2: 1, 3: 9, 4: 1}, (16, 8)),
        ({5: 20, 3: 5}, (32, 0)),
        ({6: 33}, None),
        ({0: 1, 1: 1, 6: 2, 5: 3, 4: 6}, (16, 2)),
        ({6: 1, 0: 1, 2: 1, 1: 2, 3: 3}, (8, 8)),
        ({6: 9, 3: 1}, (16, 0)),
    ]
    padded_splits = []
    fill = graph_execution._Room.fill

    def observed(room, parts, rows, work):
        padded_splits.append(work.num_places > 0 and len(work.parts) < room.parts)
        fill(room, parts, rows, work)

    monkeypatch.setattr(graph_execution._Room, "fill", observed)
    for lengthened, shape in steps:
        spans = [Span([tables[row]], lengths[row], count) for row, count in lengthened.items()]
        token_ids = [
            rng.choice([rng.randrange(200), -1 - rng.randrange(3)]) for span in spans for _ in range(span.length)
        ]
        positions = [span.start + place for span in spans for place in range(span.length)]
        wanted = rng.sample(range(len(token_ids)), rng.randint(1, len(token_ids)))
        batch = Batch(BlockCopies(), spans, token_ids, positions, wanted, wanted[:2], previous)
        graphs.replayed.clear()
        scored = []
        logits = graphs.executor.execute(batch, lambda rows, scored=scored: scored.append(rows.clone()))
        expected = []
        torch.testing.assert_close(logits, plain.execute(batch, expected.append), atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(scored, expected, atol=2e-5, rtol=1e-5)
        assert graphs.replayed == ([] if shape is None else [GraphShape(*shape)])
        for row, count in lengthened.items():
            lengths[row] += count
    of_decodes, of_chunks = padded_splits[::2], padded_splits[1::2]
    assert any(of_decodes)
    assert any(of_chunks)


@torch.inference_mode()
def test_a_step_of_more_tiles_than_a_graph_has_runs_as_it_is(model_and_layout):
    model, layout = model_and_layout
    graph_storage, plain_storage = storage_of(layout), storage_of(layout)
    graphs, plain = Recorded(model, graph_storage), LocalExecutor(model, TorchAttention(plain_storage), plain_storage)
    spans = [Span([block_list([block])], 0, 2) for block in range(4)]
    batch = Batch(BlockCopies(), spans, [5] * 8, [0, 1] * 4, [1, 3, 5, 7])
    torch.testing.assert_close(graphs.executor.execute(batch), plain.execute(batch), atol=2e-5, rtol=1e-5)
    assert not graphs.replayed


@pytest.fixture
def _as_on_a_gpu(monkeypatch):
    for module in (cpu, attention_package, executors, experts, coded_linear):
        monkeypatch.setattr(module, "has_triton", lambda device: True)
    monkeypatch.setattr(graph_execution, "CudaCapture", lambda: lambda run: run)


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize(
    ("family", "quantization"),
    sampled(
        [("mixtral", "none"), ("gpt_oss", "none"), ("mixtral", "int4-zp"), ("gpt_oss", "mxfp4")],
        [("mixtral", "none"), ("gpt_oss", "mxfp4")],
    ),
)
@torch.inference_mode()
def test_steps_of_experts_are_captured_and_agree_with_one_expert_after_another(
    family, quantization, tmp_path, save_checkpoint, monkeypatch
):
    monkeypatch.setattr(graph_execution, "_MIXED_SIZES", (8,))
    monkeypatch.setattr(graph_execution, "_MIXED_DECODES", (2,))
    checkpoint = open_checkpoint(save_checkpoint(tmp_path, make_family(family, num_hidden_layers=1)))
    settings = {"num_blocks": BLOCKS, "quantization": quantization, "max_num_seqs": 2}
    config = resolution.resolve_config(engine_config(checkpoint.path, **settings), checkpoint.config)
    executor = executors.build_executor(config, checkpoint)
    assert type(executor) is GraphExecutor
    storage = executors.storage_of(config, resolution.demand_of(config, checkpoint.config), BLOCKS, CPU)
    with pytest.MonkeyPatch.context() as on_a_cpu:
        on_a_cpu.setattr(experts, "has_triton", lambda device: False)
        model = build_model(
            checkpoint.config, checkpoint.weights, max_positions=256, dtype=torch.float32, device=CPU,
            quantization=quantization,
        )  # fmt: skip
    assert not model.may_capture
    plain = LocalExecutor(model, TorchAttention(storage), storage)
    groups = [block_list([0]) for _ in storage.padding_blocks]
    for start, tokens in ((0, [5, 9, 17]), (3, [40])):
        count = len(tokens)
        batch = Batch(
            BlockCopies(), [Span(groups, start, count)], tokens, list(range(start, start + count)), [count - 1]
        )
        torch.testing.assert_close(executor.execute(batch), plain.execute(batch), atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_an_engine_that_repeats_its_decode_steps_agrees_with_transformers(checkpoint_dir, hf_model, greedy):
    engine = load_engine(engine_config(checkpoint_dir, max_num_seqs=2))
    assert type(engine.core._runner._executor) is GraphExecutor
    prompts = [[5, 6, 7, 8, 9, 10], [11, 12]]
    outputs, _ = answers(engine, prompts, 3)
    assert outputs == [greedy(hf_model, prompt, 3)[0] for prompt in prompts]
    executor = engine.core._runner._executor
    executor.close()
    assert not executor._replays, "graphs that hold collectives would keep a communicator from ending"


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize(
    ("name", "settings", "cause"),
    [
        ("llama", {"cuda_graphs": False}, None),
        ("mixtral", {"quantization": "fp8"}, "the format of its weights"),
        ("llama", {"quantization": "llm-int8"}, "the format of its weights"),
    ],
)
def test_some_formats_are_not_captured_and_nothing_is_where_graphs_are_off(
    name, settings, cause, tmp_path, save_checkpoint, caplog
):
    checkpoint = open_checkpoint(save_checkpoint(tmp_path, make_family(name)))
    config = resolution.resolve_config(engine_config(checkpoint.path, num_blocks=9, **settings), checkpoint.config)
    assert type(executors.build_executor(config, checkpoint)) is LocalExecutor
    said = [record.getMessage() for record in caplog.records if record.name == executors.__name__]
    assert len(said) == (cause is not None)
    assert all(f"because of {cause}" in line for line in said)
