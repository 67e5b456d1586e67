"""Converts a GGUF file to a Hugging Face checkpoint directory for Transformers, vLLM and this engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bakeoff.reference_engine.core.files import check_model_path
from bakeoff.reference_engine.core.model_config import config_to_hf
from bakeoff.reference_engine.loading.gguf import GgufFile
from bakeoff.reference_engine.loading.tokenizer import Tokenizer, tokenizer_from_gguf
from bakeoff.reference_engine.tools.checkpoint_folder import check_target, new_checkpoint, write_json, write_weights

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
    check_target(target)
    progress(f"reading {source}")
    file = GgufFile(source)
    tokenizer = tokenizer_from_gguf(file.metadata, str(source))
    with new_checkpoint(target) as scratch:
        _write_weights(file, scratch, dtype, progress)
        _write_configs(file, tokenizer, scratch, dtype)
    progress(f"wrote {target}")


def _write_weights(file: GgufFile, directory: Path, dtype: str, progress: Callable[[str], None]) -> None:
    names = file.names()
    tensors: dict[str, torch.Tensor] = {}
    for done, name in enumerate(names, start=1):
        tensors[name] = file.get(name).to(DTYPES[dtype])
        if done % 64 == 0 or done == len(names):
            progress(f"dequantised {done}/{len(names)} tensors to {dtype}")
    write_weights(directory, tensors)


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
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", generation)
    write_json(directory / "tokenizer_config.json", tokenizer_config)
    write_json(directory / "special_tokens_map.json", special)
    tokenizer.backend.save(str(directory / "tokenizer.json"))
