"""GPTQ and AWQ: what they choose for inputs like those of a text, against round-to-nearest."""

import pytest
import torch

from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.quantization.activations import Activations, observed
from bakeoff.reference_engine.quantization.awq import channel_scales, clipped
from bakeoff.reference_engine.quantization.formats.base import IntegerScheme
from bakeoff.reference_engine.quantization.formats.schemes import Int8Scheme
from bakeoff.reference_engine.quantization.gptq import gptq
from bakeoff.reference_engine.quantization.rounding import absmax, zero_point
from bakeoff.reference_engine.tools.layer_quantisers import INPUTS, AwqLayer, SmoothedLayer
from bakeoff.reference_engine.tools.layer_stream import LayerStream

GROUP = 32
NORMS = ("input_layernorm", "post_attention_layernorm")
PIECES = [[1, 7, 30, 44, 9, 120, 33], [1, 5, 60, 61, 62]]


@pytest.fixture
def inputs():
    """Rows [tokens, 64] with correlated columns, a few of them large and one of them never there."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(300, 64, generator=generator) @ torch.randn(64, 64, generator=generator) / 8
    rows[:, ::9] *= 12
    rows[:, 5] = 0
    return rows


@pytest.fixture
def weight():
    return torch.randn(24, 64, generator=torch.Generator().manual_seed(4))


def output_error(matrix, weight, inputs):
    return float((inputs @ (matrix.dequantised() - weight).T).square().sum())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 64), (8, 64)])
def test_gptq_lowers_the_error_of_the_output(weight, inputs, symmetric, ordered, bits, group):
    made = gptq(weight, inputs.T @ inputs, bits, group, symmetric=symmetric, ordered=ordered)
    plain = (absmax if symmetric else zero_point)(weight, bits, group)
    assert output_error(made, weight, inputs) < 0.7 * output_error(plain, weight, inputs)
    assert made.scales.dtype == weight.dtype
    assert (made.order is None) != ordered


def test_gptq_is_round_to_nearest_for_uncorrelated_inputs(weight):
    made, plain = gptq(weight, torch.eye(64), 4, GROUP), absmax(weight, 4, GROUP)
    assert torch.equal(made.codes, plain.codes)
    assert torch.equal(made.scales, plain.scales)


def test_gptq_of_two_columns_is_the_best_that_rounding_one_after_the_other_gives():
    """The second column's best code, given the first's, is the nearest to its conditional minimum."""
    generator = torch.Generator().manual_seed(5)
    hessian = torch.eye(64)
    hessian[0, 1] = hessian[1, 0] = 0.9
    weight = torch.randn(10, 64, generator=generator)
    made, plain = gptq(weight, hessian, 8, 64).dequantised(), absmax(weight, 8, 64)
    damped = hessian + 0.01 * torch.eye(64)
    scales = plain.scales[:, 0]
    first = plain.dequantised()[:, 0]
    target = weight[:, 1] - (first - weight[:, 0]) * damped[0, 1] / damped[1, 1]
    torch.testing.assert_close(made[:, 0], first)
    assert ((made[:, 1] - target).abs() <= 0.501 * scales).all()


def test_inputs_that_are_not_finite_are_reported(weight):
    with pytest.raises(ValueError, match="calibration text"):
        gptq(weight, torch.full((64, 64), float("nan")), 4, GROUP)


def test_awq_scales_and_clipping_lower_the_error_of_the_output(weight, inputs):
    hessian, magnitudes = inputs.T @ inputs, inputs.abs().mean(0)
    scale = channel_scales([weight], hessian, magnitudes, 4, GROUP)
    scaled_inputs, scaled = inputs / scale, weight * scale
    plain = output_error(zero_point(weight, 4, GROUP), weight, inputs)
    with_scales = output_error(zero_point(scaled, 4, GROUP), scaled, scaled_inputs)
    with_both = output_error(clipped(scaled, scaled_inputs.T @ scaled_inputs, 4, GROUP), scaled, scaled_inputs)
    assert with_both < with_scales < 0.8 * plain


def test_activations_are_sums_over_all_inputs(inputs):
    activations = Activations.none(64, torch.device("cpu"))
    for part in inputs.view(3, 2, 50, 64):
        activations.add(part)
    torch.testing.assert_close(activations.hessian, inputs.T @ inputs, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(activations.magnitudes, inputs.abs().sum(0))
    torch.testing.assert_close(activations.largest, inputs.abs().amax(0))
    assert activations.tokens == 300
    scale = torch.rand(64) + 0.5
    scaled = activations.scaled(scale)
    torch.testing.assert_close(scaled.hessian, (inputs / scale).T @ (inputs / scale), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(scaled.largest, (inputs / scale).abs().amax(0))


@pytest.fixture
def stream(tmp_path, save_checkpoint, make_model):
    def of(**changes):
        path = save_checkpoint(tmp_path, make_model(attention_bias=True, **changes))
        return LayerStream(SafetensorsDirectory(path), PIECES, torch.device("cpu"), torch.float32)

    return of


@torch.inference_mode()
def test_layers_one_after_the_other_compute_what_the_model_computes(stream, make_model):
    model = make_model(attention_bias=True)
    layers = stream()
    states = layers.inputs
    for index in range(layers.depth):
        states = layers.run(index, layers.layer(index, layers.tensors(index)), states)
    for piece, hidden in zip(PIECES, states, strict=True):
        expected = model.model(torch.tensor([piece])).last_hidden_state
        torch.testing.assert_close(model.model.norm(hidden), expected)


def test_a_layer_moves_to_the_device_that_computes(stream, monkeypatch):
    """Quantised layers are read back from files, on the CPU."""
    layers = stream()
    tensors = layers.tensors(0)
    monkeypatch.setattr(layers, "_device", torch.device("meta"))
    assert {parameter.device.type for parameter in layers.layer(0, tensors).parameters()} == {"meta"}


@pytest.mark.parametrize("value_heads", [4, 2])
def test_awq_scales_neighbours_so_that_the_layer_stays_the_same(stream, value_heads):
    layers = stream(num_key_value_heads=value_heads)
    before = layers.tensors(0)
    tensors, layer = dict(before), layers.layer(0, before)
    with observed(layer, INPUTS) as activations:
        expected = layers.run(0, layer, layers.inputs)
    matrices = AwqLayer(IntegerScheme(4, 32, symmetric=False)).quantised(tensors, activations)
    changed = {name for name, tensor in tensors.items() if not torch.equal(tensor, before[name])}
    assert {"input_layernorm.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"} <= changed
    assert ("self_attn.v_proj.bias" in changed) == ("self_attn.o_proj.weight" in changed) == (value_heads == 4)
    for made, plain in zip(layers.run(0, layers.layer(0, tensors), layers.inputs), expected, strict=True):
        torch.testing.assert_close(made, plain, atol=1e-4, rtol=1e-4)
    for name in INPUTS:
        weight = tensors[f"{name}.weight"]
        assert float((matrices[name].dequantised() - weight).norm() / weight.norm()) < 0.25


def test_smoothing_balances_norms_and_matrices_so_that_the_layer_stays_the_same(stream):
    layers = stream()
    before = layers.tensors(0)
    before["input_layernorm.weight"][3] *= 50  # an outlier
    tensors = dict(before)
    layer = layers.layer(0, before)
    with observed(layer, INPUTS, has_products=False) as activations:
        expected = layers.run(0, layer, layers.inputs)
    matrices = SmoothedLayer(Int8Scheme()).quantised(tensors, activations)
    changed = {name for name, tensor in tensors.items() if not torch.equal(tensor, before[name])}
    assert changed == {
        f"{name}.weight" for name in (*(name for name in INPUTS if not name.endswith(("o_proj", "down_proj"))), *NORMS)
    }
    layer = layers.layer(0, tensors)
    with observed(layer, INPUTS, has_products=False) as smoothed:
        for made, plain in zip(layers.run(0, layer, layers.inputs), expected, strict=True):
            torch.testing.assert_close(made, plain, atol=1e-4, rtol=1e-4)
    largest = torch.cat([tensors[f"self_attn.{name}_proj.weight"] for name in "qkv"]).abs().amax(0)
    torch.testing.assert_close(smoothed["self_attn.q_proj"].largest, largest, rtol=1e-4, atol=1e-5)
    assert activations["self_attn.q_proj"].products is None
    for name in INPUTS:
        rounded = Int8Scheme().nearest(tensors[f"{name}.weight"])
        assert torch.equal(matrices[name].codes, rounded.codes)
        assert torch.equal(matrices[name].scales, rounded.scales)
