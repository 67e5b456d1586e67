"""Weights as codes of 4 or 8 bits in the words that the Triton kernels read, and the conversion of words to numbers.

Slice i of word w holds column n · i + w of its block of n words, so that slice i of a block's words multiplies n
neighbouring columns of the rows. n is 32, or 16 where groups are that small: it divides every group.

Codes become bfloat16 numbers in pairs without a conversion. For whole numbers the mantissa of 128 has room for 7 bits
(after Kim et al., arXiv 2211.10017). For entries of a table see `look_up_of`. Import this module only where
`has_triton` holds, or under Triton's interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0917, RET505
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false

import dataclasses
import functools
from collections.abc import Hashable, Sequence
from typing import Self

import torch
import triton
import triton.language as tl
from torch.nn.functional import pad

_BLOCK_WORDS = (32, 16)
_ENTRIES = 16
_HALF = _ENTRIES // 2
_ROUNDS = tl.constexpr(1.5 * 2**23)
"""Adding and subtracting it rounds a float32 number to a whole one."""
_CAPABILITY = 9  # has arithmetic on pairs of bfloat16 numbers


def words_of_block(group: int) -> int | None:
    """Words of a block whose slices each belong to a single group; None if there is no such number."""
    return next((words for words in _BLOCK_WORDS if group % words == 0), None)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Words:
    """A weight: w[o, i] = scale[g, o] · (number[o, i] − zero[g, o]), where g = i // group.

    Attributes:
        words: int32 [out_features, words of a row]; the last block is padded.
        scales: float32 [groups, out_features], so that the outputs of a tile are adjacent.
        zeros: float32 [groups, out_features]; None where zero is code 0 (8 bits) or 8 (4 bits).
        has_whole_zeros: whether all of them are whole numbers.
        bits: of a code.
        group: columns that share a scale.
        columns: in_features.
        table: float32 [16], the numbers by code; None where codes are the numbers.
        look_up: instructions from `look_up_of`; empty for none.
    """

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    has_whole_zeros: bool
    bits: int
    group: int
    columns: int
    table: torch.Tensor | None = None
    look_up: str = ""

    @classmethod
    def of(
        cls,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None,
        bits: int,
        table: torch.Tensor | None = None,
    ) -> Self:
        """Arranges the codes of a weight.

        Args:
            codes: one in each byte, [out_features, in_features]; 8 bits: int8, 4 bits: uint8 0 to 15.
            scales: [out_features, groups], of a group size that `words_of_block` accepts.
            zeros: [out_features, groups]; None for none, as with a table.
            bits: of a code.
            table: float32 [16]; None for codes that are whole numbers.
        """
        look_up = ""
        if table is not None:
            order, look_up = look_up_of(tuple(table.tolist()))
            olds = torch.tensor(order, device=codes.device)
            table, codes = table[olds], olds.argsort().to(torch.uint8)[codes.int()]
        columns, slices = codes.shape[1], 32 // bits
        group = columns // scales.shape[1]
        count = words_of_block(group)
        assert count is not None
        missing = -columns % (count * slices)
        sliced = pad(codes, (0, missing)).unflatten(1, (-1, slices, count))
        words = torch.zeros_like(sliced[:, :, 0], dtype=torch.int32)
        for number in range(slices):
            words |= (sliced[:, :, number].int() & ((1 << bits) - 1)) << (number * bits)
        groups = -(-(columns + missing) // group)

        def by_group(part: torch.Tensor) -> torch.Tensor:
            return pad(part.float().t(), (0, 0, 0, groups - part.shape[1])).contiguous()

        grouped = None if zeros is None else by_group(zeros)
        has_whole_zeros = grouped is None or torch.equal(grouped, grouped.round())
        return cls(words.flatten(1), by_group(scales), grouped, has_whole_zeros, bits, group, columns, table, look_up)

    @classmethod
    def stacked(cls, weights: Sequence[Self]) -> Self:
        """The outputs of weights whose `layout` is the same, one after the other."""
        first = weights[0]
        assert all(weight.layout == first.layout for weight in weights)
        zeros = [weight.zeros for weight in weights if weight.zeros is not None]
        return dataclasses.replace(
            first,
            words=torch.cat([weight.words for weight in weights]),
            scales=torch.cat([weight.scales for weight in weights], dim=1),
            zeros=torch.cat(zeros, dim=1) if zeros else None,
            has_whole_zeros=all(weight.has_whole_zeros for weight in weights),
        )

    @property
    def layout(self) -> Hashable:
        """Equal for weights that `stacked` can join."""
        table = None if self.table is None else tuple(self.table.tolist())
        return self.bits, self.group, self.columns, self.zeros is None, self.look_up, table

    @property
    def block_words(self) -> int:
        """Words of a block."""
        count = words_of_block(self.group)
        assert count is not None
        return count


def nbytes_of(shape: tuple[int, int], bits: int, group: int, *, has_zeros: bool) -> int:
    """Bytes of the words, scales and zeros of a weight with outputs and inputs as in `shape`."""
    outputs, inputs = shape
    block = (words_of_block(group) or 1) * (32 // bits)
    filled = -(-inputs // block) * block
    return outputs * (filled * bits // 8 + -(-filled // group) * (8 if has_zeros else 4))


@functools.cache
def has_pairs(device: torch.device) -> bool:
    """Whether the device computes with pairs of bfloat16 numbers."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= _CAPABILITY


@functools.cache
def look_up_of(table: tuple[float, ...]) -> tuple[tuple[int, ...], str]:
    """Chooses how the kernels look up entries of a table of 16 numbers as bfloat16, in pairs and without memory.

    `prmt` selects four of eight bytes by four codes. If the highest bit of a code is set, it repeats the highest bit of
    the byte that the other bits select. Entries p and p + 8 whose bytes begin with the same bit therefore come from two
    tables of eight bytes, one indexed by the codes and one by the codes with flipped highest bits. One of them gives
    the entry, the other gives zeros or, where that first bit is one, ones, which the exclusive or of both removes.

    Returns:
        The codes in the order that this requires, and the instructions; empty where the entries have no such order.
    """
    bits = [entry & 0xFFFF for entry in torch.tensor(table).bfloat16().view(torch.int16).tolist()]
    classes: dict[int, list[int]] = {}
    for code, entry in enumerate(bits):
        classes.setdefault(entry & 0x8080, []).append(code)
    zero = next((code for code, entry in enumerate(bits) if entry == 0), None)
    if zero is not None and len(classes[0]) % 2:  # it may have either sign
        classes[0].remove(zero)
        classes.setdefault(0x8000, []).append(zero)
        bits[zero] = 0x8000
    if any(len(codes) % 2 for codes in classes.values()):
        return tuple(range(_ENTRIES)), ""
    order = tuple(code for start in (0, 1) for codes in classes.values() for code in codes[start::2])
    planes = list[int]()
    for shift in (0, 8):
        parts = [bits[code] >> shift & 255 for code in order]
        parts = parts[:_HALF] + [part ^ (255 if parts[p] & 128 else 0) for p, part in enumerate(parts[_HALF:])]
        planes += [int.from_bytes(bytes(parts[first : first + 4]), "little") for first in range(0, _ENTRIES, 4)]
    return order, _look_up(planes)


def _look_up(planes: Sequence[int]) -> str:
    """Instructions that turn words, neighbours in the operand, into pairs of entries for each slice.

    Args:
        planes: the low and then the high bytes of the entries, the first and the second table of each.
    """
    names = [f"{plane}_{part}" for plane in ("low", "high") for part in range(4)]
    lines = [f".reg .b32 other, odd, even, flipped, low, high, byte, none, {', '.join(names)};"]
    # Constants would be moved to registers anew for each use; the assembler does not know that this is zero.
    lines += ["mov.u32 none, %nctaid.x;", "shr.u32 none, none, 30;"]
    lines += [f"xor.b32 {name}, none, {word:#x};" for name, word in zip(names, planes, strict=True)]
    pairs = _LOOKED_UP // 2
    for pair in range(pairs):
        first, second = (f"${8 * pairs + 2 * pair + place}" for place in (0, 1))
        lines += [  # codes of even and of odd slices, those of both words in turns: a0 b0 a2 b2 a4 b4 a6 b6
            f"shl.b32 other, {second}, 4;", f"lop3.b32 even, {first}, other, 0x0F0F0F0F, 0xE4;",
            f"shr.b32 other, {first}, 4;", f"lop3.b32 odd, other, {second}, 0x0F0F0F0F, 0xE4;",
        ]  # fmt: skip
        for codes, slices in (("even", (0, 2, 4, 6)), ("odd", (1, 3, 5, 7))):
            lines.append(f"xor.b32 flipped, {codes}, 0x88888888;")
            for half in (0, 1):
                if half:
                    lines += [f"shr.b32 {codes}, {codes}, 16;", "shr.b32 flipped, flipped, 16;"]
                for plane in ("low", "high"):
                    lines += [
                        f"prmt.b32 {plane}, {plane}_0, {plane}_1, {codes};",
                        f"prmt.b32 byte, {plane}_2, {plane}_3, flipped;", f"xor.b32 {plane}, {plane}, byte;",
                    ]  # fmt: skip
                for part, order in ((0, "0x5140"), (1, "0x7362")):
                    lines.append(f"prmt.b32 ${pairs * slices[2 * half + part] + pair}, low, high, {order};")
    return "{\n" + "\n".join(lines) + "\n}"


def numbers_of_bytes(out: str, pair: str, implied: str = "0x43004300") -> list[str]:
    """Instructions that turn signed codes in the lower bytes of a pair of 16 bits into a pair of bfloat16 numbers.

    The lower seven bits are added to 128; then 128 or, where the byte is negative, 256 is subtracted.

    Args:
        out: register of the numbers.
        pair: register of the codes.
        implied: twice 128 as bfloat16.
    """
    return [
        f"lop3.b32 {out}, {pair}, 0x007F007F, {implied}, 0xEA;",
        f"lop3.b32 sign, {pair}, 0x00800080, {implied}, 0xEA;",
        f"sub.bf16x2 {out}, {out}, sign;",
    ]


def _pairs(bits: int) -> tl.constexpr:
    """Instructions that turn two words, neighbours in the operand, into a pair of bfloat16 numbers for each slice.

    Codes of 4 bits come out larger by 128.
    """
    slices = 32 // bits
    lines = [
        ".reg .b32 low, high, pair, implied, sign;", "mov.b32 implied, 0x43004300;",
        f"prmt.b32 low, ${slices}, ${slices + 1}, 0x5410;", f"prmt.b32 high, ${slices}, ${slices + 1}, 0x7632;",
    ]  # fmt: skip
    for number in range(slices):
        half, shift = ("low", "high")[number * bits // 16], number * bits % 16
        lines += [f"shr.b32 pair, {half}, {shift};"]
        if bits == 4:
            lines += [f"lop3.b32 ${number}, pair, 0x000F000F, implied, 0xEA;"]
        else:
            lines += numbers_of_bytes(f"${number}", "pair", "implied")
    return tl.constexpr("{\n" + "\n".join(lines) + "\n}")


def _registers(bits: int) -> tl.constexpr:
    return tl.constexpr(",".join(["=&r"] * (32 // bits) + ["r", "r"]))


_NIBBLES, _BYTES = _pairs(4), _pairs(8)
_NIBBLE_REGISTERS, _BYTE_REGISTERS = _registers(4), _registers(8)
_LOOKED_UP = 8
"""Words that are looked up together."""
_LOOK_UP_PACK = tl.constexpr(_LOOKED_UP)
_LOOK_UP_REGISTERS = tl.constexpr(",".join(["=&r"] * (4 * _LOOKED_UP) + ["r"] * _LOOKED_UP))


@triton.jit
def codes_of(tile, table, BITS: tl.constexpr, HAS_TABLE: tl.constexpr, LOOK_UP: tl.constexpr, IN_PAIRS: tl.constexpr):
    """The numbers in each slice of words: bfloat16 in pairs, see `_pairs` and `_look_up`, else float32."""
    if IN_PAIRS and BITS == 8:
        return tl.inline_asm_elementwise(
            _BYTES, _BYTE_REGISTERS, [tile],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
        )  # fmt: skip
    elif IN_PAIRS:
        return tl.inline_asm_elementwise(
            LOOK_UP if HAS_TABLE else _NIBBLES, _LOOK_UP_REGISTERS if HAS_TABLE else _NIBBLE_REGISTERS, [tile],
            dtype=(
                tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
            ), is_pure=True, pack=_LOOK_UP_PACK if HAS_TABLE else 2,
        )  # fmt: skip
    elif BITS == 8:
        return _signed(tile), _signed(tile >> 8), _signed(tile >> 16), _signed(tile >> 24)
    else:
        return (
            _entry(tile, table, HAS_TABLE), _entry(tile >> 4, table, HAS_TABLE), _entry(tile >> 8, table, HAS_TABLE),
            _entry(tile >> 12, table, HAS_TABLE), _entry(tile >> 16, table, HAS_TABLE),
            _entry(tile >> 20, table, HAS_TABLE), _entry(tile >> 24, table, HAS_TABLE),
            _entry(tile >> 28, table, HAS_TABLE),
        )  # fmt: skip


@triton.jit
def _signed(words):
    return (((words & 255) ^ 128) - 128).to(tl.float32)


@triton.jit
def _entry(words, table, HAS_TABLE: tl.constexpr):
    if HAS_TABLE:
        return tl.load(table + (words & 15))
    else:
        return (words & 15).to(tl.float32)


@triton.jit
def less_zero(numbers, zero, ZEROS: tl.constexpr, IMPLIED: tl.constexpr):
    """Numbers of a slice [outputs, words] minus the zero of each output [outputs].

    Args:
        numbers: of the slice, from `codes_of`.
        zero: float32; ignored where ZEROS is 0.
        ZEROS: 0 for none, 1 for whole numbers, 2 for others.
        IMPLIED: constant by which the numbers are too large.
    """
    if ZEROS == 0 and IMPLIED != 0:
        numbers = (numbers - IMPLIED).to(numbers.dtype)
    if ZEROS > 0 and numbers.dtype == tl.float32:
        numbers -= (zero + IMPLIED)[:, None]
    if ZEROS > 0 and numbers.dtype != tl.float32:  # in two pieces: one would be off by up to a half of a code's step
        zero += IMPLIED
        whole = zero
        if ZEROS == 2 and IMPLIED == 0:
            whole = (zero + _ROUNDS) - _ROUNDS
        whole = whole.to(tl.uint32, bitcast=True) >> 16  # of numbers from 128 on bfloat16 has no more than the whole
        numbers -= whole.to(tl.uint16).to(tl.bfloat16, bitcast=True)[:, None]
        if ZEROS == 2:
            rest = (zero - (whole << 16).to(tl.float32, bitcast=True)).to(tl.uint32, bitcast=True)
            # Rounded half up; a conversion takes several times as long.
            numbers -= ((rest + 0x8000) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)[:, None]
    return numbers
