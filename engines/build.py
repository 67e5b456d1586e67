"""Identification of the code that an engine runs, because builds of the same version can perform differently.

A version does not identify a locally compiled program, a package installed from a folder, or ``image:latest``.
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

from bakeoff.engines.environments import Environment

_ASK_S = 30.0


def build_of(program: str) -> dict[str, Any]:
    """Digests of a program's code on this machine.

    Args:
        program: path or name of the executable.

    Returns:
        Plain data that changes with the program and the shared libraries beside it, and with every package if it is
        the interpreter or a script of a Python environment. Empty if the program does not exist.
    """
    path = shutil.which(program)
    if path is None:
        return {}
    folder = Path(path).parent
    files = [Path(path), *sorted(library for library in folder.glob("*.so*") if library.is_file())]
    build: dict[str, Any] = {"program_sha256": _digest(_sha256(file) for file in files)}
    prefix = folder.parent
    if prefix == Path(sys.prefix) or (prefix / "pyvenv.cfg").exists():
        build |= _packages(Environment(str(prefix), prefix))
    return build


def checkout(folder: Path) -> str | None:
    """``git describe`` of a folder's commit, with a digest of uncommitted changes in the folder.

    None unless git tracks the folder; an untracked folder in a checkout, such as a venv, does not count.
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
    """Digest of a local container image; None if the runtime reports none."""
    digest = _output(runtime, "image", "inspect", "--format", "{{.Id}}", image)
    return digest.decode().strip() or None if digest else None


def _packages(environment: Environment) -> dict[str, Any]:
    """Digest of all files that pip installed, from its records, and the checkouts of editable packages."""
    sources: dict[str, str] = {}
    records: list[bytes] = []
    for package in environment.packages():
        records.append(f"{package.name} {package.version} {package.record}".encode())
        if package.editable_source is not None:
            # An unidentifiable source must never equal an earlier one.
            sources[package.name] = checkout(package.editable_source) or f"unknown-{secrets.token_hex(8)}"
    return {"packages_sha256": _digest(sorted(records)), "sources": sources}


def _sha256(path: Path) -> bytes:
    stat = path.stat()
    return _sha256_of(path, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@functools.lru_cache(maxsize=256)
def _sha256_of(path: Path, *_: int) -> bytes:
    """Digest of a file, cached until the file changes; programs cannot reset a file's ctime."""
    with path.open("rb") as file:
        return path.name.encode() + hashlib.file_digest(file, "sha256").digest()


def _digest(parts: "Iterator[bytes] | list[bytes]") -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _stamp(path: Path) -> bytes:
    """Size and time of an untracked file, not its content, which can be gigabytes of data."""
    try:
        stat = path.lstat()
    except FileNotFoundError:
        return b""
    return f"{path} {stat.st_size} {stat.st_mtime_ns}".encode(errors="surrogateescape")


def _git(folder: Path, *words: str) -> bytes | None:
    return _output("git", "-C", str(folder), *words)


def _output(*argv: str) -> bytes | None:
    """Standard output of a program; None if it fails or does not exist."""
    try:
        return subprocess.run(argv, capture_output=True, check=True, timeout=_ASK_S, stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.SubprocessError):
        return None
