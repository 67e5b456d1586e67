"""4-bit weights in the names and layout of bitsandbytes' checkpoints (`QuantState` in its functional.py).

Blocks are cut from the flattened tensor, so they may span rows. A byte holds two codes, the first in its high half.
Beside `NAME`, uint8 [bytes, 1], lie

- `NAME.absmax`: scales, float32 [blocks], or uint8 codes of them;
- `NAME.quant_map`: what codes stand for, float32 [16];
- `NAME.nested_absmax` and `NAME.nested_quant_map`, float32: of the codes of scales;
- `NAME.quant_state.bitsandbytes__nf4` (or `fp4`): JSON in UTF-8 as uint8, with shape, dtype and sizes of blocks.
"""

import json
import math
from collections.abc import Mapping
from typing import Annotated

import msgspec
import torch

from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.quantization import nf4
from bakeoff.reference_engine.quantization.block_scales import BlockScales, NestedScales, PlainScales
from bakeoff.reference_engine.quantization.integer_matrix import UNIT, unpack
from bakeoff.reference_engine.quantization.look_up import LookUpMatrix, in_blocks

_STATE = "quant_state.bitsandbytes__"
_KINDS = ("nf4", "fp4")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


_Size = Annotated[int, msgspec.Meta(ge=1)]


class _State(msgspec.Struct, frozen=True):
    blocksize: _Size
    dtype: str
    shape: tuple[_Size, ...]
    nested_blocksize: _Size | None = None
    nested_offset: float = 0.0


_decode_state = msgspec.json.Decoder(_State).decode


def matrix_of(tensors: Mapping[str, torch.Tensor], name: str) -> LookUpMatrix | None:
    """The stored matrix; None if blocks span rows, which `plain_of` reads.

    Raises:
        CheckpointError: a tensor is missing or does not fit the others.
    """
    state = _state(tensors, name)
    if len(state.shape) != 2 or state.shape[1] % state.blocksize or state.blocksize % UNIT:
        return None
    codes, scales = _codes(tensors, name, state), _scales(tensors, name, state, state.shape[1] // state.blocksize)
    table = _tensor(tensors, f"{name}.quant_map", 16)
    return LookUpMatrix.of(codes.view(state.shape), table.float(), scales, _dtype(state, name))


def plain_of(tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """The stored tensor, dequantised to its original shape and dtype.

    Raises:
        CheckpointError: a tensor is missing or does not fit the others.
    """
    state = _state(tensors, name)
    codes, scales = _codes(tensors, name, state), _scales(tensors, name, state, 1).values()
    numbers = _tensor(tensors, f"{name}.quant_map", 16).float()[codes.int()]
    blocks = in_blocks(numbers, state.blocksize) * scales
    return blocks.flatten()[: len(numbers)].view(state.shape).to(_dtype(state, name))


def encoded(weight: torch.Tensor, name: str, *, nested: bool = False) -> dict[str, torch.Tensor]:
    """A tensor of any shape in bitsandbytes' NF4 format.

    Args:
        weight: float32, bfloat16 or float16.
        name: of the tensor.
        nested: whether scales are quantised, too.

    Returns:
        Tensors by their names in a checkpoint.
    """
    flat = weight.float().flatten()
    codes, absmax = nf4.coded(in_blocks(flat, nf4.BLOCK), torch.tensor(nf4.VALUES, device=weight.device))
    scales = nf4.nested_scales(absmax[:, None]) if nested else PlainScales(absmax[:, None])
    return _tensors(name, codes.flatten()[: len(flat)], scales, tuple(weight.shape), weight.dtype)


def tensors_of(matrix: LookUpMatrix, name: str) -> dict[str, torch.Tensor]:
    """The tensors in which bitsandbytes stores an NF4 matrix from `nf4.quantised` or `matrix_of`."""
    return _tensors(name, unpack(matrix.codes).flatten(), matrix.scales, matrix.shape, matrix.dtype)


def _tensors(
    name: str, codes: torch.Tensor, scales: BlockScales, shape: tuple[int, ...], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Codes are uint8 [elements]; scales are those of all blocks in order."""
    blocksize = nf4.BLOCK
    first, second = in_blocks(codes, 2, nf4.ZERO).unbind(1)
    tensors = {name: (first << 4 | second)[:, None], f"{name}.quant_map": torch.tensor(nf4.VALUES)}
    state: dict[str, object] = {"quant_type": "nf4", "blocksize": blocksize, "dtype": _NAMES[dtype], "shape": shape}
    if isinstance(scales, NestedScales):
        tensors[f"{name}.absmax"] = scales.codes.flatten()
        tensors[f"{name}.nested_absmax"] = scales.absmax
        tensors[f"{name}.nested_quant_map"] = scales.table.clone()  # safetensors refuses tensors that share memory
        offset = float(scales.offsets[0])
        state |= {"nested_blocksize": scales.group, "nested_dtype": "float32", "nested_offset": offset}
    else:
        tensors[f"{name}.absmax"] = scales.values().flatten()
    text = json.dumps(state).encode()
    tensors[f"{name}.{_STATE}nf4"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return tensors


def _state(tensors: Mapping[str, torch.Tensor], name: str) -> _State:
    for kind in _KINDS:
        stored = tensors.get(f"{name}.{_STATE}{kind}")
        if stored is None:
            continue
        try:
            return _decode_state(stored.cpu().numpy().tobytes())
        except msgspec.MsgspecError as error:
            raise CheckpointError(
                f"{name}.{_STATE}{kind} is not what bitsandbytes writes ({error}); fetch the checkpoint again"
            ) from error
    raise CheckpointError(f"{name}.{_STATE}nf4 is missing; fetch the checkpoint again")


def _codes(tensors: Mapping[str, torch.Tensor], name: str, state: _State) -> torch.Tensor:
    """Uint8 [elements]; the bytes may be stored as numbers of another dtype."""
    elements = math.prod(state.shape)
    stored = _tensor(tensors, name).contiguous().flatten().view(torch.uint8)
    if len(stored) != -(-elements // 2):
        raise _damaged(name, f"{len(stored)} bytes of 4-bit codes for the shape {list(state.shape)}")
    return torch.stack((stored >> 4, stored & 15), dim=1).flatten()[:elements]


def _scales(tensors: Mapping[str, torch.Tensor], name: str, state: _State, columns: int) -> BlockScales:
    """Scales, `columns` of them in each row."""
    blocks = -(-math.prod(state.shape) // state.blocksize)
    absmax = _tensor(tensors, f"{name}.absmax", blocks).view(-1, columns)
    if state.nested_blocksize is None:
        return PlainScales(absmax.float())
    table = _tensor(tensors, f"{name}.nested_quant_map", 256).float()
    nested = _tensor(tensors, f"{name}.nested_absmax", -(-blocks // state.nested_blocksize)).float()
    return NestedScales.of(absmax, table, nested, torch.tensor(state.nested_offset), state.nested_blocksize)


def _tensor(tensors: Mapping[str, torch.Tensor], name: str, elements: int | None = None) -> torch.Tensor:
    stored = tensors.get(name)
    if stored is None:
        raise CheckpointError(f"tensor {name} is missing; fetch the checkpoint again")
    if elements is not None and stored.numel() != elements:
        raise _damaged(name, f"{stored.numel()} elements, not {elements}")
    return stored


def _damaged(name: str, problem: str) -> CheckpointError:
    return CheckpointError(f"tensor {name} has {problem}: it is damaged, fetch the checkpoint again")


def _dtype(state: _State, name: str) -> torch.dtype:
    dtype = _DTYPES.get(state.dtype)
    if dtype is None:
        raise _damaged(name, f"the dtype {state.dtype!r}, which is none of {', '.join(_DTYPES)}")
    return dtype
