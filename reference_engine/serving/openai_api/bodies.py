"""Reads request bodies within a bound, compressed ones too.

The HTTP library would decompress whatever has arrived in one go, on the event loop: 64 KiB can become 64 MiB. So the
server reads bodies as they are sent, and decompresses them here, piece by piece.
"""

import asyncio
import zlib

from aiohttp import web

from bakeoff.reference_engine.errors import RequestError

_PIECE_BYTES = 1 << 20  # decompressed in about a millisecond, after which other requests may go on
_GZIP, _ZLIB, _RAW = 31, 15, -15  # zlib's names of formats
_IS_ZLIB, _METHOD = 8, 0x0F  # of a first byte


async def read_body(http: web.Request, most: int) -> bytes:
    """The body of a request, decompressed.

    Args:
        http: whose body was not read, by a server that does not decompress.
        most: bytes that it may have.

    Raises:
        RequestError: 413, it is larger, and is not read to its end; 415, its encoding is not supported; 400, it is not
            in its encoding.
    """
    encoding = http.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "deflate"):
        raise RequestError(
            f"the body has Content-Encoding {encoding}, and only gzip and deflate are read; send it as it is",
            status=415,
        )
    body, decoder = bytearray(), None
    async for piece in http.content.iter_any():
        if encoding in ("", "identity"):
            body += piece
            _check(len(body), most)
            continue
        if decoder is None:
            is_zlib = piece[0] & _METHOD == _IS_ZLIB  # some clients leave its header out
            decoder = zlib.decompressobj(_GZIP if encoding == "gzip" else _ZLIB if is_zlib else _RAW)
        try:
            while piece:
                body += decoder.decompress(piece, _PIECE_BYTES)
                _check(len(body), most)
                piece = decoder.unconsumed_tail  # noqa: PLW2901 (the rest of it)
                if piece:
                    await asyncio.sleep(0)
        except zlib.error as error:
            raise RequestError(f"the body is not in its Content-Encoding {encoding}: {error}") from error
    if decoder is not None and not decoder.eof:
        raise RequestError(f"the body ends before its Content-Encoding {encoding} does")
    return bytes(body)


def _check(count: int, most: int) -> None:
    if count > most:
        raise RequestError(
            f"the body has more than {most:,} bytes, the most for this model; send fewer or shorter prompts", status=413
        )
