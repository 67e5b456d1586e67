"""Opens a Hugging Face directory or a .gguf file as a `Checkpoint`."""

import dataclasses
from pathlib import Path

from reference_engine.loading.files import check_model_path
from reference_engine.loading.gguf import GgufFile
from reference_engine.loading.safetensors import SafetensorsDirectory
from reference_engine.loading.source import WeightSource
from reference_engine.loading.tokenizer import Tokenizer, tokenizer_from_gguf, tokenizer_of_directory
from reference_engine.models.config import ModelConfig


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """Config, weights and tokenizer of a model that has not been built yet."""

    path: Path
    config: ModelConfig
    weights: WeightSource
    tokenizer: Tokenizer

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """All ids that end a sequence, from config, generation config and tokenizer."""
        named = self.tokenizer.eos_token_id
        return frozenset(self.config.eos_token_ids) | (frozenset() if named is None else {named})


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a directory or a .gguf file; tensors are read on demand.

    Raises:
        CheckpointError: see `check_model_path`, `GgufFile` and `SafetensorsDirectory`.
    """
    check_model_path(path)
    if path.is_dir():
        weights = SafetensorsDirectory(path)
        return Checkpoint(path, weights.config, weights, tokenizer_of_directory(path))
    file = GgufFile(path)
    return Checkpoint(path, file.config, file, tokenizer_from_gguf(file.metadata, str(path)))
