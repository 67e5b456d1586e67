"""Which code an engine runs: two builds of one version may differ in every figure.

A version says little of a program that was compiled here, of a package installed from a folder, or of ``image:latest``.
"""

import functools
import hashlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines.environments import Environment

_ASK_S = 30.0


def build_of(program: str) -> dict[str, Any]:
    """What a program of this machine is made of.

    Args:
        program: path or name of what is executed.

    Returns:
        Plain data that is the same only where the code is: of the program and the shared libraries beside it, and of
        every package where it is the interpreter or a script of a Python environment. Empty where it is not there.
    """
    found = shutil.which(program)
    if found is None:
        return {}
    folder = Path(found).parent
    files = [Path(found), *sorted(path for path in folder.glob("*.so*") if path.is_file())]
    build: dict[str, Any] = {"program_sha256": _digest(_sha256(path) for path in files)}
    prefix = folder.parent
    if prefix == Path(sys.prefix) or (prefix / "pyvenv.cfg").exists():
        build |= _packages(Environment(str(prefix), prefix))
    return build


def checkout(folder: Path) -> str | None:
    """The commit of a folder in a git checkout, as ``git describe`` says it, and a digest of the changes in the folder.

    None where git does not know the folder; that it lies in a checkout, as a venv may, is not enough.
    """
    is_tracked = _git(folder, "rev-parse", "--verify", "HEAD:./")
    described = _git(folder, "describe", "--always", "--tags", "--long", "--abbrev=40")
    changes = _git(folder, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--", ".")
    others = _git(folder, "ls-files", "--others", "--exclude-standard", "-z")
    if is_tracked is None or described is None or changes is None or others is None:
        return None
    commit = described.decode().strip()
    untracked = [_stamp(folder / os.fsdecode(name)) for name in others.split(b"\0") if name]
    return f"{commit}-dirty-{_digest([changes, *untracked])[:12]}" if changes or untracked else commit


def image_id(runtime: str, image: str) -> str | None:
    """The digest of a container image that lies on this machine; None where the runtime tells none."""
    told = _output(runtime, "image", "inspect", "--format", "{{.Id}}", image)
    return told.decode().strip() or None if told else None


def _packages(environment: Environment) -> dict[str, Any]:
    """Every file that pip installed, by the digests in its own records, and the source of what it only linked."""
    sources: dict[str, str] = {}
    records: list[bytes] = []
    for package in environment.packages():
        records.append(f"{package.name} {package.version} {package.record}".encode())
        if package.editable_source is not None:
            # What cannot be told is never the same as before.
            sources[package.name] = checkout(package.editable_source) or f"unknown-{secrets.token_hex(8)}"
    return {"packages_sha256": _digest(sorted(records)), "sources": sources}


def _sha256(path: Path) -> bytes:
    stat = path.stat()
    return _sha256_of(path, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@functools.lru_cache(maxsize=256)
def _sha256_of(path: Path, *_: int) -> bytes:
    """Of the bytes of a file, read again when anything was written to it: no program can set a file's ctime back."""
    with path.open("rb") as file:
        return path.name.encode() + hashlib.file_digest(file, "sha256").digest()


def _digest(parts: "Iterator[bytes] | list[bytes]") -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()


def _stamp(path: Path) -> bytes:
    """Of a file that git does not know: its content may be a data set of gigabytes."""
    try:
        stat = path.lstat()
    except FileNotFoundError:
        return b""
    return f"{path} {stat.st_size} {stat.st_mtime_ns}".encode(errors="surrogateescape")


def _git(folder: Path, *words: str) -> bytes | None:
    return _output("git", "-C", str(folder), *words)


def _output(*argv: str) -> bytes | None:
    """What a program prints; None where it fails or is not there."""
    try:
        return subprocess.run(argv, capture_output=True, check=True, timeout=_ASK_S, stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.SubprocessError):
        return None
