"""Opens a Hugging Face directory or a .gguf file as a `Checkpoint`."""

import dataclasses
from pathlib import Path

from bakeoff.reference_engine.core.config import LoadFormatName
from bakeoff.reference_engine.core.files import check_model_path
from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.loading.dummy import DummyWeights
from bakeoff.reference_engine.loading.quantised import QuantisedDirectory
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory, read_config, read_format
from bakeoff.reference_engine.loading.tokenizer import Tokenizer, tokenizer_from_gguf, tokenizer_of_directory
from bakeoff.reference_engine.models.source import WeightSource
from bakeoff.reference_engine.quantization.formats.base import CheckpointFormat
from bakeoff.reference_engine.quantization.formats.mxfp4 import Mxfp4Experts


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """Config, weights and tokenizer of a model that has not been built yet.

    Attributes:
        path: directory or file.
        config: shapes and constants of the model.
        weights: read or generated on demand.
        tokenizer: includes the chat template.
        format: format of quantised matrices, from config.json; None for plain checkpoints and GGUF files.
    """

    path: Path
    config: ModelConfig
    weights: WeightSource
    tokenizer: Tokenizer
    format: CheckpointFormat | Mxfp4Experts | None = None

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """All ids that end a sequence, from config, generation config and tokenizer."""
        named = self.tokenizer.eos_token_id
        return frozenset(self.config.eos_token_ids) | (frozenset() if named is None else {named})


def open_checkpoint(path: Path, load_format: LoadFormatName = "auto") -> Checkpoint:
    """Opens a directory or a .gguf file; tensors are read only on demand.

    Args:
        path: a checkpoint directory, in which `dummy` needs only config.json, or a .gguf file.
        load_format: with `dummy`, weights are generated and no weight file is opened.

    Raises:
        CheckpointError: see `check_model_path`, `GgufFile`, `SafetensorsDirectory` and `format_of`.
    """
    check_model_path(path)
    if path.is_dir():
        checkpoint_format = read_format(path)
        if load_format == "dummy":
            config = read_config(path)
            dummies = DummyWeights(config, checkpoint_format)
            return Checkpoint(path, config, dummies, tokenizer_of_directory(path, load_format), checkpoint_format)
        stored = SafetensorsDirectory(path)
        source: WeightSource = stored
        if checkpoint_format is not None and not isinstance(checkpoint_format, Mxfp4Experts):  # whose family reads it
            source = QuantisedDirectory(stored, checkpoint_format)
        return Checkpoint(path, stored.config, source, tokenizer_of_directory(path), checkpoint_format)
    from bakeoff.reference_engine.loading.gguf import GgufFile  # noqa: PLC0415 (the only user of the package gguf)

    file = GgufFile(path)
    weights = DummyWeights(file.config) if load_format == "dummy" else file
    return Checkpoint(path, file.config, weights, tokenizer_from_gguf(file.metadata, str(path)))
