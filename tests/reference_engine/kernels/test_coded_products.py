"""Products with codes of 4 and 8 bits on a GPU: the Triton kernels in Triton's interpreter, against float64."""

import dataclasses

import pytest
import torch

from bakeoff.reference_engine.kernels import coded_products, row_codes, small_products
from bakeoff.reference_engine.kernels.code_words import Words
from bakeoff.reference_engine.quantization import coded_linear, fp8
from bakeoff.reference_engine.quantization.integer_matrix import unpack
from bakeoff.reference_engine.quantization.rounding import absmax, zero_point
from tests.reference_engine.kernels.test_triton_kernels import CPU


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("quantise", [absmax, zero_point])
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "group", "biased", "programs"),
    [
        (1, 64, 512, 128, True, 1), (3, 64, 288, 96, False, 100), (17, 64, 96, 32, True, 1),
        (5, 64, 320, 320, True, 100), (2, 64, 320, 160, False, 1),
        (67, 192, 544, 32, True, 100), (140, 128, 128, 32, False, 1),
    ],
)  # fmt: skip
def test_coded_products_equal_float64(monkeypatch, quantise, bits, rows, outputs, inputs, group, biased, programs):
    matrix = quantise(torch.randn(outputs, inputs) / 20, bits, group)
    x = torch.randn(rows, 2 * inputs).half()[:, :inputs]
    bias = torch.randn(outputs).half() if biased else None
    codes = matrix.codes if bits == 8 else unpack(matrix.codes)
    zeros = None if matrix.offsets is None else (-matrix.offsets / matrix.scales).round()
    stored = Words.of(codes, matrix.scales, zeros, bits)
    exact = x.double() @ matrix.dequantised().double().T + (bias.double() if biased else 0)
    assert coded_products.suits_coded_products(outputs, group)
    monkeypatch.setattr(small_products, "_PROGRAMS", programs)  # so that there are enough without splits, or not
    # Scaled numbers, their scales and offsets are rounded to the dtype of the rows.
    torch.testing.assert_close(coded_products.multiply(x, stored, bias).double(), exact, atol=4e-3, rtol=4e-3)
    torch.testing.assert_close(coded_products.plain(stored, torch.float32), matrix.dequantised(), atol=1e-7, rtol=1e-6)


def as_if_on_a_gpu(monkeypatch):
    monkeypatch.setattr(coded_linear, "has_triton", lambda device: True)
    monkeypatch.setattr(coded_products, "MAX_ROWS", {4: 4, 8: 4})


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("keeps_float32", [False, True])
def test_coded_linear_multiplies_few_rows_by_codes_and_many_by_plain_numbers(monkeypatch, ordered, keeps_float32):
    as_if_on_a_gpu(monkeypatch)
    matrix = zero_point(torch.randn(64, 256) / 20, 4, 64).to(CPU, torch.float16)
    matrix.scales[3, 1] = matrix.offsets[3, 1] = 0
    if ordered:
        matrix = dataclasses.replace(matrix, order=torch.randperm(256))
    product = matrix.linear(torch.arange(64).half() / 9, keeps_float32=keeps_float32)
    for rows in (torch.randn(count, 256).half() for count in (3, 5)):
        result = product(rows)
        assert result.dtype == (torch.float32 if keeps_float32 else torch.float16)
        torch.testing.assert_close(
            result.double(),
            rows.double() @ matrix.dequantised().double().T + torch.arange(64) / 9,
            atol=4e-3,
            rtol=4e-3,
        )


def test_an_offset_that_is_no_multiple_of_the_scale_is_kept(monkeypatch):
    as_if_on_a_gpu(monkeypatch)
    whole = zero_point(torch.randn(64, 256) / 20, 4, 64).to(CPU, torch.float32)
    matrix = dataclasses.replace(whole, offsets=whole.offsets + whole.scales / 3)
    rows = torch.randn(2, 256)
    torch.testing.assert_close(matrix.linear(None)(rows), rows @ matrix.dequantised().T, atol=1e-5, rtol=1e-5)


def test_fp8_products_read_the_weight_once_for_few_rows(monkeypatch):
    monkeypatch.setattr(fp8, "has_fp8_products", lambda device: True)
    monkeypatch.setattr(fp8, "has_triton", lambda device: True)
    monkeypatch.setattr(small_products, "MAX_ROWS_OF_CODES", 4)
    matrix = fp8.quantised(torch.randn(64, 512) / 20)
    product, weight = matrix.linear(torch.ones(64)), matrix.dequantised().double()
    for count in (1, 3, 5):
        rows = torch.randn(count, 600)[:, :512]  # parts of longer rows
        rows[-1, ::2] = 0
        codes, scales = row_codes.scaled_codes(rows)
        coded = fp8.quantised(rows)
        assert torch.equal(scales, coded.scales)
        # The interpreter converts to E4M3 by cutting off, and some numbers wrongly; benchmarks/gpu checks all on a GPU.
        assert torch.isclose(codes.float(), coded.codes.float(), rtol=1 / 8, atol=2**-9).float().mean() > 0.95
        exact = (codes.double() * scales.double()) @ weight.T + 1
        torch.testing.assert_close(product(rows).double(), exact, atol=1e-5, rtol=1e-5)
