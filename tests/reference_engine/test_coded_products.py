"""Products with codes of 4 and 8 bits on a GPU: the Triton kernels in Triton's interpreter, against float64."""

import dataclasses

import pytest
import torch

from reference_engine.kernels import coded_products
from reference_engine.quantization import coded_linear, fp8
from reference_engine.quantization.rounding import absmax, zero_point
from tests.reference_engine.test_triton_kernels import CPU, assert_close


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("quantise", [absmax, zero_point])
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "group", "biased"),
    [(1, 64, 512, 128, True), (3, 128, 576, 64, False), (17, 64, 96, 32, True), (2, 64, 1024, 1024, False)],
)
def test_coded_products_equal_float64(monkeypatch, quantise, bits, rows, outputs, inputs, group, biased):
    matrix = quantise(torch.randn(outputs, inputs) / 20, bits, group)
    x = torch.randn(rows, 2 * inputs).half()[:, :inputs]
    bias = torch.randn(outputs).half() if biased else None
    by_group = [None if part is None else part.t().contiguous() for part in (matrix.scales, matrix.offsets)]
    weight, stored = matrix.dequantised(), (matrix.codes, *by_group, bits)
    exact = x.double() @ weight.double().T + (bias.double() if biased else 0)
    assert coded_products.suits_coded_products(outputs, inputs, group)
    for programs in (1, 100):
        monkeypatch.setattr(coded_products, "_PROGRAMS", programs)
        assert_close(coded_products.multiply(x, *stored, bias), exact)
    assert torch.equal(coded_products.plain(*stored, torch.float32), weight)


def as_if_on_a_gpu(monkeypatch):
    monkeypatch.setattr(coded_linear, "has_triton", lambda device: True)
    monkeypatch.setattr(coded_products, "MAX_ROWS", 4)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("keeps_float32", [False, True])
def test_coded_linear_multiplies_few_rows_by_codes_and_many_by_plain_numbers(monkeypatch, ordered, keeps_float32):
    as_if_on_a_gpu(monkeypatch)
    matrix = zero_point(torch.randn(64, 256) / 20, 4, 64).to(CPU, torch.float16)
    if ordered:
        matrix = dataclasses.replace(matrix, order=torch.randperm(256))
    product = matrix.linear(torch.arange(64).half() / 9, keeps_float32=keeps_float32)
    for rows in (torch.randn(count, 256).half() for count in (3, 5)):
        result = product(rows)
        assert result.dtype == (torch.float32 if keeps_float32 else torch.float16)
        assert_close(result.half(), rows.double() @ matrix.dequantised().double().T + torch.arange(64) / 9)


def test_fp8_codes_multiply_few_rows_as_they_are_and_many_as_codes(monkeypatch):
    as_if_on_a_gpu(monkeypatch)
    monkeypatch.setattr(fp8, "has_fp8_products", lambda device: True)
    monkeypatch.setattr(fp8, "has_triton", lambda device: True)
    matrix = fp8.quantised(torch.randn(64, 256) / 20, fp8.E4M3)
    product, weight = matrix.linear(torch.ones(64)), matrix.dequantised().double()
    few, many = torch.randn(3, 256), torch.randn(5, 256)
    many[2] = 0
    assert_close(product(few), few.double() @ weight.T + 1)
    coded = fp8.quantised(many, fp8.E4M3)
    codes, scales = coded_products.scaled_codes(many)
    # The interpreter converts to E4M3 by cutting off, and some numbers wrongly; benchmarks/gpu checks all on a GPU.
    close = torch.isclose(codes.float(), coded.codes.float(), rtol=1 / 8, atol=2**-9)
    assert close.float().mean() > 0.95
    assert torch.equal(scales, coded.scales)
    activations = codes.double() * scales.double()
    torch.testing.assert_close(product(many).double(), activations @ weight.T + 1, atol=1e-5, rtol=1e-5)
