"""Weights in blocks: their meaning, against the gguf library, and products with them, against exact ones."""

import gguf
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear

from bakeoff.reference_engine.kernels import quantised
from bakeoff.reference_engine.kernels.blocks import FORMATS
from bakeoff.reference_engine.kernels.quantised import BlockLinear, has_kernel
from bakeoff.reference_engine.models.linear import JoinedLinear, make_joined, make_linear, rows_of
from bakeoff.reference_engine.quantization import matrix as matrix_module
from bakeoff.reference_engine.quantization.matrix import SlabLinear
from tests.reference_engine.gguf_blocks import random_blocks, truth

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
EVERY_FORMAT = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture
def _no_kernel(monkeypatch):
    """As on a machine without a compiler, and with slabs of few rows."""
    monkeypatch.setattr(quantised, "has_kernel", lambda device, dtype: False)
    monkeypatch.setattr(matrix_module, "_SLAB_ELEMENTS", 5000)


@EVERY_FORMAT
def test_numbers_and_sizes_are_ggmls(name):
    kind, block_format = gguf.GGMLQuantizationType[name], FORMATS[name]
    assert (block_format.number, block_format.elements, block_format.bytes) == (int(kind), *gguf.GGML_QUANT_SIZES[kind])


@EVERY_FORMAT
@settings(max_examples=12)
@given(rows=st.integers(1, 9), blocks=st.integers(1, 5), seed=st.integers(0, 999))
def test_blocks_mean_what_the_gguf_library_says(name, rows, blocks, seed):
    matrix = random_blocks(name, rows, blocks * FORMATS[name].elements, seed)
    expected = truth(matrix)
    assert matrix.shape == tuple(expected.shape)
    assert torch.equal(matrix.format.unpack(matrix.blocks.view(-1, matrix.format.bytes)).view(matrix.shape), expected)
    for dtype in (*DTYPES, torch.float16):
        assert torch.equal(matrix.to(CPU, dtype).dequantised(), expected.to(dtype))


def assert_is_product(product, rows, matrix, bias=None):
    """No further from the exact product than sums in float32 are, and in bf16 rounded weights and results."""
    weight = truth(matrix).double()
    exact = linear(rows.double(), weight, None if bias is None else bias.double())
    step = 2e-6 if product.dtype == torch.float32 else 2**-8
    bound = step * (linear(rows.double().abs(), weight.abs()) + exact.abs())
    assert product.shape == exact.shape
    assert product.dtype == rows.dtype
    assert ((product.double() - exact).abs() <= bound).all()


@EVERY_FORMAT
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 32, 33])
def test_products_with_blocks_are_exact_but_for_rounding(name, dtype, count):
    torch.manual_seed(count)
    assert has_kernel(CPU, dtype), "there is no C++ compiler here"
    for outputs, blocks in ((37, 1), (5, 3), (64, 2)):
        matrix = random_blocks(name, outputs, blocks * FORMATS[name].elements, seed=count).to(CPU, dtype)
        x = torch.randn(count, matrix.shape[1] + 32).to(dtype)[:, 32:]  # parts of longer rows
        bias = torch.randn(outputs)
        arguments = matrix.blocks, matrix.format, matrix.shape
        assert isinstance(matrix.linear(None), BlockLinear) or dtype == torch.bfloat16
        assert_is_product(BlockLinear(*arguments, None, dtype)(x), x, matrix)
        product = BlockLinear(*arguments, bias, dtype)(x)
        assert_is_product(product, x, matrix, bias)
        sums = BlockLinear(*arguments, bias, dtype, keeps_float32=True)(x)
        assert sums.dtype == torch.float32
        assert torch.equal(sums.to(dtype), product)


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"Q2_K", "Q3_K"}))
def test_rows_in_bfloat16_are_rounded_to_8_bits_however_many(name):
    """Whole numbers up to 127, with blocks of different scales, need no rounding."""
    torch.manual_seed(1)
    unit = max(64, FORMATS[name].elements)
    for outputs, columns in ((11, unit), (5, 9 * unit)):
        matrix = random_blocks(name, outputs, columns).to(CPU, torch.bfloat16)
        multiply = matrix.linear(torch.randn(outputs))
        whole = torch.randint(-127, 128, (9, columns // 32, 32))
        whole[:, :, 0] = 127
        whole = (whole * 2.0 ** torch.randint(-3, 4, (9, columns // 32, 1))).flatten(1).bfloat16()
        assert_is_product(matrix.linear(None)(whole), whole, matrix)
        x = torch.randn(33, columns + 32).bfloat16()[:, 32:]  # parts of longer rows
        exact = linear(x.double(), truth(matrix).double())
        error = (matrix.linear(None, keeps_float32=True)(x) - exact).norm() / exact.norm()
        assert 1e-3 < error < 0.02  # of rounding, which BlockLinear does without
        assert torch.equal(multiply(x), torch.cat([multiply(x[row : row + 1]) for row in range(33)]))


@pytest.mark.parametrize(
    ("name", "columns", "dtype"),
    [("Q4_0", 96, torch.bfloat16), ("Q8_0", 64, torch.float32), ("Q3_K", 256, torch.bfloat16)],
)
def test_other_blocks_and_activations_are_not_rounded(name, columns, dtype):
    matrix = random_blocks(name, 5, columns).to(CPU, dtype)
    assert isinstance(matrix.linear(None), BlockLinear)


@pytest.mark.parametrize("outputs", [1, 3, 9, 37])
def test_threads_share_the_outputs(outputs):
    """Also where there are fewer of them than threads."""
    matrix, x = random_blocks("Q8_0", outputs, 64), torch.randn(5, 64)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert_is_product(matrix.linear(None)(x), x, matrix)
    finally:
        torch.set_num_threads(before)


def test_rows_so_long_that_few_are_unpacked_at_once():
    for dtype in DTYPES:
        matrix = random_blocks("Q4_1", 11, 32 * 300).to(CPU, dtype)
        x = torch.randn(6, 9600).to(dtype)
        assert_is_product(matrix.linear(None)(x), x, matrix)


@EVERY_FORMAT
@pytest.mark.usefixtures("_no_kernel")
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("count", [1, 40])
def test_without_a_kernel_slabs_are_dequantised_and_forgotten(name, dtype, count):
    matrix = random_blocks(name, 50, 512).to(CPU, dtype)
    assert isinstance(make_linear(matrix), SlabLinear)
    x, bias = torch.randn(count, 512).to(dtype), torch.randn(50).to(dtype)
    assert_is_product(make_linear(matrix, bias)(x), x, matrix, bias)
    assert_is_product(make_linear(matrix)(x), x, matrix)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("kinds", "products"),
    [
        ("Q4_K Q4_K Q4_K", 1),
        ("Q4_K Q4_K Q6_K", 2),
        ("Q4_K Q6_K Q4_K", 3),
        ("plain plain Q8_0", 2),
        ("Q5_1 plain Q5_1", 3),
    ],
)
def test_matrices_of_mixed_formats_are_one_product(kinds, products, biased):
    torch.manual_seed(0)
    matrices = [
        torch.randn(40, 256) if kind == "plain" else random_blocks(kind, 8 * (i + 3), 256, seed=i)
        for i, kind in enumerate(kinds.split())
    ]
    plain = torch.cat([matrix if isinstance(matrix, torch.Tensor) else truth(matrix) for matrix in matrices])
    bias = torch.randn(plain.shape[0]) if biased else None
    joined = make_joined(matrices, bias)
    assert (len(joined._linears) if isinstance(joined, JoinedLinear) else 1) == products
    assert products > 1 or isinstance(joined, BlockLinear)
    for count in (1, 9):
        x = torch.randn(count, 256)
        torch.testing.assert_close(joined(x), linear(x, plain, bias), atol=1e-3, rtol=1e-4)


@EVERY_FORMAT
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_embedding_table_unpacks_the_rows_that_are_looked_up(name, dtype):
    table, tokens = random_blocks(name, 30, 512).to(CPU, dtype), torch.tensor([7, 0, 29, 7])
    assert torch.equal(rows_of(table, tokens), truth(table)[tokens].to(dtype))
