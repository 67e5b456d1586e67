"""Writes Hugging Face checkpoint directories atomically: they appear whole or not at all.

A directory is written next to its destination and renamed. Replacing an older one therefore needs twice the disk space
for a moment.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bakeoff.reference_engine.errors import CheckpointError

_TEXT_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "vocab.json", "merges.txt", "tokenizer.model", "generation_config.json",
)  # fmt: skip


def check_target(target: Path) -> None:
    """Checks that a checkpoint may be written there.

    Raises:
        CheckpointError: the target is a file, or a directory that is neither empty nor a checkpoint.
    """
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"{target} is a file; give a directory to write the checkpoint to")
    if target.is_dir() and any(target.iterdir()) and not (target / "config.json").exists():
        raise CheckpointError(f"{target} is neither empty nor a checkpoint; give a new or empty directory")


@contextlib.contextmanager
def new_checkpoint(target: Path) -> Generator[Path]:
    """Yields a directory to write to; it takes the place of `target` unless the block raises."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        scratch.chmod(0o755)
        yield scratch
        _replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_weights(directory: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes model.safetensors."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    # Transformers refuses safetensors whose metadata does not name the framework.
    save_file(contiguous, directory / "model.safetensors", metadata={"format": "pt"})


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON object, indented."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def copy_tokenizer(source: Path, directory: Path) -> None:
    """Copies tokenizer, chat template and sampling defaults."""
    for name in _TEXT_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, directory / name)


@contextlib.contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """Yields a path to write to; the file there, synced, takes the place of `path` unless the block raises."""
    scratch = path.with_name(f".{path.name}")
    try:
        yield scratch
        sync(scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flushes a file to disk, so that it survives a power failure."""
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def _replace(scratch: Path, target: Path) -> None:
    """Moves an old checkpoint aside first: a directory with files cannot be replaced by renaming."""
    for file in scratch.iterdir():
        file.chmod(0o644)  # safetensors creates files that only the owner can read
        sync(file)
    if not target.exists():
        scratch.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    target.rename(aside / "old")
    scratch.rename(target)
    shutil.rmtree(aside)
