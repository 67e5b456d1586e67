"""Type of the weights in a GGUF file, from its metadata, and choice of the GGUF file to serve.

Parsed without a library, so that the core does not depend on one. Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import os
import re
import struct
from pathlib import Path
from typing import BinaryIO

from bakeoff.engines.errors import BadOption, ModelNotFound

FILE_TYPES = {0: "float32", 1: "float16", 32: "bfloat16"}
"""Unquantised types by llama.cpp's file-type numbers."""
_FILE_TYPE = b"general.file_type"
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Sizes in bytes of scalar metadata types, by number."""
_UINT32, _STRING, _ARRAY = 4, 8, 9
_LENGTH_BYTES = 8
_ENTRY_BYTES = 13  # length of the name, type, and a value of one byte
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
"""Later parts of a split model; llama.cpp is given the first part."""


def weights_dtype(path: Path) -> str | None:
    """``float32``, ``float16``, ``bfloat16`` or ``quantised``; None if the metadata do not tell.

    Raises:
        ModelNotFound: the file cannot be read or is not a GGUF file.
    """
    try:
        with path.open("rb") as file:
            number = _file_type(file)
    except (OSError, struct.error, KeyError, ValueError, RecursionError) as error:
        raise ModelNotFound(f"{path} cannot be read as a GGUF file ({error}); fetch or convert it again") from error
    return None if number is None else FILE_TYPES.get(number, "quantised")


def gguf_file(path: str, dtype: str | None) -> Path:
    """The GGUF to serve: the file itself, or the one in a folder whose weights have type ``dtype``.

    Args:
        path: path of the file or folder.
        dtype: ``float32``, ``float16`` or ``bfloat16``; None or ``auto`` for any type.

    Raises:
        ModelNotFound: there is none, or it is not a GGUF file.
        BadOption: no file or several files have weights of that type.
    """
    place = Path(path)
    files = sorted(file for file in place.glob("*.gguf") if not _LATER_PART.search(file.name)) if place.is_dir() else []
    candidates = files or ([place] if place.suffix == ".gguf" else [])
    if not candidates:
        raise ModelNotFound(
            f"llama.cpp serves a .gguf file, and {path} has none; set path in [model] to one, or convert another: "
            f"python -m bakeoff.reference_engine convert SRC.gguf {place / 'model-bf16.gguf'}"
        )
    if dtype is None or dtype == "auto":
        matching = candidates
    else:
        matching = [file for file in candidates if weights_dtype(file) in {dtype, None}]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(f"{file.name} ({weights_dtype(file) or 'of unknown type'})" for file in candidates)
    if matching:
        raise BadOption(f"{path} has several GGUF files: {names}; set dtype, or path in [model], to one of them")
    raise BadOption(f"llama.cpp takes the type of weights from the file, and none is {dtype}: {names}; leave dtype out")


def _file_type(file: BinaryIO) -> int | None:
    if file.read(4) != b"GGUF":
        raise ValueError("it does not start with GGUF")
    _, _, entries = struct.unpack("<IQQ", file.read(20))
    _check_count(file, entries, _ENTRY_BYTES)
    for _ in range(entries):
        name = file.read(_length(file))
        kind = _number(file, "<I")
        if name == _FILE_TYPE and kind == _UINT32:
            return _number(file, "<I")
        _skip(file, kind)
    return None


def _skip(file: BinaryIO, kind: int) -> None:
    """Skip one value."""
    if kind == _STRING:
        file.seek(_length(file), 1)
    elif kind == _ARRAY:
        inner, count = _number(file, "<I"), _number(file, "<Q")
        _check_count(file, count, _SIZES.get(inner, _LENGTH_BYTES))
        if inner in _SIZES:
            file.seek(_SIZES[inner] * count, 1)
        else:
            for _ in range(count):
                _skip(file, inner)
    else:
        file.seek(_SIZES[kind], 1)


def _length(file: BinaryIO) -> int:
    length = _number(file, "<Q")
    _check_count(file, length, 1)
    return length


def _check_count(file: BinaryIO, count: int, item_bytes: int) -> None:
    """Raise ValueError if the rest of the file has no room for so many items: a damaged count costs no loop."""
    rest_bytes = os.fstat(file.fileno()).st_size - file.tell()
    if count * item_bytes > rest_bytes:
        raise ValueError(f"its header counts {count} items where {rest_bytes} bytes are left")


def _number(file: BinaryIO, layout: str) -> int:
    (value,) = struct.unpack(layout, file.read(struct.calcsize(layout)))
    return value
