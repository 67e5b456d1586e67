"""Keys and values in fewer bits: each row, a token's key or value in one head, is rounded on its own.

| kind | a row of `dim` elements | bytes at dim 64 | of bf16 |
|---|---|---|---|
| `int8` | dim codes of -127 … 127 and a scale | 64 + 2 | 0.516 |
| `fp8` | dim e4m3 numbers up to 448 (arXiv:2209.05433) and a scale | 64 + 2 | 0.516 |
| `int4` | dim codes of 0 … 15, two a byte; for each group of at most 32 a step and an offset | 32 + 8 | 0.313 |

Scales are bfloat16: two bytes, and no value of any model is too large or too small for it. They are rounded up, so
that the largest element of a row is never clipped. Each token is rounded on its own when it is written, so blocks can
be copied, shared, swapped and filled in any order.

Four bits need the groups and the offset. A few channels of the keys are many times larger than all others and of one
sign (KIVI, arXiv:2402.02750; KVQuant, arXiv:2401.18079), and one scale for the row leaves few codes to the others.
SmolLM2-135M's perplexity grew by 37 % with one scale for a row, by 15 % with an offset beside it, by 6 % with groups of
32, by 4 % with groups of 16, which take 48 bytes (2,048 tokens of this project's documents). Those papers give keys one
scale for each channel over many tokens instead; that rounds better, but a block's scales would change while it fills,
so its newest tokens would have to be kept unrounded beside it.
"""

import functools
from collections.abc import Sequence
from typing import Protocol

import torch

from bakeoff.reference_engine.core.quantization_names import KvCacheDtypeName
from bakeoff.reference_engine.kv_cache.layout import GROUP, LayerLayout
from bakeoff.reference_engine.kv_cache.storage import PlainStore, StoreMaker, lazy_zeros

_LEAST = 2.0**-126  # replaces a divisor of 0, the scale of a row of zeros


class Codec(Protocol):
    """Storage format of a row."""

    def parts(self, dim: int) -> Sequence[tuple[int, torch.dtype]]:
        """Width and type of each tensor that holds rows of `dim` elements."""
        ...

    def encode(self, rows: torch.Tensor) -> Sequence[torch.Tensor]:
        """Rows float32 [..., dim] -> the tensors that `parts` describes, each [..., width]."""
        ...

    def decode(self, parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        """The tensors that `encode` returned -> [..., dim]."""
        ...


class Int8:
    """Error at most absmax / 127 / 2, and 1/128 of that because the scale is rounded."""

    def parts(self, dim: int) -> Sequence[tuple[int, torch.dtype]]:
        return [(dim, torch.int8), (1, torch.bfloat16)]

    def encode(self, rows: torch.Tensor) -> Sequence[torch.Tensor]:
        scaled, scale = _scaled(rows, 127.0)
        return [scaled.round_().to(torch.int8), scale]

    def decode(self, parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        codes, scale = parts
        return _scaled_back(codes.to(_product_dtype(dtype)), scale, dtype)


class Fp8:
    """Error at most 1/16 of the element, or absmax / 448 / 1024 for subnormal elements."""

    def parts(self, dim: int) -> Sequence[tuple[int, torch.dtype]]:
        """Bytes, because few operators support the type itself."""
        return [(dim, torch.uint8), (1, torch.bfloat16)]

    def encode(self, rows: torch.Tensor) -> Sequence[torch.Tensor]:
        scaled, scale = _scaled(rows, 448.0)
        return [scaled.to(torch.float8_e4m3fn).view(torch.uint8), scale]

    def decode(self, parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        codes, scale = parts
        wide = _product_dtype(dtype)
        if codes.is_cuda:
            return _scaled_back(codes.view(torch.float8_e4m3fn).to(wide), scale, dtype)
        # A look-up, because torch's own conversion on the CPU takes five times as long.
        numbers = _e4m3_numbers(wide).index_select(0, codes.flatten().int())
        return _scaled_back(numbers.view(codes.shape), scale, dtype)


class Int4:
    """Error at most (max - min) / 15 / 2 of its group, and a little because step and offset are rounded."""

    def parts(self, dim: int) -> Sequence[tuple[int, torch.dtype]]:
        """Codes of the row's first half in the lower four bits, steps and offsets."""
        groups = -(-dim // GROUP)
        return [(dim // 2, torch.uint8), (groups, torch.bfloat16), (groups, torch.bfloat16)]

    def encode(self, rows: torch.Tensor) -> Sequence[torch.Tensor]:
        groups = rows.split(_group_size(rows.shape[-1]), dim=-1)
        offset = _to_bfloat16(torch.stack([group.amin(dim=-1) for group in groups], dim=-1), up=False)
        span = torch.stack([group.amax(dim=-1) for group in groups], dim=-1) - offset.float()
        step = _to_bfloat16(span / 15.0, up=True)
        codes = [
            ((group - offset[..., i, None]) / step[..., i, None].float().clamp_min(_LEAST)).round_().clamp_(0.0, 15.0)
            for i, group in enumerate(groups)
        ]
        low, high = torch.cat(codes, dim=-1).to(torch.uint8).chunk(2, dim=-1)
        return [low | (high << 4), step, offset]

    def decode(self, parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        packed, step, offset = parts
        codes = torch.cat((packed & 15, packed >> 4), dim=-1).to(dtype)
        size = _group_size(codes.shape[-1])
        for i, group in enumerate(codes.split(size, dim=-1)):
            group.mul_(step[..., i, None].to(dtype)).add_(offset[..., i, None].to(dtype))
        return codes


class QuantisedStore:
    """Rows in a codec's format; see `LayerStore`. Tokens written in a step are read rounded in the same step.

    Attributes:
        codec: the format.
    """

    def __init__(
        self,
        layer: LayerLayout,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        codec: Codec,
    ) -> None:
        self.codec = codec
        self._dtype = dtype
        self._value_dim = layer.value_dim
        dims = [layer.key_dim] if layer.value_in_key else [layer.key_dim, layer.value_dim]
        shape = (num_blocks, block_size, layer.num_kv_heads)
        rows = [[lazy_zeros((*shape, width), kind, device) for width, kind in codec.parts(dim)] for dim in dims]
        self.parts: list[torch.Tensor] = [part for row in rows for part in row]
        self._rows = rows

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None) -> None:
        for parts, fresh in zip(self._rows, (key, value), strict=False):
            if fresh is not None:
                for part, encoded in zip(parts, self.codec.encode(fresh.float()), strict=True):
                    part.flatten(0, 1).index_copy_(0, slots, encoded)

    def read(self, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [self.codec.decode([_chosen(part, blocks) for part in parts], self._dtype) for parts in self._rows]
        return rows[0], rows[-1][..., : self._value_dim]


_CODECS: dict[KvCacheDtypeName, Codec] = {"int8": Int8(), "fp8": Fp8(), "int4": Int4()}


def store_maker(kind: KvCacheDtypeName) -> StoreMaker:
    """Returns the constructor of a kind's stores; `auto` keeps elements as they are."""
    codec = _CODECS.get(kind)
    return PlainStore if codec is None else functools.partial(QuantisedStore, codec=codec)


def _product_dtype(dtype: torch.dtype) -> torch.dtype:
    """In which numbers are scaled: float16 would round small scales to few bits, or to 0."""
    return torch.float32 if dtype == torch.float16 else dtype


def _scaled_back(numbers: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return numbers.mul_(scale.to(numbers.dtype)).to(dtype)


@functools.cache
def _e4m3_numbers(dtype: torch.dtype) -> torch.Tensor:
    """The number that each of the 256 codes stands for."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(dtype)


def _chosen(part: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Part [num_blocks, block_size, heads, width] -> [chosen · block_size, heads, width]."""
    return part.flatten(1).index_select(0, blocks).view(-1, *part.shape[2:])


def _scaled(rows: torch.Tensor, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows scaled to ±largest, and the factors that undo it."""
    top = rows.abs().amax(dim=-1, keepdim=True)
    # A tensor: on CUDA, torch multiplies by the reciprocal of a number, which rounds differently.
    scale = _to_bfloat16(top / torch.full_like(top, largest), up=True)
    return (rows / scale.float().clamp_min(_LEAST)).clamp_(-largest, largest), scale


def _group_size(dim: int) -> int:
    return -(-dim // -(-dim // GROUP))


def _to_bfloat16(numbers: torch.Tensor, *, up: bool) -> torch.Tensor:
    """The nearest bfloat16 not below a float32, or not above it: its upper half, plus one if that is too small."""
    bits = numbers.contiguous().view(torch.int32)
    grows = bits >= 0 if up else bits < 0  # where a larger magnitude is the wanted direction
    return ((bits + grows * 0xFFFF) >> 16).to(torch.int16).view(torch.bfloat16)
