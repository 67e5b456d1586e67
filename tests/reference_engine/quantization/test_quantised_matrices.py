"""Every quantised matrix: its numbers, its parts, and its product."""

import copy
import typing

import pytest
import torch
from torch.nn.functional import linear

from bakeoff.engines.adapters.reference import _QUANTIZATIONS
from bakeoff.reference_engine.core.config import QuantizationName
from bakeoff.reference_engine.core.quantization_names import MethodName
from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.offline import LLM
from bakeoff.reference_engine.quantization.integer_matrix import IntegerMatrix, pack, unpack
from bakeoff.reference_engine.quantization.matrix import stacked
from bakeoff.reference_engine.quantization.methods import METHODS
from tests.reference_engine.loading.test_gguf import write_gguf
from tests.reference_engine.tools.test_gguf_quantised import stored_as

EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
LARGEST_ERROR = {
    "int8": (256, 0.5 / 127),
    "int8-zp": (256, 2.0 / 255),
    "int4": (128, 1.0 / 7.5),
    "int4-zp": (128, 2.0 / 15),
    "fp8": (256, 16 / 448),
    "w8a8": (256, 0.5 / 127),
    "llm-int8": (256, 0.5 / 127),
    "nf4": (64, 0.152),
    "nf4-double": (64, 0.2),
    "mxfp4": (32, 0.25),
}
"""Neighbours that share a scale, and the largest error of one weight as a share of the largest in its group: half a
step; of 4-bit integers the positive end is half a step short, a zero point is rounded, too, as are nested scales, and
MXFP4 has 6 for up to 8."""
WEIGHT_ONLY = [name for name in METHODS if name not in {"w8a8", "llm-int8"}]
"""Methods that leave activations as they are, on a CPU."""


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
    columns, share = LARGEST_ERROR[method]
    largest = weight.unflatten(1, (-1, columns)).abs().amax(-1, keepdim=True).expand(-1, -1, columns).flatten(1)
    error = (matrix.dequantised() - weight).abs()
    assert (error <= share * largest * 1.001).all()
    assert error.max() > 0
    assert (matrix.dequantised()[0] == 0).all()
    assert matrix.nbytes < weight.nbytes / 2


@EVERY_METHOD
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 5])
def test_the_product_is_that_of_the_dequantised_weight(method, dtype, count):
    """As far as results are rounded to 16 bits, or rows to 8 by the kernels for the CPU."""
    matrix = METHODS[method].make(weight_of(33, 256).to(dtype)).to(torch.device("cpu"), dtype)
    rows, bias = torch.randn(count, 256).to(dtype), torch.randn(33).to(dtype)
    weight = matrix.to(torch.device("cpu"), torch.float32).dequantised()
    is_exact = dtype == torch.float32 and method in WEIGHT_ONLY and not matrix.has_kernel(rows.device, dtype)
    tolerance = 1e-4 if is_exact else 0.02
    for given in (bias, None):
        expected = linear(rows.float(), weight, None if given is None else given.float())
        product = matrix.linear(given)(rows)
        assert product.dtype == dtype
        assert (product.float() - expected).abs().max() <= tolerance * expected.abs().max()


@EVERY_METHOD
def test_parts_are_those_of_the_whole(method):
    matrix = METHODS[method].make(weight_of(12, 256))
    whole, unit = matrix.dequantised(), matrix.column_unit
    assert matrix.shape == whole.shape == (12, 256)
    assert torch.equal(matrix.rows(slice(2, 7)).dequantised(), whole[2:7])
    index = torch.tensor([5, 0, 5])
    assert torch.equal(matrix.rows(index).dequantised(), whole[index])
    assert torch.equal(stacked([matrix.rows(slice(0, 4)), matrix.rows(slice(4, 12))]).dequantised(), whole)
    if unit < 256:
        assert torch.equal(matrix.columns(unit, 2 * unit).dequantised(), whole[:, unit : 2 * unit])
        assert torch.equal(matrix.rows(index).columns(unit, 256).dequantised(), whole[index, unit:])


@EVERY_METHOD
def test_matrices_with_scales_of_their_own_stack_exactly(method):
    """As query, key and value projections do."""
    parts = [METHODS[method].make(weight_of(rows, 256, seed) * 10**seed) for seed, rows in enumerate((8, 3, 5))]
    assert len({part.layout for part in parts}) == 1
    whole = torch.cat([part.dequantised() for part in parts])
    assert torch.equal(stacked(parts).dequantised(), whole)
    assert torch.equal(stacked(parts).rows(slice(7, 12)).dequantised(), whole[7:12])


@EVERY_METHOD
def test_a_matrix_moves_with_its_dtype_and_counts_its_bytes(method):
    matrix = METHODS[method].make(weight_of(12, 256))
    moved = matrix.to(torch.device("meta"), torch.bfloat16)
    assert moved.dtype == torch.bfloat16
    assert moved.nbytes == matrix.nbytes
    assert moved.dequantised().device.type == "meta"
    assert moved.dequantised().dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("method", "bits"),
    [("fp8", 8), ("w8a8", 8), ("nf4", 4.5), ("nf4-double", 4.127), ("mxfp4", 4.25)],
)
def test_bits_of_a_weight(method, bits):
    rows, columns = 64, 4096
    matrix = METHODS[method].make(torch.randn(rows, columns))
    # Beside the published bits: tables, and a scale or a place for each row, 4 bytes.
    assert bits <= 8 * matrix.nbytes / (rows * columns) <= bits + 0.05


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


@pytest.mark.parametrize("method", ["fp8", "nf4", "nf4-double", "mxfp4"])
def test_an_engine_computes_as_with_dequantised_weights(tmp_path, checkpoint_dir, hf_model, save_checkpoint, method):
    twin = copy.deepcopy(hf_model)
    with torch.no_grad():
        for name, weight in twin.model.layers.named_parameters():
            if "norm" not in name and (matrix := METHODS[method].make(weight)) is not None:
                weight.copy_(matrix.dequantised())
    params = SamplingParams(max_tokens=3, temperature=0.0, logprobs=1)
    settings = {"num_blocks": 64, "max_model_len": 64, "dtype": "float32", "threads": 1}
    plain, quantised = (
        LLM(path, quantization=name, **settings).generate([[1, 2, 3]], params)[0].completions[0]
        for path, name in ((save_checkpoint(tmp_path, twin), "none"), (checkpoint_dir, method))
    )
    assert quantised.token_ids == plain.token_ids
    assert quantised.logprobs == pytest.approx(plain.logprobs, abs=1e-4)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_checkpoint_is_not_quantised_twice(tmp_path, checkpoint_dir, make_model, kind):
    model = make_model(hidden_size=64, intermediate_size=128)
    tokenizer = open_checkpoint(checkpoint_dir).tokenizer.backend
    path = write_gguf(tmp_path / "blocks.gguf", model, tokenizer, quantize=stored_as(kind))
    with pytest.raises(ConfigError, match=r"--quantization int8 is for plain weights, .* leave the option out"):
        LLM(path, quantization="int8", num_blocks=64, max_model_len=64)
