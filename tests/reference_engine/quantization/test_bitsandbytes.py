"""4-bit weights in the bytes of bitsandbytes, there and back."""

import json

import pytest
import torch

from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.quantization import nf4
from bakeoff.reference_engine.quantization.bitsandbytes import encoded, matrix_of, plain_of, tensors_of

PLACES = torch.arange(70)
SAMPLE = ((PLACES % 23 - 9) * (1 + (PLACES >= 64))).view(7, 10).bfloat16()
"""Two blocks, the second one short; both span rows."""
STATE = '{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [7, 10]'
NESTED = ', "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 19.5'


def text_of(tensor):
    return bytes(tensor.tolist()).decode()


def test_bytes_are_those_of_bitsandbytes():
    """What bitsandbytes 0.50.2 stored of the same weight."""
    plain, nested = encoded(SAMPLE, "w"), encoded(SAMPLE, "w", nested=True)
    codes = "112234556789abbcddeeeff112234556789abbcddeeeff112234556789abbcddeeeff1"
    for tensors in (plain, nested):
        assert tensors["w"].shape == (35, 1)
        assert bytes(tensors["w"].flatten().tolist()).hex() == codes
        assert tensors["w.quant_map"].tolist() == pytest.approx(nf4.VALUES)
    assert plain["w.absmax"].tolist() == [13.0, 26.0]
    assert text_of(plain["w.quant_state.bitsandbytes__nf4"]) == STATE + "}"
    assert nested["w.absmax"].tolist() == [0, 255]
    assert nested["w.nested_absmax"].tolist() == [6.5]
    assert torch.equal(nested["w.nested_quant_map"], nf4.dynamic_map())
    assert text_of(nested["w.quant_state.bitsandbytes__nf4"]) == STATE + NESTED + "}"


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_matrix_comes_back(nested, dtype):
    weight = torch.randn(24, 832).to(dtype)
    weight[3] = 0
    matrix = nf4.quantised(weight, nested=nested)
    tensors = encoded(weight, "w", nested=nested)
    read = matrix_of(tensors, "w")
    assert (read.dtype, read.shape, read.block) == (dtype, (24, 832), 64)
    assert torch.equal(read.dequantised(), matrix.dequantised())
    assert torch.equal(plain_of(tensors, "w"), matrix.dequantised())
    again = tensors_of(matrix, "w")
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("shape", [(7, 96), (3, 5), (3, 5, 11), (100,)])
@pytest.mark.parametrize("nested", [False, True])
def test_blocks_that_span_rows_become_plain(shape, nested):
    weight = torch.randn(shape)
    tensors = encoded(weight, "w", nested=nested)
    assert matrix_of(tensors, "w") is None
    plain = plain_of(tensors, "w")
    assert (plain.shape, plain.dtype) == (weight.shape, torch.float32)
    assert (plain - weight).abs().max() <= 0.2 * weight.abs().max()


def test_codes_are_found_by_the_stored_map_in_any_storage():
    """FP4 numbers are not ascending, and bytes may be stored as another dtype."""
    tensors = encoded(torch.randn(4, 128), "w")
    tensors["w.quant_map"] = tensors["w.quant_map"].flip(0)
    tensors["w"] = tensors["w"].view(-1).view(torch.bfloat16)[:, None]
    state = json.loads(text_of(tensors.pop("w.quant_state.bitsandbytes__nf4"))) | {"quant_type": "fp4"}
    tensors["w.quant_state.bitsandbytes__fp4"] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    codes = tensors["w"].view(-1).view(torch.uint8)
    numbers = tensors["w.quant_map"][torch.stack((codes >> 4, codes & 15), dim=1).long()].view(4, 2, 64)
    expected = (numbers * tensors["w.absmax"].view(4, 2, 1)).view(4, 128)
    assert torch.equal(matrix_of(tensors, "w").dequantised(), expected)
    assert torch.equal(plain_of(tensors, "w"), expected)


def as_bytes(text):
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("name", "damaged", "message"),
    [
        ("w", torch.zeros(9, 1, dtype=torch.uint8), "tensor w has 9 bytes of 4-bit codes for the shape"),
        ("w.absmax", torch.zeros(3), "tensor w.absmax has 3 elements, not 2"),
        ("w.absmax", None, "tensor w.absmax is missing"),
        ("w.nested_absmax", torch.zeros(2), "tensor w.nested_absmax has 2 elements, not 1"),
        ("w.quant_map", torch.zeros(15), "tensor w.quant_map has 15 elements, not 16"),
        ("w.quant_state.bitsandbytes__nf4", None, "w.quant_state.bitsandbytes__nf4 is missing"),
        ("w.quant_state.bitsandbytes__nf4", as_bytes("{"), "is not what bitsandbytes writes"),
        ("w.quant_state.bitsandbytes__nf4", as_bytes(STATE.replace("64", "0") + "}"), "is not what bitsandbytes"),
        ("w.quant_state.bitsandbytes__nf4", as_bytes(STATE.replace("bfloat16", "int8") + "}"), "the dtype 'int8'"),
    ],
)
def test_damaged_tensors_get_a_line(name, damaged, message):
    tensors = encoded(SAMPLE, "w", nested=True)
    tensors.pop(name)
    if damaged is not None:
        tensors[name] = damaged
    with pytest.raises(CheckpointError, match=message) as raised:
        plain_of(tensors, "w")
    assert "\n" not in str(raised.value)
    assert "fetch the checkpoint again" in str(raised.value)
