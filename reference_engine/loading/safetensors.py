"""Reads Hugging Face checkpoint directories: config.json and memory-mapped *.safetensors files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from bakeoff.reference_engine.core.files import read_json
from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.models.config_readers import config_from_hf
from bakeoff.reference_engine.quantization.formats.base import CheckpointFormat
from bakeoff.reference_engine.quantization.formats.mxfp4 import Mxfp4Experts
from bakeoff.reference_engine.quantization.formats.registry import format_of


def read_config(directory: Path) -> ModelConfig:
    """Reads config.json; end-of-sequence ids of generation_config.json take precedence, as in Transformers."""
    raw = read_json(directory / "config.json")
    generation = directory / "generation_config.json"
    if generation.exists():
        raw |= {key: value for key, value in read_json(generation).items() if key == "eos_token_id"}
    return config_from_hf(raw, str(directory / "config.json"))


def read_format(directory: Path) -> CheckpointFormat | Mxfp4Experts | None:
    """The quantisation format in config.json; None if weights are plain.

    Raises:
        CheckpointError: see `format_of`.
    """
    file = directory / "config.json"
    return format_of(read_json(file), str(file))


class SafetensorsFiles:
    """All tensors of a directory as stored; views of the mapped files.

    Raises:
        CheckpointError: there are no weights, a shard is missing, or a file is damaged or cut short.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self._shards = {file: _open_shard(file) for file in _shard_files(directory)}
        self._shard_of = {name: shard for shard in self._shards.values() for name in shard.keys()}  # noqa: SIM118

    def names(self) -> Sequence[str]:
        """Hugging Face names of all tensors."""
        return list(self._shard_of)

    def get(
        self,
        name: str,
        dtype: torch.dtype | None = None,  # noqa: ARG002 (see WeightSource)
        device: torch.device | None = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """The named tensor in its stored dtype."""
        try:
            return self._shard_of[name].get_tensor(name)
        except KeyError:
            raise CheckpointError(f"{self.path}: tensor {name} is missing; fetch the checkpoint again") from None

    def get_quantised(self, name: str) -> None:  # noqa: ARG002 (see WeightSource)
        """None: tensors are as stored; see `QuantisedDirectory`."""
        return


class SafetensorsDirectory(SafetensorsFiles):
    """The weights of a checkpoint directory, and its config.

    Raises:
        CheckpointError: see `SafetensorsFiles` and `read_config`.
    """

    def __init__(self, directory: Path) -> None:
        self.config: ModelConfig = read_config(directory)
        super().__init__(directory)


def _shard_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        files = sorted({directory / file for file in read_json(index).get("weight_map", {}).values()})
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{directory}: contains no *.safetensors file; PyTorch .bin weights are not supported")
    for file in files:
        if not file.exists():
            raise CheckpointError(f"{file} is listed in {index.name} but missing; fetch it")
    return files


def _open_shard(file: Path) -> Any:  # noqa: ANN401 (safetensors' handle has no public type)
    try:
        return safe_open(file, framework="pt", device="cpu")
    except SafetensorError as error:
        raise CheckpointError(
            f"{file}: damaged or cut short ({file.stat().st_size} bytes: {error}); fetch it again"
        ) from error
