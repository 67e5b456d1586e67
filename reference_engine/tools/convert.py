"""Converts a GGUF file to a Hugging Face checkpoint directory for Transformers, vLLM and this engine.

The directory appears whole or not at all: it is written next to its destination and renamed. Replacing an older
directory therefore needs twice the disk space for a moment.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from reference_engine.errors import CheckpointError
from reference_engine.loading.files import check_model_path
from reference_engine.loading.gguf import GgufFile
from reference_engine.loading.tokenizer import Tokenizer, tokenizer_from_gguf
from reference_engine.models.config import config_to_hf

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def convert_gguf(source: Path, target: Path, *, dtype: str, progress: Callable[[str], None]) -> None:
    """Writes `target` with model.safetensors (in `dtype`), configs, tokenizer and chat template.

    Args:
        source: a .gguf file that `GgufFile` reads.
        target: directory to create; an existing one is replaced only if it is empty or a checkpoint.
        dtype: one of DTYPES.
        progress: called with one line of text at each stage.

    Raises:
        CheckpointError: the source cannot be read, or the target is neither empty nor a checkpoint.
    """
    check_model_path(source)
    _check_target(target)
    progress(f"reading {source}")
    file = GgufFile(source)
    tokenizer = tokenizer_from_gguf(file.metadata, str(source))
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        scratch.chmod(0o755)
        _write_weights(file, scratch, dtype, progress)
        _write_configs(file, tokenizer, scratch, dtype)
        _replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    progress(f"wrote {target}")


def _check_target(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"{target} is a file; give a directory to write the checkpoint to")
    if target.is_dir() and any(target.iterdir()) and not (target / "config.json").exists():
        raise CheckpointError(f"{target} is neither empty nor a checkpoint; give a new or empty directory")


def _write_weights(file: GgufFile, directory: Path, dtype: str, progress: Callable[[str], None]) -> None:
    names = file.names()
    tensors: dict[str, torch.Tensor] = {}
    for done, name in enumerate(names, start=1):
        tensors[name] = file.get(name).to(DTYPES[dtype]).contiguous()
        if done % 64 == 0 or done == len(names):
            progress(f"dequantised {done}/{len(names)} tensors to {dtype}")
    # Transformers refuses safetensors whose metadata does not name the framework.
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def _write_configs(file: GgufFile, tokenizer: Tokenizer, directory: Path, dtype: str) -> None:
    config = config_to_hf(file.config) | {"dtype": dtype}
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id") if config[key] is not None}
    special = tokenizer.special_tokens
    tokenizer_config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": file.config.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
        **special,
    }
    if tokenizer.chat_template is not None:
        tokenizer_config["chat_template"] = tokenizer.chat_template
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", generation)
    _write_json(directory / "tokenizer_config.json", tokenizer_config)
    _write_json(directory / "special_tokens_map.json", special)
    tokenizer.backend.save(str(directory / "tokenizer.json"))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _replace(scratch: Path, target: Path) -> None:
    """Moves an old checkpoint aside first: a directory with files cannot be replaced by renaming."""
    for file in scratch.iterdir():
        file.chmod(0o644)  # safetensors creates files that only the owner can read
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    if not target.exists():
        scratch.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    target.rename(aside / "old")
    scratch.rename(target)
    shutil.rmtree(aside)
