"""Every quantised matrix: its numbers, its parts, and its product."""

import typing

import pytest
import torch
from torch.nn.functional import linear

from engines.adapters.reference import _QUANTIZATIONS
from reference_engine.engine.config import QuantizationName
from reference_engine.engine.request import SamplingParams
from reference_engine.errors import ConfigError
from reference_engine.loading.checkpoint import open_checkpoint
from reference_engine.offline import LLM
from reference_engine.quantization.integer_matrix import IntegerMatrix, pack, unpack
from reference_engine.quantization.matrix import stacked
from reference_engine.quantization.methods import METHODS, MethodName, group_of
from tests.reference_engine.test_gguf import write_gguf
from tests.reference_engine.test_gguf_quantised import stored_as

EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
LARGEST_ERROR = {"int8": 0.5 / 127, "int8-zp": 1.0 / 255, "int4": 1.0 / 7.5, "int4-zp": 1.0 / 15}
"""Of one weight, as a share of the largest in its group: half a step; at 4 bits the positive end is half a step short,
and a zero point is rounded, too."""


def weight_of(rows, columns, seed=0):
    """With groups of different sizes, one of them zero."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    weight[:, 32:64] *= 10
    weight[0] = 0
    return weight


def test_the_adapter_and_the_engine_know_the_same_methods():
    assert set(METHODS) == set(typing.get_args(MethodName))
    assert typing.get_args(QuantizationName) == _QUANTIZATIONS == ("auto", "stored", "none", *METHODS)


def test_packed_codes_come_back():
    codes = torch.randint(0, 16, (3, 96), dtype=torch.uint8)
    assert pack(codes).shape == (3, 48)
    assert torch.equal(unpack(pack(codes)), codes)


@EVERY_METHOD
def test_weights_come_back_within_their_step(method):
    weight = weight_of(7, 256)
    matrix = METHODS[method].make(weight)
    columns = weight.shape[1] if method.startswith("int8") else group_of(256)
    largest = weight.unflatten(1, (-1, columns)).abs().amax(-1, keepdim=True).expand(-1, -1, columns).flatten(1)
    error = (matrix.dequantised() - weight).abs()
    assert (error <= LARGEST_ERROR[method] * largest * 1.001 * (2 if method.endswith("zp") else 1)).all()
    assert error.max() > 0
    assert (matrix.dequantised()[0] == 0).all()
    assert matrix.nbytes < weight.nbytes / 2


@EVERY_METHOD
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 5])
def test_the_product_is_that_of_the_dequantised_weight(method, dtype, count):
    matrix = METHODS[method].make(weight_of(33, 256).to(dtype)).to(torch.device("cpu"), dtype)
    rows, bias = torch.randn(count, 256).to(dtype), torch.randn(33).to(dtype)
    weight = matrix.to(torch.device("cpu"), torch.float32).dequantised()
    tolerance = 1e-4 if dtype == torch.float32 else 0.02
    for given in (bias, None):
        expected = linear(rows.float(), weight, None if given is None else given.float())
        product = matrix.linear(given)(rows)
        assert product.dtype == dtype
        assert (product.float() - expected).abs().max() <= tolerance * expected.abs().max()


@EVERY_METHOD
def test_parts_are_those_of_the_whole(method):
    matrix = METHODS[method].make(weight_of(12, 256))
    whole, unit = matrix.dequantised(), matrix.column_unit
    assert torch.equal(matrix.rows(slice(2, 7)).dequantised(), whole[2:7])
    index = torch.tensor([5, 0, 5])
    assert torch.equal(matrix.rows(index).dequantised(), whole[index])
    assert torch.equal(stacked([matrix.rows(slice(0, 4)), matrix.rows(slice(4, 12))]).dequantised(), whole)
    if unit < 256:
        assert torch.equal(matrix.columns(unit, 2 * unit).dequantised(), whole[:, unit : 2 * unit])


def test_columns_in_another_order():
    """As GPTQ's act-order stores them."""
    plain = METHODS["int4"].make(weight_of(5, 128))
    order = torch.randperm(128)
    turned = IntegerMatrix(plain.codes, plain.scales, None, 4, order)
    assert torch.equal(turned.dequantised()[:, order], plain.dequantised())
    assert turned.column_unit == 128
    assert turned.layout != plain.layout


@EVERY_METHOD
def test_an_engine_quantises_while_loading(checkpoint_dir, method):
    settings = {"num_blocks": 64, "max_model_len": 64, "dtype": "float32", "threads": 1}
    params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=1)
    plain, quantised = (
        LLM(checkpoint_dir, quantization=name, **settings).generate([[1, 2, 3, 4, 5]], params)[0].completions[0]
        for name in ("none", method)
    )
    assert 0 < abs(plain.logprobs[0] - quantised.logprobs[0]) < 0.5


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_checkpoint_is_not_quantised_twice(tmp_path, checkpoint_dir, make_model, kind):
    model = make_model(hidden_size=64, intermediate_size=128)
    tokenizer = open_checkpoint(checkpoint_dir).tokenizer.backend
    path = write_gguf(tmp_path / "blocks.gguf", model, tokenizer, quantize=stored_as(kind))
    with pytest.raises(ConfigError, match=r"--quantization int8 is for plain weights, .* leave the option out"):
        LLM(path, quantization="int8", num_blocks=64, max_model_len=64)
