"""The GPU path on the CPU: Triton's interpreter runs the kernels, and a step that is captured simply runs again.

The interpreter multiplies bfloat16 as if it were integers (Triton 3.7), so `dot` is replaced here.
"""

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import silu
from triton.runtime import interpreter

from bakeoff.reference_engine.attention import triton_backend
from bakeoff.reference_engine.attention.base import Span, slot_mapping
from bakeoff.reference_engine.attention.span_arrays import SpanArrays, listed_parts
from bakeoff.reference_engine.attention.triton_backend import TritonAttention, suits_triton
from bakeoff.reference_engine.errors import EngineBugError
from bakeoff.reference_engine.kernels import cache_codes, paged_attention, row_codes, small_products
from bakeoff.reference_engine.kernels.cpu import TorchKernels, best_kernels
from bakeoff.reference_engine.kernels.cuda import CudaKernels, replace_pending
from bakeoff.reference_engine.kernels.invariant_products import multiply_invariantly
from bakeoff.reference_engine.kernels.native import has_triton
from bakeoff.reference_engine.kernels.peer_sums import Exchange, epochs_needed, memory_bytes, sum_over_ranks
from bakeoff.reference_engine.kernels.row_codes import scaled_codes
from bakeoff.reference_engine.kernels.scoring import PLAIN, Scoring
from bakeoff.reference_engine.kv_cache.block_table import EVERYTHING, RELEASED, Visible, block_list
from bakeoff.reference_engine.kv_cache.layout import CacheLayout, LayerLayout
from bakeoff.reference_engine.kv_cache.quantised import store_maker
from bakeoff.reference_engine.kv_cache.storage import allocate_storage
from bakeoff.reference_engine.models import linear
from tests.reference_engine.naive_attention import NaiveAttention
from tests.selection import sampled

CPU = torch.device("cpu")
KERNELS = CudaKernels()
BLOCKS = 120
WIDTHS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
ROUNDING = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def assert_close(actual, exact):
    bound = ROUNDING[actual.dtype]
    torch.testing.assert_close(actual.double(), exact, atol=bound, rtol=bound)


@pytest.fixture(autouse=True)
def _bfloat16_products(monkeypatch):
    multiply = interpreter.InterpreterBuilder.create_dot

    def wide(operand):
        return interpreter.TensorHandle((operand.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(builder, left, right, sums, *how):
        if left.dtype == tl.bfloat16:
            left, right = wide(left), wide(right)
        return multiply(builder, left, right, sums, *how)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch):
    """Each program takes milliseconds here."""
    monkeypatch.setattr(paged_attention, "_PROGRAMS", 6)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_sums_over_ranks_add_what_arrives_and_send_their_own(dtype):
    """One rank of three; the test puts into its memory what the others would write."""
    memories = [torch.zeros(memory_bytes(3), dtype=torch.uint8) for _ in range(3)]
    addresses = torch.tensor([memory.data_ptr() for memory in memories])
    exchange = Exchange(1, 3, addresses, torch.zeros(epochs_needed(), dtype=torch.int32), torch.zeros(1).int())
    flags = [memory[-4 * 3 * epochs_needed() :].view(torch.int32).view(3, -1) for memory in memories]
    blocks = epochs_needed()
    inboxes = [memory[: -4 * 3 * blocks].view(dtype).view(2, 3, blocks, -1)[..., :1024] for memory in memories]
    for epoch in (1, 2, 3):
        sent = torch.randn(3, 5, 300).to(dtype)
        padded = torch.zeros(3, 2048, dtype=dtype)
        padded[:, :1500] = sent.flatten(1)
        for peer in (0, 2):
            inboxes[1][epoch % 2, peer, :2] = padded[peer].view(2, 1024)
            flags[1][peer, :2] = epoch
        rows = sent[1].clone()
        assert sum_over_ranks(rows, exchange) is rows
        assert_close(rows, sent.double().sum(0))
        for peer in (0, 2):
            assert torch.equal(inboxes[peer][epoch % 2, 1, :2].flatten(), padded[1])
            assert flags[peer].tolist()[1][:3] == [epoch, epoch, 0]
    assert not torch.cat([flags[1][1], flags[0][0], flags[2][2]]).any()


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize(("rows", "dim", "adds"), [(1, 45, True), (3, 576, False), (2, 1500, True), (0, 32, True)])
def test_norms_and_activations_equal_float64(dtype, rows, dim, adds):
    residual, x, weight = (torch.randn(shape).to(dtype) for shape in ((rows, dim), (rows, dim), (dim,)))
    total = residual.double() + x.double() if adds else residual.double()
    normed = KERNELS.add_rms_norm(residual, x if adds else None, weight.float(), 1e-5)
    assert_close(residual, total)
    rounded = residual.double()
    assert_close(normed, rounded / (rounded.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double())
    gates = 2 * torch.randn(rows, 2 * dim).to(dtype)
    assert_close(KERNELS.silu_mul(gates), silu(gates[:, :dim].double()) * gates[:, dim:].double())


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize(("heads", "dim"), [(6, 16), (3, 80)])
def test_rotation_turns_parts_of_longer_rows_in_place(dtype, heads, dim):
    rows = torch.randn(5, heads + 3, dim).to(dtype)
    cos, signed_sin = torch.randn(5, 1, dim).to(dtype), torch.randn(5, 1, dim).to(dtype)
    wide = rows[:, :heads].double()
    exact = wide * cos.double() + wide.roll(dim // 2, -1) * signed_sin.double()
    untouched = rows[:, heads:].clone()
    assert KERNELS.apply_rope(rows[:, :heads], cos, signed_sin).data_ptr() == rows.data_ptr()
    assert_close(rows[:, :heads], exact)
    assert torch.equal(rows[:, heads:], untouched)


@pytest.mark.parametrize("dim", [1, 5, 4096, 4097, 9000])
def test_the_first_of_the_largest_is_found(dim):
    rows = torch.randn(6, dim + 3)[:, :dim]  # no vocabulary but a part of it
    rows[1] = -rows[1].abs() - 1
    rows[2] = 0
    rows[3, 0], rows[3, -1] = float("-inf"), float("nan")
    rows[4] = float("-inf")
    rows[5, dim // 2 :] = 7
    indices = KERNELS.argmax(rows)
    assert indices.dtype == torch.int64
    assert torch.equal(indices, TorchKernels().argmax(rows))


def test_pending_tokens_come_from_the_step_before():
    token_ids = torch.tensor([3, -1, 5, -3])
    replace_pending(token_ids, torch.tensor([10, 11, 12]))
    assert token_ids.tolist() == [3, 10, 5, 12]


@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "biased", "dtype"),
    [
        (1, 64, 512, True, None),
        (1, 64, 3072, False, torch.float32),
        (1, 64, 8704, True, None),
        (5, 128, 1024, False, None),
        (20, 64, 1024, True, torch.float32),
    ],
)
def test_small_products_equal_float64_whether_split_or_not(monkeypatch, rows, outputs, inputs, biased, dtype):
    monkeypatch.setattr(linear, "has_triton", lambda device: True)
    weight, x = torch.randn(outputs, inputs).half() / 20, torch.randn(rows, 2 * inputs).half()[:, :inputs]
    bias = torch.randn(outputs).half() if biased else None
    exact = x.double() @ weight.double().T + (bias.double() if biased else 0)
    chosen = linear.make_linear(weight, bias)
    assert type(chosen) is linear.SmallProductLinear
    for programs in (1, 100):  # so that there are enough without splits, or not
        monkeypatch.setattr(small_products, "_PROGRAMS", programs)
        products = chosen(x) if dtype is None else small_products.multiply(x, weight, bias, dtype)
        assert products.dtype == (dtype or torch.float16)
        assert_close(products, exact)
    more = torch.randn(small_products.MAX_ROWS + 1, inputs).half()
    assert torch.equal(chosen(more), linear.PlainLinear(weight, bias)(more))
    assert type(linear.make_linear(weight[:60], None)) is linear.PlainLinear


STRIDED = torch.ones(512, 64).half().T


@pytest.mark.parametrize(
    "launch",
    [
        lambda: small_products.multiply(torch.ones(1, 512).half(), STRIDED),
        lambda: small_products.multiply(STRIDED, torch.ones(64, 512).half()),
        lambda: small_products.multiply(torch.ones(1, 512), torch.ones(64, 512).half()),
        lambda: multiply_invariantly(torch.ones(1, 512).half(), STRIDED),
        lambda: scaled_codes(STRIDED),
        lambda: KERNELS.silu_mul(STRIDED),
        lambda: KERNELS.argmax(STRIDED),
        lambda: KERNELS.add_rms_norm(STRIDED, None, torch.ones(512), 1e-5),
        lambda: KERNELS.add_rms_norm(torch.ones(2, 8), torch.ones(2, 8).half(), torch.ones(8), 1e-5),
        lambda: KERNELS.apply_rope(torch.ones(2, 16, 4).mT, torch.ones(2, 1, 16), torch.ones(2, 1, 16)),
        lambda: replace_pending(torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)),
    ],
)
def test_kernels_refuse_operands_that_they_would_misread(launch):
    with pytest.raises(EngineBugError, match=r"a kernel for .* was given"):
        launch()


spans_shape = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=6)


@given(shape=spans_shape, tokens=st.integers(1, 5))
def test_arrays_hold_what_the_spans_describe(shape, tokens):
    spans = [
        Span([[9 * i + j for j in range(14)], block_list(range(i, 20))], *start_and_length)
        for i, start_and_length in enumerate(shape)
    ]
    arrays = SpanArrays(spans, 2, 4)
    for group in (0, 1):
        assert arrays.slots(group).tolist() == slot_mapping(spans, 4, group)
        covered = []
        for row, count, position, table in arrays.tiles(group, slice(None), tokens).tolist():
            assert 1 <= count <= tokens
            (span,) = [i for i, first in enumerate(arrays.rows) if first <= row < first + arrays.lengths[i]]
            assert position - row == spans[span].start - arrays.rows[span]
            blocks = spans[span].tables[group]
            assert arrays.tables[table : table + len(blocks)].tolist() == list(blocks)
            covered += range(row, row + count)
        assert covered == list(range(sum(length for _, length in shape)))


def spans_of(shape, layout, size):
    """Spans over scattered blocks; those that have left a group's window are given back."""
    spare = [torch.randperm(BLOCKS).tolist() for _ in layout.groups]
    spans = []
    for start, length in shape:
        tables = []
        for visible, blocks in zip(layout.groups, spare, strict=True):
            table = block_list(blocks.pop() for _ in range(-(-(start + length) // size)))
            for index in visible.out_of_window_blocks(start, size):
                table[index] = RELEASED
            tables.append(table)
        spans.append(Span(tables, start, length))
    return spans


def storage_of(layout, size, dtype, kind="auto"):
    blocks, make_store = [BLOCKS] * len(layout.groups), store_maker(kind)
    storage = allocate_storage(
        layout, num_blocks=blocks, block_size=size, dtype=dtype, device=CPU, make_store=make_store
    )
    return storage, [part for store in storage.stores for part in store.parts]


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch):
    """Decodes behind a few tokens are split, as those behind hundreds are on a GPU."""
    monkeypatch.setattr(paged_attention, "_LEAST_KEYS", 16)


def compare(layout, shape, size, dtype, group, scoring=PLAIN, kind="auto", *, looks_apart=False):
    """All layers of one step against float32 attention, one token and head at a time."""
    torch.manual_seed(len(shape))
    storage, parts = storage_of(layout, size, dtype, kind)
    exact_storage, exact_parts = storage_of(layout, size, torch.float32, kind)
    for store, layer in zip(storage.stores, layout.layers, strict=True):
        history = torch.randn(2, BLOCKS * size, layer.num_kv_heads, layer.key_dim).to(dtype)
        store.write(torch.arange(BLOCKS * size), *history)
    for part, twin in zip(parts, exact_parts, strict=True):
        twin.copy_(part)
    spans = spans_of(shape, layout, size)
    step, twin = TritonAttention(storage).begin_step(spans), NaiveAttention(exact_storage).begin_step(spans)
    rows, kv_heads, dim = sum(length for _, length in shape), layout.layers[0].num_kv_heads, layout.layers[0].key_dim
    for index, layer in enumerate(layout.layers):
        heads = torch.randn(rows, kv_heads * (group + 2), dim).to(dtype)
        query, key, value = heads.split([kv_heads * group, kv_heads, kv_heads], dim=1)
        if layer.shares is not None:
            key = value = None
        new = (part if part is None else part.float() for part in (key, value))
        apart = torch.randn(query.shape).to(dtype) if looks_apart else None
        exact = twin.attend(index, query.float(), *new, scoring, towards_sinks=None if apart is None else apart.float())
        attended = step.attend(index, query, key, value, scoring, towards_sinks=apart)
        bound = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}[dtype]
        torch.testing.assert_close(attended.float(), exact, atol=bound, rtol=bound)
    assert all(torch.equal(part.float(), twin.float()) for part, twin in zip(parts, exact_parts, strict=True))


@pytest.mark.parametrize(
    ("shape", "size", "kv_heads", "group", "dim", "dtype"),
    [
        ([(70, 1)], 16, 1, 4, 128, torch.float32),
        ([(0, 1), (200, 1), (13, 1)], 4, 2, 3, 64, torch.float16),
        ([(33, 1)] * 9, 16, 2, 1, 16, torch.float32),
        ([(5, 1), (0, 40), (17, 20), (30, 1)], 4, 1, 7, 80, torch.float32),
        ([(0, 33), (64, 2)], 1, 1, 20, 96, torch.float16),
        ([(10, 1), (3, 70)], 16, 1, 2, 256, torch.float16),
    ],
)
def test_steps_equal_float32_attention(shape, size, kv_heads, group, dim, dtype):
    layout = CacheLayout((LayerLayout(kv_heads, dim, dim),))
    compare(layout, shape, size, dtype, group, Scoring(0.3) if dim == 64 else PLAIN)


@pytest.mark.parametrize("visible", [EVERYTHING, Visible(20, 5)], ids=str)
@pytest.mark.parametrize(("soft_cap", "has_sinks"), [(2.0, False), (None, True), (3.0, True)])
def test_bounded_scores_and_learned_sinks_equal_float32_attention(monkeypatch, visible, soft_cap, has_sinks):
    """However many parts the keys of a decode are split into, and however long a chunk is."""
    monkeypatch.setattr(triton_backend, "LONG_CHUNK", 10)
    scoring = Scoring(soft_cap=soft_cap, sinks=2 * torch.randn(6) if has_sinks else None)
    layout = CacheLayout((LayerLayout(2, 32, 32, visible),))
    for shape in ([(200, 1), (13, 1)], [(40, 1)] * 9, [(5, 1), (0, 12), (17, 7)]):
        compare(layout, shape, 4, torch.float32, 3, scoring)


@pytest.mark.parametrize("visible", [Visible(20, 5), Visible(70, 66), EVERYTHING], ids=str)
def test_queries_of_their_own_towards_sinks_equal_float32_attention(visible):
    layout = CacheLayout((LayerLayout(2, 32, 32, visible),))
    for shape in ([(200, 1), (13, 1), (2, 1)], [(40, 1)] * 9, [(5, 1), (0, 12), (80, 7)]):
        compare(layout, shape, 4, torch.float32, 3, looks_apart=True)


@pytest.mark.parametrize("visible", [Visible(9), Visible(20, 5), Visible(70, 66)], ids=str)
def test_layers_with_windows_and_of_other_layers_equal_float32_attention(visible):
    layers = (LayerLayout(2, 32, 32, visible), LayerLayout(2, 32, 32), LayerLayout(2, 32, 32, visible, shares=0))
    compare(CacheLayout(layers), [(90, 1), (4, 1), (0, 30), (71, 12)], 4, torch.float32, 3)


CACHES = [
    ("int8", torch.float32, 24), ("fp8", torch.float16, 80), ("int8", torch.bfloat16, 40),
    ("fp8", torch.float32, 16), ("int8", torch.float16, 64), ("fp8", torch.bfloat16, 16),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "dtype", "dim"), sampled(CACHES, CACHES[:3]))
def test_quantised_caches_equal_float32_attention_to_the_same_codes(monkeypatch, kind, dtype, dim):
    """New tokens among them, however long their chunk is."""
    monkeypatch.setattr(triton_backend, "LONG_CHUNK", 10)
    visible = Visible(20, 5)
    layers = (LayerLayout(2, dim, dim, visible), LayerLayout(1, dim, dim), LayerLayout(2, dim, dim, visible, shares=0))
    compare(CacheLayout(layers[::2]), [(90, 1), (4, 1), (0, 12), (31, 7)], 4, dtype, 3, kind=kind)
    compare(CacheLayout(layers[1:2]), [(70, 1), (0, 12), (31, 5)], 4, dtype, 2, kind=kind)
    compare(CacheLayout(layers[:1]), [(90, 1), (31, 7)], 4, dtype, 3, kind=kind, looks_apart=True)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_small_values_of_long_chunks_keep_their_bits_in_float16(monkeypatch, kind):
    monkeypatch.setattr(triton_backend, "LONG_CHUNK", 10)
    layout = CacheLayout((LayerLayout(2, 32, 32),))
    storage, exact_storage = (storage_of(layout, 4, dtype, kind)[0] for dtype in (torch.float16, torch.float32))
    query, key, value = torch.randn(12, 6, 32).half().split(2, dim=1)
    value = value * 1e-4
    span = Span([block_list(range(3))], 0, 12)
    attended = TritonAttention(storage).begin_step([span]).attend(0, query, key, value)
    exact = NaiveAttention(exact_storage).begin_step([span]).attend(0, query.float(), key.float(), value.float())
    assert (attended.float() - exact).norm() < 3e-3 * exact.norm()


@triton.jit
def _decode(numbers, codes, ENCODING: tl.constexpr, IS_HALVES: tl.constexpr, dtype: tl.constexpr):  # noqa: N803
    if IS_HALVES:
        decoded = tl.interleave(*cache_codes.decoded_halves(tl.load(codes + tl.arange(0, 128)), ENCODING, dtype, False))
    else:
        decoded = cache_codes.decoded(tl.load(codes + tl.arange(0, 256)), ENCODING, dtype, False)
    tl.store(numbers + tl.arange(0, 256), decoded)


@pytest.mark.parametrize("is_halves", [False, True])
@pytest.mark.parametrize(
    ("dtype", "e4m3_factor"),
    [(torch.float32, 2.0**8), (torch.float16, 2.0**8), (torch.bfloat16, 2.0**120)],
    ids=str,
)
@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_each_code_is_decoded_to_its_number(kind, dtype, e4m3_factor, is_halves):
    codes, numbers = torch.arange(256, dtype=torch.uint8), torch.empty(256, dtype=dtype)
    exact = codes.view(kind).double()
    codes = codes.view(torch.int8) if kind == torch.int8 else codes
    encoding = cache_codes.encoding_of(codes)
    _decode[(1,)](numbers, codes.view(torch.uint16) if is_halves else codes, encoding, is_halves, WIDTHS[dtype])
    decoded = numbers.double() * (1 if kind == torch.int8 else e4m3_factor)
    is_number = exact.isfinite()  # nothing is encoded to the two other codes
    assert is_number.sum() >= 254
    assert torch.equal(decoded[is_number], exact[is_number])


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_tokens_are_stored_as_the_codes_that_torch_makes(kind, dtype):
    """Zeros, rows and elements of all sizes, and such that lie between two codes."""
    torch.manual_seed(2)
    layout = CacheLayout((LayerLayout(3, 40, 40),))
    (storage, parts), (exact_storage, exact_parts) = (storage_of(layout, 4, dtype, kind) for _ in range(2))
    rows = torch.randn(8, 9, 40) * torch.logspace(-8, 4, 8)[:, None, None]
    rows[2] = 0
    rows[3, 0] *= 1e-4
    rows[4] *= torch.logspace(-6, 0, 40)
    rows[5] = torch.arange(-20, 20) * 127 / 40
    key, value, _ = rows.to(dtype).split(3, dim=1)
    span = Span([[3, 1]], 0, 8)
    TritonAttention(storage).begin_step([span]).attend(0, key, key, value)
    exact_storage.stores[0].write(torch.tensor(slot_mapping([span], 4)), key, value)
    assert all(torch.equal(part, twin) for part, twin in zip(parts, exact_parts, strict=True))


def test_long_chunks_go_to_torch_but_where_a_window_hides_some_or_the_keys_are_another_layers(monkeypatch):
    monkeypatch.setattr(triton_backend, "LONG_CHUNK", 30)
    monkeypatch.setattr(triton_backend, "_LENGTH_STEP", 16)
    lengths = []
    original = triton_backend._attend_dense

    def dense(fresh, *rest):
        lengths.append(len(fresh[0]))
        return original(fresh, *rest)

    monkeypatch.setattr(triton_backend, "_attend_dense", dense)
    layers = (LayerLayout(1, 32, 32), LayerLayout(1, 32, 32, Visible(35)), LayerLayout(1, 32, 32, shares=0))
    shape = [(9, 1), (0, 40), (0, 33), (0, 33), (0, 29), (5, 31), (90, 31)]
    compare(CacheLayout(layers), shape, 4, torch.float16, 2)
    assert lengths == [40, 66, 31, 66]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("width", [45, 64, 300])
def test_codes_behind_norm_and_activation_are_those_of_separate_passes(width, dtype):
    torch.manual_seed(width)
    kernels, weight = CudaKernels(), torch.randn(width)
    residual, x = (torch.randn(5, width).to(dtype) for _ in range(2))
    for added in (x, None):
        once, twice = residual.clone(), residual.clone()
        fused = row_codes.add_rms_norm_codes(once, added, weight, 1e-5)
        apart = scaled_codes(kernels.add_rms_norm(twice, added, weight, 1e-5))
        assert torch.equal(once, twice)
        assert all(map(torch.equal, map(bits, fused), map(bits, apart)))
    gate_up = torch.randn(5, 2 * width).to(dtype)
    assert all(
        map(
            torch.equal,
            map(bits, row_codes.silu_mul_codes(gate_up)),
            map(bits, scaled_codes(kernels.silu_mul(gate_up))),
        )
    )


def bits(part):
    return part.view(torch.uint8)


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 8, 32, 500])
def test_parts_of_decodes_have_at_most_a_share_and_are_no_more_than_a_graph_has(monkeypatch, kv_heads):
    monkeypatch.undo()
    rng, most = np.random.default_rng(kv_heads), 64 if kv_heads < 3 else 32
    for tokens in (0, 1, 5, 40, 300):
        for longest in (20, 3000, 40_000, 1_000_000):
            keys = rng.integers(1, longest, tokens)
            splits = paged_attention.decode_splits(keys, kv_heads)
            assert ((splits >= 1) & (splits <= most)).all()
            assert (splits - 1).sum() <= paged_attention.most_extra_parts(kv_heads, tokens)
            share = keys.sum() * kv_heads / 396
            in_tiles = 64 * max(1, math.ceil(share / 64))
            bound = in_tiles if (splits > 1).any() else 1.6 * in_tiles
            assert (keys / splits <= bound)[splits < most].all()
            assert (keys[splits > 1] > in_tiles).all()


@pytest.mark.parametrize("kv_heads", [1, 2, 8, 32])
def test_parts_of_chunks_are_no_more_than_a_graph_has(kv_heads):
    rng = np.random.default_rng(kv_heads)
    bounded = 0
    for _ in range(200):
        tiles = int(rng.integers(1, 12))
        keys, tokens = rng.integers(1, 60_000, tiles), rng.integers(1, 129, tiles)
        splits = paged_attention.chunk_splits(keys, tokens, kv_heads, 132)
        assert ((splits >= 1) & (splits <= (64 if kv_heads < 3 else 32))).all()
        extra, most = (splits - 1).sum(), paged_attention.most_extra_parts(kv_heads, tiles)
        assert extra <= most
        bounded += extra > most / 2
    assert bounded, "the bound was never near"


def test_the_longest_parts_come_first_and_each_has_a_place_of_its_own():
    """Tiles of three, one and two tokens, whose keys have two, one and three parts."""
    tiles = np.array([[0, 3, 97, 0], [3, 1, 59, 7], [4, 2, 298, 9]], np.int32)
    parts, rows, num_places = listed_parts(tiles, np.array([100, 60, 300]), np.array([2, 1, 3]), 3)
    assert parts.tolist() == [
        *([4, 2, 298, 9, number, 3, 0, 0] for number in range(3)),
        [3, 1, 59, 7, 0, 1, 9, 0],
        *([0, 3, 97, 0, number, 2, 9, 0] for number in range(2)),
    ]
    assert rows.tolist() == [[4, 0, 3, 0], [5, 1, 3, 0], [0, 9, 2, 0], [1, 10, 2, 0], [2, 11, 2, 0]]
    assert num_places == 3 * 3 + 3 * 2


def test_extra_parts_of_a_group_are_bounded_by_its_layer_with_the_fewest():
    layout = CacheLayout((LayerLayout(8, 16, 16), LayerLayout(2, 16, 16)))
    storage, _ = storage_of(layout, 4, torch.float32)
    attention = TritonAttention(storage)
    spans = [Span([list(range(50))], 190, 1), Span([[60]], 0, 1)]
    (work,) = attention.decode_works(attention.arrays(spans))
    assert len(work.parts) - 2 <= attention.most_extra_parts(0, 2) == paged_attention.most_extra_parts(8, 2)


@pytest.mark.parametrize(
    ("keys", "splits"),
    [
        ([256], [4]),  # one tile of keys for each program
        ([32_768], [32]),
        ([300] * 8, [5] * 8),
        ([1000] * 32, [1] * 32),  # even rows end together
        ([1000] * 256, [1] * 256),
        ([1000] * 31 + [4000], [2] * 31 + [6]),
    ],
)
def test_keys_of_decodes_are_split_where_others_would_wait_for_them(monkeypatch, keys, splits):
    monkeypatch.undo()
    assert paged_attention.decode_splits(np.array(keys), 8).tolist() == splits


@pytest.mark.parametrize(
    ("starts", "tokens", "at_a_time", "splits"),
    [
        ([16_384], 16, 264, [32]),  # as many as a program can combine
        ([16_384], 64, 264, [8] * 4),
        ([16_384], 256, 132, [2] * 8),  # 128 programs, one round
        ([1024], 512, 132, [1] * 16),
        ([0], 1000, 132, [1] * 32),  # the programs fill the GPU by themselves
        ([8192, 16_384], 48, 132, [3, 3, 5, 5]),  # 128 programs again
        ([], 32, 132, []),
    ],
)
def test_keys_of_chunks_are_split_where_too_few_programs_would_have_too_much_to_do(
    monkeypatch, starts, tokens, at_a_time, splits
):
    """Those of one chunk are the fastest tried on an H200, with 8 key/value heads and 4 query heads for each."""
    monkeypatch.undo()
    per_tile = 16 if at_a_time == 264 else 32
    tiles = [
        (start + min(tokens, first + per_tile), min(per_tile, tokens - first))
        for start in starts
        for first in range(0, tokens, per_tile)
    ]
    keys, counts = np.array(tiles, np.int64).reshape(-1, 2).T
    chosen = paged_attention.chunk_splits(keys, counts, 8, at_a_time)
    assert chosen.tolist() == splits
    assert (chosen - 1).sum() <= paged_attention.most_extra_parts(8, len(keys))


def attention_with_weights(query, key, value, *, is_causal, scale):
    """What cuDNN's kernel returns."""
    key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], 1).double() for part in (key, value))
    scores = query.double() @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))
    weights = scores.logsumexp(-1, keepdim=True)
    return (scores.softmax(-1) @ value).to(query.dtype), weights.float()


@pytest.mark.parametrize("past", [0, 7, 32, 137])
def test_what_long_chunks_see_is_attended_in_pieces_of_few_lengths(monkeypatch, past):
    """Rows behind a sequence's end hold NaN, as memory that nobody wrote may."""
    lengths = set()

    def attend(query, key, value, **options):
        lengths.add(key.shape[2])
        return attention_with_weights(query, key, value, **options)

    for name, value in {
        "LONG_CHUNK": 30, "_LENGTH_STEP": 16, "_PAST_STEP": 16, "_MOST_PIECE": 64, "_cudnn_attention": attend,
        "has_cudnn_attention": lambda storage: True,
    }.items():  # fmt: skip
        monkeypatch.setattr(triton_backend, name, value)
    compare(CacheLayout((LayerLayout(2, 16, 16),)), [(50, 1), (past, 31), (3, 4)], 4, torch.float16, 3)
    assert lengths <= {16, 32, 48, 64}
    assert bool(lengths) is (past >= 16)


@pytest.mark.parametrize("kind", ["auto", "int8", "fp8"])
def test_what_nobody_wrote_does_not_reach_a_result(kind):
    """Blocks hold NaN: what another sequence left, or never written memory."""
    layout = CacheLayout((LayerLayout(1, 16, 16, Visible(12, 2)), LayerLayout(1, 16, 16)))
    storage, parts = storage_of(layout, 8, torch.float32, kind)
    for part in parts:
        part.fill_(float("nan") if part.is_floating_point() else 0x7F)
    whole = spans_of([(0, 29), (0, 6)], layout, 8)
    for shape in ([(0, 21), (0, 3)], [(21, 1), (3, 1)], [(22, 7), (4, 2)]):
        spans = [Span(span.tables, *start_and_length) for span, start_and_length in zip(whole, shape, strict=True)]
        step = TritonAttention(storage).begin_step(spans)
        rows = torch.randn(sum(length for _, length in shape), 4, 16)
        for layer in (0, 1):
            assert step.attend(layer, rows[:, :2], rows[:, 2:3], rows[:, 3:]).isfinite().all()


def test_only_what_the_kernels_read_is_given_to_them():
    def stored(*layers, kind="auto"):
        make_store, layout = store_maker(kind), CacheLayout(layers)
        return allocate_storage(
            layout, num_blocks=[2], block_size=4, dtype=torch.float32, device=CPU, make_store=make_store
        )

    assert suits_triton(stored(LayerLayout(2, 80, 80)))
    assert all(suits_triton(stored(LayerLayout(2, 80, 80), kind=kind)) for kind in ("int8", "fp8"))
    assert not suits_triton(stored(LayerLayout(2, 80, 80), kind="int4"))
    assert not suits_triton(stored(LayerLayout(1, 72, 64, value_in_key=True)))
    assert not suits_triton(stored(LayerLayout(2, 512, 512)))
    assert not suits_triton(stored(LayerLayout(2, 12, 12)))
    assert not has_triton(CPU)
    assert not isinstance(best_kernels(CPU, torch.float32), CudaKernels)
