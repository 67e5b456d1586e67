"""Synthetic pictures for models that see: PNG files of a stated size, each with pixels of its own.

Coloured tiles compress to a few kilobytes, so that the upload is short, and no cache of processed pictures knows them.
Format: https://www.w3.org/TR/png-3/.
"""

import struct
import zlib
from functools import lru_cache

import numpy as np

from bakeoff.workloads.rng import Rng
from bakeoff.workloads.types import Image

_TILE = 16
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_TRUECOLOUR = (8, 2, 0, 0, 0)
"""Eight bits a sample, red, green and blue, and the only methods of compression, filter and interlace."""


@lru_cache(maxsize=64)
def png(image: Image) -> bytes:
    """The picture as a PNG file, equal on every machine; kept, since each turn of a chat sends its pictures again."""
    rows, columns = -(-image.height // _TILE), -(-image.width // _TILE)
    rng = Rng("image", str(image.key))
    tiles = np.frombuffer(bytes(rng.below(256) for _ in range(rows * columns * 3)), np.uint8)
    pixels = tiles.reshape(rows, columns, 3).repeat(_TILE, axis=0).repeat(_TILE, axis=1)
    lines = pixels[: image.height, : image.width].reshape(image.height, image.width * 3)
    unfiltered = np.hstack([np.zeros((image.height, 1), np.uint8), lines])
    header = struct.pack(">II5B", image.width, image.height, *_TRUECOLOUR)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(unfiltered.tobytes(), 1)), (b"IEND", b"")]
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
