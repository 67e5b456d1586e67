"""Models in Transformers' classes, which have hooks and gradients; the engine's own decoders have neither."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bakeoff.installation import how_to_install
from bakeoff.reference_engine.errors import CheckpointError, ConfigError, RequestError
from bakeoff.reference_engine.loading.checkpoint import Checkpoint, open_checkpoint
from bakeoff.reference_engine.loading.quantised import QuantisedDirectory

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Their decoders are a list of layers with GQA and a gated MLP, below one head without a cap."""
_PIECE_TOKENS = 512


def open_directory(path: Path) -> Checkpoint:
    """Opens a checkpoint directory of one of `FAMILIES`.

    Raises:
        CheckpointError: it is damaged, a .gguf file, quantised, or of another family.
        ConfigError: Transformers is not installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError(f"Transformers is not installed here; run: {how_to_install('engine', 'hf')}")
    checkpoint = open_plain(path)
    if checkpoint.config.model_type not in FAMILIES or checkpoint.config.cla_factor > 1:
        raise CheckpointError(
            f"{path}: layers of the family {checkpoint.config.model_type!r} with cla_factor "
            f"{checkpoint.config.cla_factor} are not supported, these are: {', '.join(FAMILIES)}, with cla_factor 1"
        )
    return checkpoint


def open_plain(path: Path) -> Checkpoint:
    """Opens a checkpoint directory of any family.

    Raises:
        CheckpointError: it is damaged, a .gguf file, or quantised.
    """
    check_directory(path)
    checkpoint = open_checkpoint(path)
    if isinstance(checkpoint.weights, QuantisedDirectory):
        raise CheckpointError(f"{path} is quantised; give the plain checkpoint that it was made of")
    return checkpoint


def check_directory(path: Path) -> None:
    """Raises CheckpointError if the path is a file."""
    if path.is_file():
        raise CheckpointError(
            f"{path} is a file; convert it first: python -m bakeoff.reference_engine convert {path} DIR"
        )


def load_model(path: Path, device: torch.device, dtype: torch.dtype = torch.float32) -> Any:  # noqa: ANN401 (no common type)
    """The model in Transformers' class, in evaluation mode."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 (an optional extra)
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
    return model.to(device).eval()


def pieces_of(checkpoint: Checkpoint, text: str, num_tokens: int) -> list[list[int]]:
    """The first tokens of a text in independent pieces of at most 512.

    Raises:
        RequestError: the text has fewer than two tokens.
    """
    tokens: Sequence[int] = checkpoint.tokenizer.encode(text)[:num_tokens]
    if len(tokens) < 2:
        raise RequestError(f"a text of {len(tokens)} tokens is too short to measure on; give a longer one")
    length = min(_PIECE_TOKENS, checkpoint.config.default_length)
    return [list(tokens[first : first + length]) for first in range(0, len(tokens), length)]
