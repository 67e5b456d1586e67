"""`--batch-invariant`: a token's bits are the same alone and in any batch, however its sequence is cut and cached.

The kernels run in Triton's interpreter, which multiplies bfloat16 as if it were integers: other dtypes are tested.
"""

import dataclasses
import random

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

import bakeoff.reference_engine.attention as attention_package
from bakeoff.reference_engine.attention import triton_backend
from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.attention.triton_backend import TritonAttention
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.engine import batch_invariance, executors, graph_execution
from bakeoff.reference_engine.engine.executors import build_executor
from bakeoff.reference_engine.engine.graph_execution import GraphExecutor
from bakeoff.reference_engine.engine.resolution import resolve_config
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.kernels import cpu, invariant_products, paged_attention
from bakeoff.reference_engine.kernels.invariant_products import multiply_invariantly
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.block_table import EVERYTHING, Visible, block_list
from bakeoff.reference_engine.kv_cache.layout import CacheLayout, LayerLayout
from bakeoff.reference_engine.kv_cache.quantised import store_maker
from bakeoff.reference_engine.kv_cache.storage import allocate_storage
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.models import experts
from bakeoff.reference_engine.models.execution import Batch
from tests.reference_engine.models.tiny_families import VOCAB_SIZE, engine_config, make_family
from tests.selection import sampled

CPU = torch.device("cpu")
SIZE = 4  # tokens of a block


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Small tiles, so that few tokens fill several and the interpreter has less to do."""
    monkeypatch.setattr(triton_backend, "_attend_dense", None)  # whose bits depend on how a prompt is cut
    monkeypatch.setattr(triton_backend, "LONG_CHUNK", 4)
    monkeypatch.setattr(paged_attention, "_MAX_KEYS", 16)
    monkeypatch.setattr(paged_attention, "_INVARIANT_ROWS", 16)
    monkeypatch.setattr(invariant_products, "_TILE_ROWS", 32)
    monkeypatch.setattr(graph_execution, "_SMALL_SIZES", (1,))
    monkeypatch.setattr(graph_execution, "_DECODE_STEP", 2)
    monkeypatch.setattr(graph_execution, "_MIXED_SIZES", (2, 16))


@pytest.fixture(autouse=True)
def _sums_in_float64(monkeypatch):
    """The interpreter multiplies with NumPy, where the order of a row's float32 sums depends on its place in a tile."""

    def create_dot(_, left, right, sums, *__):
        wide = left.data.astype(np.float64) @ right.data.astype(np.float64)
        return interpreter.TensorHandle(wide.astype(sums.data.dtype) + sums.data, sums.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 128), (70, 300)])
def test_rows_of_products_do_not_depend_on_how_many_there_are(dtype, outputs, inputs):
    weight, rows, bias = (torch.randn(shape).to(dtype) for shape in ((outputs, inputs), (90, inputs), (outputs,)))
    whole = multiply_invariantly(rows, weight, bias, torch.float32)
    exact = rows.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(whole.double(), exact, atol=1e-4, rtol=1e-4)
    for first, count in ((0, 1), (89, 1), (20, 50), (3, 8), (7, 0)):
        part = rows[first : first + count]
        assert torch.equal(multiply_invariantly(part, weight, bias, torch.float32), whole[first : first + count])
    rounded = multiply_invariantly(rows[:1], weight)
    assert rounded.dtype == dtype
    assert torch.equal(rounded, multiply_invariantly(rows[:1], weight, dtype=torch.float32).to(dtype))


@pytest.mark.parametrize(
    ("visible", "kind"), [(EVERYTHING, "auto"), (Visible(20), "int8"), (Visible(5, 17), "fp8")], ids=str
)
def test_attention_to_the_same_tokens_has_the_same_bits(visible, kind):
    """Decodes, chunks of any length and whole sequences, beside other sequences."""
    torch.manual_seed(1)
    layout = CacheLayout((LayerLayout(1, 16, 16, visible),))
    storage = allocate_storage(
        layout, num_blocks=[40], block_size=SIZE, dtype=torch.float32, device=CPU, make_store=store_maker(kind)
    )
    attention = TritonAttention(storage, batch_invariant=True)
    blocks = torch.randperm(40).tolist()
    table, other = block_list(blocks[:15]), block_list(blocks[15:30])
    query, key, value = torch.randn(50, 5, 16).split([3, 1, 1], dim=1)

    def attended(*shape):
        """The output of the first span, whose tokens have rows of their own; the other sequence's rows are random."""
        tables = [table, *[other] * (len(shape) - 1)]
        spans = [Span([blocks], *part) for blocks, part in zip(tables, shape, strict=True)]
        (start, length), more = shape[0], sum(length for _, length in shape[1:])
        parts = [
            torch.cat((part[start : start + length], torch.randn(more, *part.shape[1:])))
            for part in (query, key, value)
        ]
        return attention.begin_step(spans).attend(0, *parts)[:length]

    whole = attended((0, 50))
    assert whole.isfinite().all()
    for start, length in ((49, 1), (34, 11), (16, 1)):
        end = start + length
        assert torch.equal(attended((start, length)), whole[start:end])
        assert torch.equal(attended((start, length), (20, 1), (21, 7)), whole[start:end])


@pytest.fixture
def _as_on_a_gpu(monkeypatch):
    for module in (cpu, attention_package, executors, experts, batch_invariance):
        monkeypatch.setattr(module, "has_triton", lambda device: True)
    monkeypatch.setattr(graph_execution, "CudaCapture", lambda: lambda run: run)


class Sequence:
    """Tokens of which some are computed, and the logits behind each of them."""

    def __init__(self, tokens, tables):
        self.tokens, self.tables = tokens, tables
        self.computed, self.logits = 0, {}


@torch.inference_mode()
def compute(executor, *parts):
    """A step of (sequence, number of tokens) pairs; decodes come first, as in an engine's steps."""
    parts = sorted(parts, key=lambda part: part[1] > 1)
    spans = [Span(sequence.tables, sequence.computed, count) for sequence, count in parts]
    places = [
        (sequence, place) for sequence, count in parts for place in range(sequence.computed, sequence.computed + count)
    ]
    tokens = [sequence.tokens[place] for sequence, place in places]
    positions = [place for _, place in places]
    logits = executor.execute(Batch(BlockCopies(), spans, tokens, positions, list(range(len(places)))))
    for (sequence, place), row in zip(places, logits.clone(), strict=True):
        sequence.logits[place] = row
    for sequence, count in parts:
        sequence.computed += count


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize(
    ("name", "changes", "dtype", "kind"),
    sampled(
        [
            ("llama", {"num_hidden_layers": 1}, "float16", "int8"),
            (
                "qwen3, biases and windows",
                {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
                "float32",
                "auto",
            ),
            ("gemma3", {"num_hidden_layers": 2, "sliding_window_pattern": 2}, "float16", "auto"),
            ("mixtral", {"num_hidden_layers": 1}, "float32", "auto"),
        ],
        ["llama", "mixtral"],
        ["llama", "qwen3", "gemma3", "mixtral"],
    ),
)
def test_logits_of_a_sequence_have_the_same_bits_in_any_batch(name, changes, dtype, kind, tmp_path, save_checkpoint):
    """Computed alone and at once, or beside others, in pieces, on blocks that another sequence computed."""
    checkpoint = open_checkpoint(save_checkpoint(tmp_path, make_family(name, **changes)))
    settings = {"dtype": dtype, "block_size": SIZE, "num_blocks": 100, "max_num_seqs": 2, "max_model_len": 96}
    config = engine_config(checkpoint.path, batch_invariant=True, kv_cache_dtype=kind, **settings)
    executor = build_executor(resolve_config(config, checkpoint.config), checkpoint)
    assert isinstance(executor, GraphExecutor)
    rng = random.Random(4)
    spare = [rng.sample(range(count), count) for count in executor.storage.padding_blocks]  # of each group

    def tables(length):
        return [block_list(blocks.pop() for _ in range(-(-length // SIZE))) for blocks in spare]

    first, second = ([rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (34, 4))
    second = first[: 2 * SIZE] + second
    alone = [Sequence(tokens, tables(len(tokens))) for tokens in (first, second)]
    for sequence in alone:
        compute(executor, (sequence, len(sequence.tokens)))

    leader, follower = Sequence(first, tables(len(first))), Sequence(second, tables(len(second)))
    compute(executor, (leader, 2 * SIZE + 1))
    for table, leader_table in zip(follower.tables, leader.tables, strict=True):
        table[:2] = leader_table[:2]
    follower.computed = 2 * SIZE
    for lengths in ((15, 2), (1, 1), (9, 1)):
        compute(executor, *zip((leader, follower), lengths, strict=True))
    for sequence, expected in zip((leader, follower), alone, strict=True):
        assert sequence.computed == len(sequence.tokens)
        assert all(torch.equal(row, expected.logits[place]) for place, row in sequence.logits.items())


def test_what_depends_on_the_batch_is_refused_with_what_to_do(checkpoint_dir):
    checkpoint = open_checkpoint(checkpoint_dir)
    config = engine_config(checkpoint_dir, batch_invariant=True, enable_prefix_caching=False)
    with pytest.raises(ConfigError, match="use --device cuda or drop it"):
        resolve_config(config, checkpoint.config)
    for name, value in (
        ("tensor_parallel_size", 2),
        ("kv_cache_dtype", "int4"),
        ("quantization", "stored"),
    ):
        with pytest.raises(ConfigError, match=f"--batch-invariant .*--{name.replace('_', '-')}"):
            dataclasses.replace(config, **{name: value})


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_models_without_an_attention_kernel_are_refused(tmp_path, save_checkpoint):
    checkpoint = open_checkpoint(save_checkpoint(tmp_path, make_family("deepseek_v2", num_hidden_layers=1)))
    with pytest.raises(ConfigError, match="no attention kernel for this model's heads"):
        resolve_config(EngineConfig(model=str(checkpoint.path), batch_invariant=True), checkpoint.config)
