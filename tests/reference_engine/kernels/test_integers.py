"""Compiled products with whole numbers, against float64."""

import dataclasses

import pytest
import torch
from torch.nn.functional import linear, pad

from bakeoff.reference_engine.kernels.integers import IntegerLinear
from bakeoff.reference_engine.quantization import integer_matrix
from bakeoff.reference_engine.quantization.integer_matrix import IntegerMatrix, pack
from bakeoff.reference_engine.quantization.matrix import SlabLinear

CPU = torch.device("cpu")
BLOCK = 32  # columns of a row that are rounded together
OUTPUTS = 11  # no whole number of tiles
EVERY_SHAPE = pytest.mark.parametrize(
    ("bits", "columns", "group"),
    [
        *((bits, columns, group) for bits in (4, 8) for columns, group in [(576, 64), (192, 96), (160, 32), (96, 96)]),
        (8, 77, 77),
        (8, 1, 1),
    ],
)
EVERY_KIND = pytest.mark.parametrize("has_order", [False, True])
EVERY_ZERO = pytest.mark.parametrize("has_offsets", [False, True])
EVERY_DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def matrix_of(bits, columns, group, *, has_offsets=False, has_order=False, dtype=torch.float32):
    """Random, with all codes."""
    generator = torch.Generator().manual_seed(columns)
    codes = torch.randint(0, 2**bits, (OUTPUTS, columns), generator=generator)
    return IntegerMatrix(
        pack(codes.to(torch.uint8)) if bits == 4 else (codes - 128).to(torch.int8),
        torch.rand(OUTPUTS, columns // group, generator=generator) / 2**bits,
        torch.randn(OUTPUTS, columns // group, generator=generator) if has_offsets else None,
        bits,
        torch.randperm(columns, generator=generator) if has_order else None,
        dtype,
    )


def exact(matrix, rows, bias=None):
    weight = matrix.to(CPU, torch.float32).dequantised().double()
    return linear(rows.double(), weight, None if bias is None else bias.double())


def blocks_of(matrix, rows):
    """Columns that are rounded together, in the order of the codes [rows, blocks, BLOCK]."""
    ordered = rows if matrix.order is None else rows[:, matrix.order]
    return pad(ordered, (0, -rows.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))


@EVERY_SHAPE
@EVERY_ZERO
@EVERY_KIND
@EVERY_DTYPE
def test_rows_that_need_no_rounding_give_the_exact_product(bits, columns, group, has_offsets, has_order, dtype):
    """Whole numbers up to 127, with blocks of different scales."""
    matrix = matrix_of(bits, columns, group, has_offsets=has_offsets, has_order=has_order, dtype=dtype)
    count = -(-columns // BLOCK)
    blocks = torch.randint(-127, 128, (9, count, BLOCK))
    blocks[:, :, 0] = 127
    blocks = blocks * 2.0 ** torch.randint(-3, 4, (9, count, 1))
    rows = blocks.flatten(1)[:, :columns]
    if matrix.order is not None:
        rows = torch.empty_like(rows).index_copy_(1, matrix.order, rows)
    bias = torch.randn(OUTPUTS).to(dtype)
    multiply = matrix.linear(bias)
    assert isinstance(multiply, IntegerLinear)
    product, expected = multiply(rows.to(dtype)), exact(matrix, rows, bias)
    bound = 2e-6 * (linear(rows.abs(), matrix.to(CPU, torch.float32).dequantised().abs()).double() + expected.abs())
    if has_offsets:  # scale times code and the offset cancel each other
        bound *= 20
    if dtype == torch.bfloat16:
        bound += 2**-8 * expected.abs()
    assert product.dtype == dtype
    assert ((product.double() - expected).abs() <= bound).all()
    for number in range(1, 9):
        assert torch.equal(multiply(rows[:number].to(dtype)), product[:number])
    for number in range(9):
        assert torch.equal(multiply(rows[number : number + 1].to(dtype))[0], product[number])


@EVERY_SHAPE
@EVERY_ZERO
@EVERY_KIND
@EVERY_DTYPE
def test_plain_numbers_are_those_of_the_definition(bits, columns, group, has_offsets, has_order, dtype, monkeypatch):
    matrix = matrix_of(bits, columns, group, has_offsets=has_offsets, has_order=has_order, dtype=dtype)
    compiled = matrix.dequantised()
    monkeypatch.setattr(integer_matrix.integers, "has_kernel", lambda *_: False)
    torch.testing.assert_close(compiled, matrix.dequantised(), atol=1e-6, rtol=2**-8 if dtype == torch.bfloat16 else 0)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("keeps_float32", [False, True])
@pytest.mark.parametrize("count", [17, 33, 70])
def test_a_rows_bits_do_not_depend_on_how_many_rows_there_are(bits, keeps_float32, count):
    matrix = matrix_of(bits, 192, 64, dtype=torch.bfloat16)
    rows, bias = torch.randn(count, 192).bfloat16(), torch.randn(OUTPUTS).bfloat16()
    multiply = matrix.linear(bias, keeps_float32=keeps_float32)
    assert torch.equal(multiply(rows), torch.cat([multiply(row[None]) for row in rows]))


@EVERY_SHAPE
@EVERY_ZERO
@EVERY_KIND
def test_rounding_moves_a_product_by_half_a_step_of_each_column_at_most(bits, columns, group, has_offsets, has_order):
    matrix = matrix_of(bits, columns, group, has_offsets=has_offsets, has_order=has_order)
    rows = torch.randn(5, columns) * torch.tensor([1e-6, 1.0, 1e4, 0.0, 1.0])[:, None]
    rows[4, : columns // 2] = 0
    blocks = blocks_of(matrix, rows)
    half = (blocks.abs().amax(-1, keepdim=True) / 254).expand_as(blocks).flatten(1)[:, :columns]
    weight = dataclasses.replace(matrix, order=None).dequantised()
    bound = linear(half, weight.abs()).double() * 1.01 + 1e-5 * linear(rows.abs(), weight.abs().amax() + 0 * weight)
    error = (matrix.linear(None)(rows).double() - exact(matrix, rows)).abs()
    assert (error <= bound).all()
    assert (error[3] == 0).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_logits_stay_float32_and_rows_may_be_parts_of_longer_ones(bits):
    matrix = matrix_of(bits, 96, 32, dtype=torch.bfloat16)
    rows = torch.randn(3, 200).bfloat16()[:, 50:146]
    product = matrix.linear(None, keeps_float32=True)(rows)
    assert product.dtype == torch.float32
    assert torch.equal(product.bfloat16(), matrix.linear(None)(rows.contiguous()))
    assert matrix.linear(None)(rows[:0]).shape == (0, OUTPUTS)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_shows_in_its_row_only(bits, value):
    matrix, rows = matrix_of(bits, 192, 64, has_offsets=True), torch.randn(4, 192)
    expected = matrix.linear(None)(rows)
    rows[2, 70] = value
    product = matrix.linear(None)(rows)
    assert not product[2].isfinite().any()
    assert torch.equal(product[[0, 1, 3]], expected[[0, 1, 3]])


def test_groups_that_cut_blocks_are_dequantised():
    matrix, rows = matrix_of(8, 96, 48), torch.randn(2, 96)
    assert not matrix.has_kernel(CPU, torch.float32)
    assert matrix_of(8, 96, 96).has_kernel(CPU, torch.float32), "there is no C++ compiler here"
    assert not matrix_of(8, 96, 96).has_kernel(CPU, torch.float16)
    assert isinstance(matrix.linear(None), SlabLinear)
    torch.testing.assert_close(matrix.linear(None)(rows).double(), exact(matrix, rows), atol=1e-3, rtol=1e-5)
