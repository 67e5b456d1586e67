"""GGUF files with metadata and without tensors."""

import struct
from pathlib import Path


def gguf_head(path: Path, file_type: int | None, *, version: int = 3) -> Path:
    """Write a GGUF file with a name, an array of words, an array of numbers and, if given, the type of its weights."""
    entries = [
        _text("general.architecture") + struct.pack("<I", 8) + _text("llama"),
        _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + _text("Grüße") + _text("b"),
        _text("tokenizer.ggml.token_type") + struct.pack("<IIQ3i", 9, 5, 3, 1, 1, 3),
        _text("llama.rope.freq_base") + struct.pack("<If", 6, 1e4),
    ]
    if file_type is not None:
        entries.append(_text("general.file_type") + struct.pack("<II", 4, file_type))
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, len(entries)) + b"".join(entries))
    return path


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
