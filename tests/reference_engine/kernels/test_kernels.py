"""The compiled operations against their twins in stock torch. CI has a compiler, so CI skips none of these tests."""

import logging
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.attention.native_backend import NativeAttention
from bakeoff.reference_engine.kernels import native
from bakeoff.reference_engine.kernels.cpu import TorchKernels, best_kernels, kernel_kind, native_kernels
from bakeoff.reference_engine.kernels.gemm import TiledLinear, can_tile
from bakeoff.reference_engine.kernels.scoring import PLAIN, Scoring
from bakeoff.reference_engine.kv_cache.block_table import EVERYTHING, RELEASED, Visible
from bakeoff.reference_engine.kv_cache.layout import CacheLayout, LayerLayout
from bakeoff.reference_engine.kv_cache.quantised import store_maker
from bakeoff.reference_engine.kv_cache.storage import allocate_storage
from bakeoff.reference_engine.models.linear import PlainLinear
from bakeoff.reference_engine.models.weights import Weights
from tests.reference_engine.naive_attention import NaiveAttention

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
BLOCKS = [4, 16]  # the kernel reads whole tiles of 16 tokens only where blocks hold them
LENGTH = 290  # of a prompt that is cut


@pytest.fixture(params=DTYPES, ids=str)
def kernels(request):
    compiled = native_kernels(CPU, request.param)
    assert compiled is not None, "there is no C++ compiler here"
    return compiled, request.param


def assert_close(actual, expected):
    bound = 2e-6 if actual.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(actual.float(), expected.float(), atol=bound, rtol=bound)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("dim", [32, 45, 576])
@pytest.mark.parametrize("adds", [False, True])
def test_norms_and_activations_equal_torch(kernels, rows, dim, adds):
    torch.manual_seed(rows + dim)
    compiled, dtype = kernels
    residual, x, weight = (torch.randn(shape).to(dtype) for shape in ((rows, dim), (rows, dim), (dim,)))
    twin_residual = residual.clone()
    actual = compiled.add_rms_norm(residual, x if adds else None, weight, 1e-5)
    expected = TorchKernels().add_rms_norm(twin_residual, x if adds else None, weight, 1e-5)
    assert torch.equal(residual, twin_residual)
    assert_close(actual, expected)
    gates = 4 * torch.randn(rows, 2 * dim).to(dtype)
    assert_close(compiled.silu_mul(gates), TorchKernels().silu_mul(gates))


def test_rotation_turns_parts_of_longer_rows_in_place(kernels):
    compiled, dtype = kernels
    rows = torch.randn(5, 9, 16).to(dtype)
    angles = torch.rand(5, 1, 8) * 6
    cos, sin = (torch.cat((part, part), -1).to(dtype) for part in (angles.cos(), angles.sin()))
    signed = torch.cat((-sin[..., :8], sin[..., 8:]), -1)
    expected = TorchKernels().apply_rope(rows[:, :6], cos, signed)
    untouched = rows[:, 6:].clone()
    assert_close(compiled.apply_rope(rows[:, :6], cos, signed), expected)
    assert_close(rows[:, :6], expected)
    assert torch.equal(rows[:, 6:], untouched)


@pytest.mark.parametrize("dim", [1, 5, 1023, 1024, 1025, 49_152])
def test_the_first_of_the_largest_is_found(kernels, dim):
    compiled, dtype = kernels
    torch.manual_seed(dim)
    rows = torch.randn(6, dim).to(dtype)
    rows[1] = -rows[1].abs() - 1
    rows[2] = 0
    rows[3, 0], rows[3, -1] = float("-inf"), 9
    rows[4] = float("-inf")
    rows[5, dim // 2 :] = 7
    assert torch.equal(compiled.argmax(rows), TorchKernels().argmax(rows))


def attended(backend, layout, block, spans, dtype, heads, seed=0, scoring=PLAIN, *, looks_apart=False):
    torch.manual_seed(seed)
    store = allocate_storage(layout, num_blocks=[300], block_size=block, dtype=dtype, device=CPU)
    for part in store.stores[0].parts:
        part.copy_(torch.randn(part.shape))
    layer = layout.layers[0]
    rows = sum(span.length for span in spans)
    query, key, value = (
        torch.randn(rows, count, dim).to(dtype)
        for count, dim in (
            (heads, layer.key_dim), (layer.num_kv_heads, layer.key_dim), (layer.num_kv_heads, layer.value_dim)
        )
    )  # fmt: skip
    own_value = None if layer.value_in_key else value
    apart = torch.randn(query.shape).to(dtype) if looks_apart else None
    return backend(store).begin_step(spans).attend(0, query, key, own_value, scoring, towards_sinks=apart), store


def spans_of(shape, visible, block):
    order = torch.randperm(300).tolist()
    spans = []
    for blocks, rest, length in sorted(shape, key=lambda span: span[2] > 1):  # decodes first, as the runner has them
        start = blocks * block + rest
        held = [order.pop() for _ in range(-(-(start + length) // block))]
        for index in visible.out_of_window_blocks(start, block):
            held[index] = RELEASED
        spans.append(Span([held], start, length))
    return spans


shapes = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 3), st.sampled_from([1, 1, 1, 5, 23])), min_size=1, max_size=7
)
windows = st.sampled_from([EVERYTHING, Visible(9), Visible(6, 5), Visible(150, 20)])


@given(
    shape=shapes,
    heads=st.sampled_from([(4, 2), (3, 1), (12, 12), (11, 1), (16, 2), (19, 1)]),
    dims=st.sampled_from([(16, 16), (48, 32), (64, 64), (64, 96)]),
    visible=windows,
    block=st.sampled_from(BLOCKS),
    options=st.sampled_from([(None, False), (2.0, False), (None, True), (3.0, True)]),
    looks_apart=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_any_mix_of_decodes_and_chunks_equals_the_naive_twin(
    shape, heads, dims, visible, block, options, looks_apart, dtype, seed
):
    torch.manual_seed(seed)
    soft_cap, has_sinks = options
    scoring = Scoring(soft_cap=soft_cap, sinks=2 * torch.randn(heads[0]) if has_sinks else None)
    spans = spans_of(shape, visible, block)
    layout = CacheLayout((LayerLayout(heads[1], *dims, visible),))
    compiled = native_kernels(CPU, dtype)
    actual, store = attended(
        lambda storage: NativeAttention(storage, compiled), layout, block, spans, dtype, heads[0], seed, scoring,
        looks_apart=looks_apart,
    )  # fmt: skip
    expected, twin = attended(
        NaiveAttention, layout, block, spans, dtype, heads[0], seed, scoring, looks_apart=looks_apart
    )
    assert_close(actual, expected)
    assert all(map(torch.equal, store.stores[0].parts, twin.stores[0].parts))


@given(
    cuts=st.lists(st.integers(1, LENGTH - 1), max_size=5),
    heads=st.sampled_from([(6, 2), (5, 1)]),
    visible=windows,
    block=st.sampled_from(BLOCKS),
    dtype=st.sampled_from(DTYPES),
    cache=st.sampled_from(["auto", "int8", "fp8", "int4"]),
)
def test_no_bit_of_a_token_depends_on_how_its_prompt_is_cut(cuts, heads, visible, block, dtype, cache):
    torch.manual_seed(0)
    layout = CacheLayout((LayerLayout(heads[1], 32, 32, visible),))
    query, key, value = (torch.randn(LENGTH, count, 32).to(dtype) for count in (*heads, heads[1]))
    table = torch.randperm(300)[: -(-LENGTH // block)].tolist()

    def attended_in(pieces):
        store = allocate_storage(
            layout, num_blocks=[300], block_size=block, dtype=dtype, device=CPU, make_store=store_maker(cache)
        )
        backend = NativeAttention(store, native_kernels(CPU, dtype))
        return torch.cat(
            [
                backend.begin_step([Span([table], first, stop - first)]).attend(
                    0, query[first:stop], key[first:stop], value[first:stop]
                )
                for first, stop in pieces
            ]
        )

    ends = [*sorted(set(cuts)), LENGTH]
    whole, cut = attended_in([(0, LENGTH)]), attended_in(zip([0, *ends[:-1]], ends, strict=True))
    assert torch.equal(whole, cut)


@given(
    shape=shapes,
    heads=st.sampled_from([1, 5, 20]),
    block=st.sampled_from(BLOCKS),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_a_latent_cache_equals_the_naive_twin(shape, heads, block, dtype, seed):
    torch.manual_seed(seed)
    layout = CacheLayout((LayerLayout(1, 576, 512, value_in_key=True),))
    spans = spans_of(shape, EVERYTHING, block)
    compiled = native_kernels(CPU, dtype)
    actual, _ = attended(
        lambda storage: NativeAttention(storage, compiled), layout, block, spans, dtype, heads, seed, Scoring(0.1)
    )
    expected, _ = attended(NaiveAttention, layout, block, spans, dtype, heads, seed, Scoring(0.1))
    bound = 2e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(actual, expected, atol=bound, rtol=bound)


@pytest.mark.parametrize("rows", [1, 3, 8, 16, 17, 32, 33, 50])
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 32), (96, 64), (160, 576)])
@pytest.mark.parametrize("biased", [False, True])
def test_tiled_products_equal_torch(rows, outputs, inputs, biased):
    torch.manual_seed(rows)
    weight, x = torch.randn(outputs, inputs).bfloat16(), torch.randn(rows, inputs + 32).bfloat16()[:, :inputs]
    bias = torch.randn(outputs).bfloat16() if biased else None
    if not can_tile(weight):
        assert not {"avx512_bf16"} <= processor_flags()
        return
    exact = x.double() @ weight.double().T + (bias.double() if biased else 0)
    tiled, plain = TiledLinear(weight, bias)(x), PlainLinear(weight, bias)(x)
    # One rounding to bf16 of a sum in float32: no further from the truth than stock torch is.
    assert (tiled.double() - exact).abs().max() <= max((plain.double() - exact).abs().max(), exact.abs().max() / 256)
    sums = TiledLinear(weight, bias, keeps_float32=True)(x)
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums.double(), exact, atol=1e-4, rtol=1e-4)
    assert torch.equal(sums.bfloat16(), tiled)


def test_a_row_of_a_tiled_product_has_the_same_bits_among_any_number_of_rows():
    weight, x = torch.randn(64, 96).bfloat16(), torch.randn(17, 96).bfloat16()
    if not can_tile(weight):
        assert not {"avx512_bf16"} <= processor_flags()
        return
    linear = TiledLinear(weight, None, keeps_float32=True)
    for count in range(1, 18):
        assert torch.equal(linear(x[:count]), torch.cat([linear(row) for row in x[:count].split(1)]))


def test_logits_leave_a_compiled_head_in_float32():
    embedding, x = torch.randn(64, 32).bfloat16(), torch.randn(3, 32).bfloat16()
    logits = Weights(SimpleNamespace(), torch.bfloat16, CPU).head(embedding)(x)
    assert logits.dtype == (torch.float32 if can_tile(embedding) else torch.bfloat16)
    torch.testing.assert_close(logits.float(), x.float() @ embedding.float().T, atol=1e-1, rtol=1e-2)


def processor_flags():
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return {word for line in lines if line.startswith("flags") for word in line.split()}


def test_odd_shapes_and_other_dtypes_are_not_tiled():
    assert not can_tile(torch.zeros(33, 32, dtype=torch.bfloat16))
    assert not can_tile(torch.zeros(32, 48, dtype=torch.bfloat16))
    assert not can_tile(torch.zeros(32, 32))


@pytest.fixture
def _fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for function in (native.library, native.has_triton, native_kernels):
        function.cache_clear()
    yield
    for function in (native.library, native.has_triton, native_kernels):
        function.cache_clear()


@pytest.mark.usefixtures("_fresh")
def test_sources_are_compiled_once_and_kept(tmp_path, monkeypatch):
    assert native.library("rows.cpp") is not None
    (compiled,) = (tmp_path / "bakeoff" / "kernels").iterdir()
    native.library.cache_clear()
    monkeypatch.setattr(subprocess, "run", None)
    assert native.library("rows.cpp") is not None
    assert compiled.suffix == ".so"


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("CXX", "no-such-compiler", "no C++ compiler here"),
        ("CXX", "false", "cannot be compiled here"),
        ("BAKEOFF_KERNELS", "torch", ""),
    ],
)  # fmt: skip
def test_without_a_compiler_stock_torch_is_used_and_the_log_says_so(monkeypatch, caplog, name, value, message):
    monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO):
        assert isinstance(best_kernels(CPU, torch.float32), TorchKernels)
    assert message in caplog.text
    assert (not message) == (not caplog.text)


@pytest.mark.parametrize(
    ("device", "wanted", "kind"),
    [("cuda", "auto", "triton"), ("cuda", "torch", "torch"), ("cpu", "auto", "native"), ("cpu", "torch", "torch")],
)
@pytest.mark.usefixtures("_fresh")
def test_the_kind_of_kernels_is_told_for_each_device(monkeypatch, device, wanted, kind):
    monkeypatch.setenv("BAKEOFF_KERNELS", wanted)
    assert kernel_kind(torch.device(device), torch.float32) == kind
