"""Look-up tables and GGUF blocks on a GPU: the Triton kernels in Triton's interpreter, against float64.

The instructions that the interpreter cannot run are carried out here.
"""

import dataclasses
import random

import pytest
import torch

from bakeoff.reference_engine.kernels import code_words, coded_products
from bakeoff.reference_engine.kernels.blocks import FORMATS
from bakeoff.reference_engine.kernels.code_words import Words, look_up_of, nbytes_of
from bakeoff.reference_engine.models.weights import Weights
from bakeoff.reference_engine.quantization import coded_linear, mxfp4, nf4
from bakeoff.reference_engine.quantization.block_scales import PlainScales
from bakeoff.reference_engine.quantization.blocks import BlockMatrix
from bakeoff.reference_engine.quantization.coded_linear import CodedLinear
from bakeoff.reference_engine.quantization.look_up import LookUpMatrix
from bakeoff.reference_engine.quantization.matrix import SlabLinear
from tests.reference_engine.gguf_blocks import random_blocks
from tests.reference_engine.kernels.test_triton_kernels import CPU

E2M1 = (*mxfp4.MAGNITUDES, *(-number for number in mxfp4.MAGNITUDES))
MAKERS = {
    "nf4": nf4.quantised,
    "nf4-double": lambda weight: nf4.quantised(weight, nested=True),
    "mxfp4": mxfp4.quantised,
}
EVERY_ROWS = pytest.mark.parametrize(("rows", "dtype"), [(1, torch.float32), (3, torch.float16), (70, torch.float16)])


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(coded_linear, "has_triton", lambda device: True)


def carried_out(instructions, words):
    """Registers after PTX instructions, by name: the outputs come first."""
    outputs = 4 * len(words)
    registers = {f"${outputs + number}": word for number, word in enumerate(words)} | {"%nctaid.x": 7}

    def prmt(first, second, selector):
        whole, chosen = (first | second << 32).to_bytes(8, "little"), 0
        for place in range(4):
            code = selector >> 4 * place & 15
            byte = whole[code & 7]
            chosen |= (byte if code < 8 else 255 * (byte >> 7)) << 8 * place
        return chosen

    def lop3(first, second, third, table):
        assert table == 0xE4
        return first & third | second & ~third

    operations = {
        "mov.u32": lambda a: a, "xor.b32": lambda a, b: a ^ b, "shl.b32": lambda a, b: a << b, "prmt.b32": prmt,
        "shr.b32": lambda a, b: a >> b, "shr.u32": lambda a, b: a >> b, "lop3.b32": lop3,
    }  # fmt: skip
    for line in instructions.strip("{}\n").split("\n")[1:]:  # behind the declarations
        operation, rest = line.rstrip(";").split(" ", 1)
        target, *names = rest.split(", ")
        values = [registers[name] if name in registers else int(name, 0) for name in names]
        registers[target] = operations[operation](*values) & 0xFFFFFFFF
    return [registers[f"${number}"] for number in range(outputs)]


@pytest.mark.parametrize("table", [nf4.VALUES, E2M1], ids=["nf4", "mxfp4"])
def test_instructions_look_up_the_entries_of_all_codes(table):
    order, instructions = look_up_of(table)
    entries = torch.tensor([table[code] for code in order]).bfloat16()
    assert sorted(order) == list(range(16))
    rng = random.Random(1)
    words = [rng.getrandbits(32) for _ in range(code_words._LOOKED_UP)]
    looked_up = torch.tensor(carried_out(instructions, words)).to(torch.uint32).view(torch.bfloat16).view(8, -1)
    for number, column in enumerate(looked_up):
        codes = [word >> 4 * number & 15 for word in words]
        assert column.tolist() == entries[codes].tolist()


def test_a_table_whose_entries_do_not_pair_is_read_from_memory():
    order, instructions = look_up_of((-1.0, *range(1, 16)))
    assert (order, instructions) == (tuple(range(16)), "")


@EVERY_ROWS
@pytest.mark.parametrize("method", MAKERS)
@pytest.mark.parametrize("inputs", [512, 576])
def test_products_with_table_entries_equal_float64(method, rows, dtype, inputs):
    """Of rows that are parts of longer ones, with NaN beyond them."""
    matrix = MAKERS[method](torch.randn(64, inputs) / 20).to(CPU, dtype)
    x = torch.full((rows + 1, 2 * inputs), float("nan"), dtype=dtype)[:rows, :inputs].normal_()
    bias = torch.randn(64).to(dtype)
    product = matrix.linear(bias, keeps_float32=True)
    assert type(product) is CodedLinear
    assert matrix.has_kernel(CPU, dtype)
    exact = x.double() @ matrix.to(CPU, torch.float32).dequantised().double().T + bias.double()
    bound = 1e-5 if dtype == torch.float32 else 3e-3
    torch.testing.assert_close(product(x).double(), exact, atol=bound, rtol=bound)


@EVERY_ROWS
@pytest.mark.parametrize("name", FORMATS)
def test_products_with_repacked_blocks_equal_float64(name, rows, dtype):
    matrix = random_blocks(name, 64, 768, seed=rows).to(CPU, dtype)
    x = torch.full((rows + 1, 1000), float("nan"), dtype=dtype)[:rows, :768].normal_() / 30
    product = matrix.linear(None, keeps_float32=True)
    assert type(product) is CodedLinear
    exact = x.double() @ matrix.to(CPU, torch.float32).dequantised().double().T
    bound = 1e-5 if dtype == torch.float32 else 3e-3
    torch.testing.assert_close(product(x).double(), exact, atol=bound, rtol=bound)


@pytest.mark.parametrize("name", FORMATS)
def test_repacked_blocks_are_the_same_numbers(name):
    """A scale of zero with an offset included, and an offset of thousands of scales."""
    matrix = random_blocks(name, 64, 256)
    if matrix.format.has_offsets:
        matrix.blocks[5, : matrix.format.bytes] = 0x11
        halves = {"Q4_1": 0, "Q5_1": 0, "Q4_K": 0, "Q5_K": 0, "Q2_K": 80}[name]
        matrix.blocks[5, halves : halves + 2] = 0
        matrix.blocks[7, halves : halves + 2] = torch.tensor([1, 0], dtype=torch.uint8)
    plain = coded_products.plain(matrix.linear(None).weight, torch.float32)
    expected = matrix.dequantised()
    assert not matrix.format.has_offsets or expected[5, :16].unique().numel() == 1
    torch.testing.assert_close(plain, expected, atol=1e-7, rtol=1e-6)
    assert not expected.isnan().any()


@pytest.mark.parametrize("method", MAKERS)
def test_plain_numbers_are_the_dequantised_ones(method):
    matrix = MAKERS[method](torch.randn(64, 320) / 20)
    plain = coded_products.plain(matrix.linear(None).weight, torch.float32)
    assert torch.equal(plain, matrix.dequantised())


@pytest.mark.parametrize(
    "matrix",
    [
        nf4.quantised(torch.randn(64, 576)), nf4.quantised(torch.randn(64, 576), nested=True),
        mxfp4.quantised(torch.randn(128, 288)), random_blocks("Q4_K", 64, 512), random_blocks("Q6_K", 64, 256),
        random_blocks("Q4_0", 64, 96),
    ],
)  # fmt: skip
def test_bytes_on_the_device_are_those_that_are_kept(matrix):
    weight = matrix.linear(None).weight
    tensors = [getattr(weight, field.name) for field in dataclasses.fields(Words)]
    assert matrix.held_bytes(CPU, torch.float32) == sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))


def test_a_weight_without_whole_tiles_is_dequantised():
    matrix = nf4.quantised(torch.randn(60, 128))
    assert not matrix.has_kernel(CPU, torch.float32)
    assert type(matrix.linear(None)) is SlabLinear
    assert matrix.held_bytes(CPU, torch.float32) == matrix.nbytes
    assert nbytes_of((64, 128), 4, 64, has_zeros=False) == 64 * (256 // 2 + 4 * 4)


class OneBlockMatrix:
    """A source of one matrix, whatever its name."""

    def __init__(self):
        self.matrix = random_blocks("Q4_0", 64, 64)

    def get_quantised(self, name):
        return self.matrix

    def get(self, name, dtype=None, device=None):
        return self.matrix.dequantised()


@pytest.mark.parametrize(("quantization", "is_kept"), [("auto", False), ("stored", True)])
def test_embeddings_in_blocks_are_plain_on_a_gpu_and_layers_are_not(quantization, is_kept):
    weights = Weights(OneBlockMatrix(), torch.float32, torch.device("meta"), quantization=quantization)
    assert isinstance(weights.matrix("model.embed_tokens.weight"), BlockMatrix) == is_kept
    assert isinstance(weights._stored("model.layers.0.mlp.down_proj.weight"), BlockMatrix)


def test_blocks_become_plain_where_results_must_not_depend_on_the_batch():
    for invariant in (False, True):
        weights = Weights(OneBlockMatrix(), torch.float32, CPU, quantization="auto", batch_invariant=invariant)
        weights.rows("model.layers.0.mlp.", "down_proj")
        assert (weights.quantised_bytes == 0) == invariant


def test_a_table_of_another_kind_works_without_pairs():
    codes = torch.randint(0, 16, (64, 128), dtype=torch.uint8)
    table = torch.tensor([-1.0, *range(1, 16)])
    matrix = LookUpMatrix.of(codes, table, PlainScales(torch.rand(64, 2)), torch.float32)
    x = torch.randn(2, 128)
    torch.testing.assert_close(matrix.linear(None)(x), x @ matrix.dequantised().T, atol=1e-3, rtol=1e-5)
