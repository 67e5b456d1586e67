"""Protocol Buffers on the wire, as far as a trace needs them (https://protobuf.dev/programming-guides/encoding)."""

import struct

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_MASK_64 = (1 << 64) - 1


def varint(value: int) -> bytes:
    """A number in groups of seven bits, the lowest first; negative ones as 64-bit two's complement."""
    rest, data = value & _MASK_64, bytearray()
    while rest > 0x7F:
        data.append(rest & 0x7F | 0x80)
        rest >>= 7
    data.append(rest)
    return bytes(data)


def number(field: int, value: int) -> bytes:
    """A field of type int64, uint64, bool or an enum."""
    return varint(field << 3 | _VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """A field of type fixed64."""
    return varint(field << 3 | _FIXED64) + struct.pack("<Q", value & _MASK_64)


def double(field: int, value: float) -> bytes:
    """A field of type double."""
    return varint(field << 3 | _FIXED64) + struct.pack("<d", value)


def data(field: int, value: bytes) -> bytes:
    """A field of type bytes, or an embedded message."""
    return varint(field << 3 | _BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A field of type string."""
    return data(field, value.encode("utf-8", errors="replace"))
