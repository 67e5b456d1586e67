"""Opens a model path of either kind, a Hugging Face directory or a .gguf file, as one `Checkpoint`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from reference_engine.errors import CheckpointError
from reference_engine.loading.safetensors import SafetensorsDirectory, read_json
from reference_engine.loading.tokenizer import Tokenizer, tokenizer_from_directory, tokenizer_from_gguf
from reference_engine.models.config import ModelConfig

if TYPE_CHECKING:
    import torch  # the tokenizer and the checks must not wait a second for torch to import

    from reference_engine.kernels.blocks import QuantisedTensor


class WeightSource(Protocol):
    """Where weights come from: tensors under Hugging Face's names."""

    def names(self) -> Sequence[str]:
        """All tensor names."""
        ...

    def get(self, name: str) -> "torch.Tensor":
        """One tensor on the CPU; raises CheckpointError if there is none of that name."""
        ...

    def get_quantised(self, name: str) -> "QuantisedTensor | None":
        """One matrix in the blocks that it is stored in, in memory of its own; None if it is stored otherwise."""
        ...


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


def check_model_path(path: Path) -> None:
    """Fails early, without torch, on the mistakes that a look at the file system shows.

    Raises:
        CheckpointError: nothing there, or neither a checkpoint directory nor a .gguf file.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: no such model; give a Hugging Face checkpoint directory or a .gguf file")
    if path.is_dir() and not (path / "config.json").exists():
        raise CheckpointError(f"{path}: no config.json in it, so it is no Hugging Face checkpoint directory")
    if path.is_file() and path.suffix != ".gguf":
        raise CheckpointError(f"{path}: a model file must end in .gguf; else give a checkpoint directory")


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a directory or a .gguf file; tensors are read only when asked for.

    Raises:
        CheckpointError: see `check_model_path`, `GgufFile` and `SafetensorsDirectory`.
    """
    check_model_path(path)
    return _open_directory(path) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> Checkpoint:
    from reference_engine.loading.gguf import GgufFile  # noqa: PLC0415 (imports torch)

    file = GgufFile(path)
    return Checkpoint(path, file.config, file, tokenizer_from_gguf(file.metadata, str(path)))


def _open_directory(path: Path) -> Checkpoint:
    weights = SafetensorsDirectory(path)
    return Checkpoint(path, weights.config, weights, _directory_tokenizer(path))


def open_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer alone, as `open_checkpoint` gives it; without torch where the path is a directory.

    Raises:
        CheckpointError: see `check_model_path`, or the tokenizer's files are damaged.
    """
    check_model_path(path)
    return _directory_tokenizer(path) if path.is_dir() else _open_gguf(path).tokenizer


def _directory_tokenizer(path: Path) -> Tokenizer:
    config_file, template_file = path / "tokenizer_config.json", path / "chat_template.jinja"
    tokenizer_config = read_json(config_file) if config_file.exists() else {}
    template = template_file.read_text(encoding="utf-8") if template_file.exists() else None
    return tokenizer_from_directory(path, tokenizer_config, template)
