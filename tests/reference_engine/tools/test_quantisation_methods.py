"""Each method against its published definition, computed here in float64, and integer products in int64."""

import statistics

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from bakeoff.reference_engine.quantization import fp8, mxfp4, nf4, w8a8
from bakeoff.reference_engine.quantization.llm_int8 import THRESHOLD, LlmInt8Matrix
from bakeoff.reference_engine.quantization.matrix import SlabLinear
from bakeoff.reference_engine.quantization.methods import METHODS
from bakeoff.reference_engine.quantization.smoothing import smoothing_scales
from bakeoff.reference_engine.quantization.w8a8 import W8A8Matrix, coded, integer_product

CPU = torch.device("cpu")


def weight_of(rows=6, columns=192):
    """A weight with a row of zeros, one with a huge outlier, one of tiny numbers, and both signs of equal size."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(3)) * 0.05
    weight[0] = 0
    weight[1, 70] = 1e4
    weight[2] *= 1e-20
    weight[3, 0], weight[3, 1] = 1.0, -1.0
    return weight


def nearest(numbers, values):
    """Of each float64 number the nearest value, by trying all; of two equally near ones the first."""
    values = np.asarray(values)
    return values[np.abs(numbers[..., None] - values).argmin(-1)]


def small_floats(exponent_bits, mantissa_bits, largest):
    """All finite numbers of a floating-point format, from its definition."""
    bias, steps = 2 ** (exponent_bits - 1) - 1, 2**mantissa_bits
    subnormal = [step / steps * 2.0 ** (1 - bias) for step in range(steps)]
    normal = [(1 + step / steps) * 2.0 ** (e - bias) for e in range(1, 2**exponent_bits) for step in range(steps)]
    positive = [number for number in subnormal + normal if number <= largest]
    return np.array([-number for number in positive[:0:-1]] + positive)


def ties(numbers, values):
    """Whether the two nearest of ascending values are about as near, so that rounding may choose either."""
    distance = np.sort(np.abs(numbers[..., None] - values), axis=-1)
    return distance[..., 1] - distance[..., 0] <= 1e-6 * np.abs(numbers)


@pytest.mark.parametrize("per_tensor", [False, True])
def test_fp8_codes_are_the_nearest_numbers(per_tensor):
    weight, largest = weight_of(), 448.0
    matrix = fp8.quantised(weight, per_tensor=per_tensor)
    amax = weight.double().abs().amax(None if per_tensor else 1, keepdim=True).numpy()
    scales = np.broadcast_to(amax, (6, 1)) / largest
    assert matrix.scales.numpy() == pytest.approx(np.maximum(scales, np.finfo(np.float32).tiny), rel=1e-6)
    shares = weight.double().numpy() / matrix.scales.double().numpy()
    values = small_floats(4, 3, largest)
    codes = matrix.codes.float().double().numpy()
    clear = ~ties(shares, values)
    assert clear.mean() > 0.9 or per_tensor
    assert np.array_equal(codes[clear], nearest(shares, values)[clear])
    assert (codes[1, 70], codes[0].any()) == (largest, False)


def test_one_scale_for_a_tensor_loses_small_rows_that_a_scale_for_each_keeps():
    weight = weight_of()
    per_row, per_tensor = (fp8.quantised(weight, per_tensor=flag).dequantised() for flag in (False, True))
    assert (per_row[2] - weight[2]).abs().max() <= weight[2].abs().max() / 16
    assert (per_tensor[2] == 0).all()


def test_tensors_with_a_scale_each_stack_exactly():
    parts = [fp8.quantised(weight_of() * factor, per_tensor=True) for factor in (1, 300)]
    whole = torch.cat([part.dequantised() for part in parts])
    assert torch.equal(parts[0].stacked(parts[1:]).dequantised(), whole)
    assert parts[0].scales.unique().numel() == 1


def test_fp8_products_scale_rows_and_outputs(monkeypatch):
    """As on a GPU that multiplies FP8; the operator exists on CPUs, too."""
    rows, weight, bias = torch.randn(5, 64), torch.randn(48, 64), torch.randn(48)
    rows[2] = 0
    matrix = fp8.quantised(weight)
    assert isinstance(matrix.linear(None), SlabLinear)
    assert not matrix.has_kernel(CPU, torch.float32)
    monkeypatch.setattr(fp8, "has_fp8_products", lambda device: True)
    assert not matrix.columns(0, 40).has_kernel(CPU, torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        moved = matrix.to(CPU, dtype)
        activations = fp8.quantised(rows.to(dtype)).to(CPU, torch.float32).dequantised().double()
        for added in (bias, None):
            expected = linear(activations, matrix.dequantised().double(), None if added is None else added.double())
            product = moved.linear(None if added is None else added.to(dtype))(rows.to(dtype))
            assert product.dtype == dtype
            tolerance = 1e-5 if dtype == torch.float32 else 1e-2
            assert (product.double() - expected).abs().max() <= tolerance * expected.abs().max()
        assert moved.linear(None, keeps_float32=True)(rows.to(dtype)).dtype == torch.float32


def test_int8_codes_and_scales_are_those_of_absmax():
    numbers = weight_of()
    codes, scales = coded(numbers)
    exact = numbers.double().numpy()
    absmax = np.abs(exact).max(1, keepdims=True)
    assert scales.numpy() == pytest.approx(np.maximum(absmax / 127, np.finfo(np.float32).tiny), rel=1e-6)
    shares = exact / scales.double().numpy()
    assert np.abs(codes.numpy() - shares).max() <= 0.5 + 1e-5
    assert (codes[1, 70], codes[3, 0], codes[3, 1], codes[0].any()) == (127, 127, -127, False)


@pytest.mark.parametrize("columns", [7, 1024, 3000])
def test_integer_products_are_exact(columns):
    generator = np.random.default_rng(5)
    rows, weight = (generator.integers(-128, 128, (count, columns), dtype=np.int8) for count in (3, 9))
    rows[0], weight[0] = 127, -128  # the largest sum
    expected = rows.astype(np.int64) @ weight.astype(np.int64).T
    product = integer_product(torch.from_numpy(rows), torch.from_numpy(weight))
    assert product.dtype == torch.int32
    assert np.array_equal(product.numpy(), expected)


def test_w8a8_multiplies_codes_of_both():
    weight, rows, bias = weight_of(columns=256), torch.randn(4, 256), torch.randn(6)
    rows[1] = 0
    rows[2, 9] = 1e3
    matrix = W8A8Matrix.of(weight)
    (x, x_scales), (w, w_scales) = coded(rows), (matrix.codes, matrix.scales)
    sums = x.numpy().astype(np.int64) @ w.numpy().astype(np.int64).T
    expected = sums * x_scales.double().numpy() * w_scales.double().numpy().T + bias.double().numpy()
    assert matrix.linear(bias)(rows).double().numpy() == pytest.approx(expected, rel=1e-6)
    # Rounding x by at most half of its scale, and w by half of its, cannot change the product by more.
    exact = rows.double().numpy() @ weight.double().numpy().T + bias.double().numpy()
    x_step, w_step = x_scales.double().numpy() / 2, w_scales.double().numpy().T / 2
    sizes = np.abs(rows.double().numpy()).sum(1, keepdims=True), np.abs(weight.double().numpy()).sum(1)
    bound = x_step * sizes[1] + w_step * sizes[0] + 256 * x_step * w_step
    assert (np.abs(expected - exact) <= bound * (1 + 1e-6)).all()


def test_llm_int8_keeps_outliers_out_of_the_codes():
    weight, rows, bias = torch.randn(6, 256), torch.randn(4, 256).clamp(-5, 5), torch.randn(6)
    plain = W8A8Matrix.of(weight)
    matrix = LlmInt8Matrix.of(weight)
    assert torch.equal(matrix.linear(bias)(rows), plain.linear(bias)(rows))
    rows[2, 9], rows[0, 100], rows[1, 101] = 60.0, -THRESHOLD, THRESHOLD - 1e-3
    outliers = [9, 100]
    regular = rows.clone()
    regular[:, outliers] = 0
    codes, scales = coded(regular)
    sums = codes.numpy().astype(np.int64) @ matrix.codes.numpy().astype(np.int64).T
    expected = sums * scales.double().numpy() * matrix.scales.double().numpy().T + bias.double().numpy()
    expected += rows[:, outliers].double().numpy() @ matrix.dequantised()[:, outliers].double().numpy().T
    product = matrix.linear(bias)(rows)
    assert product.double().numpy() == pytest.approx(expected, rel=1e-5, abs=1e-5)
    exact = linear(rows.double(), weight.double(), bias.double())
    error, without = (
        (linear_(rows).double() - exact)[2].abs().mean() for linear_ in (matrix.linear(bias), plain.linear(bias))
    )
    assert error < 0.7 * without


@pytest.mark.parametrize(("method", "may_capture"), [("llm-int8", False), ("w8a8", True)])
def test_models_with_llm_int8_run_without_graphs(method, may_capture, tiny_engine):
    """Its shapes depend on the numbers."""
    executor = tiny_engine(quantization=method).core._runner._executor
    assert executor._model.may_capture is may_capture


def test_only_llm_int8_waits_for_the_device():
    weight = torch.randn(4, 128)
    assert [name for name, method in METHODS.items() if not method.make(weight).may_capture] == ["llm-int8"]


def test_nf4_codes_are_the_nearest_quantiles():
    weight = weight_of()
    matrix = nf4.quantised(weight)
    blocks = weight.double().numpy().reshape(6, 3, 64)
    scales = np.abs(blocks).max(-1, keepdims=True)
    assert np.array_equal(matrix.scales.values().double().numpy(), scales[..., 0])
    shares = np.divide(blocks, scales, where=scales > 0, out=np.zeros_like(blocks))
    assert not ties(shares, np.array(nf4.VALUES)).any()
    assert matrix.dequantised().numpy() == pytest.approx(
        (nearest(shares, nf4.VALUES) * scales).reshape(6, 192), rel=1e-6
    )


def test_nf4_values_are_quantiles_of_a_normal_distribution():
    """The paper's construction: each side in equal shares up to 1 - (1/32 + 1/30) / 2, over the largest quantile."""
    last, quantile = 1 - (1 / 32 + 1 / 30) / 2, statistics.NormalDist().inv_cdf
    positive = [quantile(share) for share in np.linspace(last, 0.5, 9)[:-1]]
    negative = [-quantile(share) for share in np.linspace(last, 0.5, 8)[:-1]]
    values = np.sort([*positive, *negative, 0.0])
    assert values / values.max() == pytest.approx(np.array(nf4.VALUES), abs=1e-6)


def test_the_dynamic_map_has_the_published_numbers():
    values = [0.0, 1.0]
    for bits in range(7):
        for part in range(2**bits):
            middle = 0.1 + 0.9 * (part + 0.5) / 2**bits
            values += [10.0 ** (bits - 6) * middle, -(10.0 ** (bits - 6)) * middle]
    assert nf4.dynamic_map().double().numpy() == pytest.approx(np.sort(values), rel=1e-5)


def test_nested_scales_are_the_nearest_of_the_map():
    """384 scales: a whole group and half of one."""
    weight = torch.randn(12, 2048, generator=torch.Generator().manual_seed(1))
    weight[3, 64:128] = 0
    plain, matrix = nf4.quantised(weight), nf4.quantised(weight, nested=True)
    assert torch.equal(plain.codes, matrix.codes)
    scales = plain.scales.values().double().numpy().ravel()
    offset, table = scales.mean(), nf4.dynamic_map().double().numpy()
    groups = [scales[:256] - offset, scales[256:] - offset]
    expected = [nearest(group / np.abs(group).max(), table) * np.abs(group).max() + offset for group in groups]
    nested = matrix.scales.values().double().numpy().ravel()
    clear = ~np.concatenate([ties(group / np.abs(group).max(), table) for group in groups])
    assert clear.sum() > 370
    assert nested[clear] == pytest.approx(np.concatenate(expected)[clear], rel=1e-5)
    assert (matrix.dequantised()[3, 64:128] == 0).all()


@pytest.mark.parametrize(("name", "share"), [("nf4", 0.5 / 127), ("nf4-double", 0.5 / 127), ("mxfp4", 0)])
def test_table_entries_become_whole_numbers(name, share):
    """At most half a step off, of which there are 127 to the largest entry; MXFP4's entries are multiples of one."""
    matrix = METHODS[name].make(torch.randn(4, 128, generator=torch.Generator().manual_seed(3)))
    scales = matrix.scales.values().repeat_interleave(matrix.block, dim=1)
    error = (matrix.as_integers().dequantised() - matrix.dequantised()).abs()
    assert (error <= share * scales * 1.0001).all()
    assert (error.max() > 0) == (share > 0)


def test_mxfp4_follows_the_microscaling_conversion():
    weight = weight_of()
    weight[4, :8] = torch.tensor([6.0, 7.9, 5.0, 2.5, 3.5, 0.25, 0.75, -1.25]) / 64
    weight[4, 8:32] = 0
    matrix = mxfp4.quantised(weight)
    blocks = weight.double().numpy().reshape(6, 6, 32)
    largest = np.abs(blocks).max(-1)
    exponents = np.where(largest > 0, np.floor(np.log2(np.maximum(largest, 1e-300))) - 2, -127)
    scales = 2.0 ** np.maximum(exponents, -127)
    assert np.array_equal(matrix.scales.values()[1:].double().numpy(), scales[1:])
    shares = blocks / scales[..., None]
    values = np.array(sorted({sign * value for value in mxfp4.MAGNITUDES for sign in (1, -1)}))
    assert np.array_equal(values, small_floats(2, 1, 6.0))
    decoded = matrix.dequantised().double().numpy().reshape(6, 6, 32)
    clear = ~ties(shares, values)
    assert np.array_equal(decoded[clear], (nearest(shares, values) * scales[..., None])[clear])
    # Ties go to even codes, and what is above 6 saturates.
    assert (matrix.dequantised()[4, :8] * 64).tolist() == [6.0, 6.0, 4.0, 2.0, 4.0, 0.0, 1.0, -1.0]
    assert matrix.dequantised()[0].any().item() is False


@pytest.mark.parametrize(("method", "columns"), [("nf4", 96), ("nf4-double", 96), ("mxfp4", 48)])
def test_a_matrix_that_blocks_do_not_divide_stays_plain(method, columns):
    assert METHODS[method].make(torch.randn(4, columns)) is None


def test_smoothing_moves_difficulty_and_keeps_the_product():
    generator = torch.Generator().manual_seed(2)
    rows, weights = torch.randn(9, 8, generator=generator), [torch.randn(n, 8, generator=generator) for n in (5, 3)]
    rows[:, 2] *= 100
    rows[:, 4] = 0
    weights[0][:, 6] = weights[1][:, 6] = 0
    x, w = rows.abs().amax(0).double().numpy(), torch.cat(weights).abs().amax(0).double().numpy()
    for alpha in (0.0, 0.5, 0.8, 1.0):
        scales = smoothing_scales(rows.abs().amax(0), weights, alpha)
        expected = [xj**alpha / wj ** (1 - alpha) if xj and wj else 1.0 for xj, wj in zip(x, w, strict=True)]
        assert scales.double().numpy() == pytest.approx(np.array(expected), rel=1e-5)
        for weight in weights:
            smooth = linear(rows / scales, weight * scales)
            assert (smooth - linear(rows, weight)).abs().max() <= 1e-5 * linear(rows, weight).abs().max()
    scales = smoothing_scales(rows.abs().amax(0), weights)
    live = [0, 1, 2, 3, 5, 7]
    largest_x, largest_w = (rows / scales).abs().amax(0), (torch.cat(weights) * scales).abs().amax(0)
    assert torch.allclose(largest_x[live], largest_w[live])  # alpha 0.5 makes both sides equally hard

    def error(inputs, matrices):
        return sum((W8A8Matrix.of(m).linear(None)(inputs) - linear(inputs, m)).abs().mean() for m in matrices)

    assert error(rows / scales, [weight * scales for weight in weights]) < error(rows, weights)


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_smoothing_refuses_a_share_that_is_none(alpha):
    with pytest.raises(ValueError, match="alpha must be 0 to 1"):
        smoothing_scales(torch.ones(4), [torch.ones(2, 4)], alpha)
    with pytest.raises(ValueError, match="not all matrices have the 4 inputs"):
        smoothing_scales(torch.ones(4), [torch.ones(2, 4), torch.ones(2, 5)])


def test_cuda_products_get_the_rows_that_cublas_needs(monkeypatch):
    """`torch._int_mm` is on CPUs, too; without padding cuBLAS would refuse fewer than 17 rows."""
    row_counts = []

    def int_mm(rows, weight):
        row_counts.append(rows.shape[0])
        return torch.ops.aten._int_mm(rows, weight)

    rows, weight = (torch.randint(-127, 128, shape, dtype=torch.int8) for shape in ((3, 64), (16, 64)))
    monkeypatch.setattr(w8a8, "_has_int_mm", lambda rows, weight: True)
    monkeypatch.setattr(w8a8, "_int_mm", int_mm)
    assert torch.equal(integer_product(rows, weight).long(), rows.long() @ weight.long().T)
    assert integer_product(rows.repeat(20, 1), weight).shape == (60, 16)
    assert row_counts == [32, 60]
