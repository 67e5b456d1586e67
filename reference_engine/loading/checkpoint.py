"""Opens a model path of either kind, a Hugging Face directory or a .gguf file, as one `Checkpoint`."""

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
    """A model ready to be built: what it is, where its weights are, how it reads text."""

    path: Path
    config: ModelConfig
    weights: WeightSource
    tokenizer: Tokenizer

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that ends a sequence: config, generation config and tokenizer may each name one."""
        named = self.tokenizer.eos_token_id
        return frozenset(self.config.eos_token_ids) | (frozenset() if named is None else {named})


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a directory or a .gguf file; tensors are read only when asked for.

    Raises:
        CheckpointError: see `check_model_path`, `GgufFile` and `SafetensorsDirectory`.
    """
    check_model_path(path)
    if path.is_dir():
        weights = SafetensorsDirectory(path)
        return Checkpoint(path, weights.config, weights, tokenizer_of_directory(path))
    file = GgufFile(path)
    return Checkpoint(path, file.config, file, tokenizer_from_gguf(file.metadata, str(path)))
