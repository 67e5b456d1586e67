"""Reads Hugging Face checkpoint directories: config.json and one or several memory-mapped *.safetensors files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from reference_engine.errors import CheckpointError
from reference_engine.loading.files import read_json
from reference_engine.models.config import ModelConfig
from reference_engine.models.registry import config_from_hf


def read_config(directory: Path) -> ModelConfig:
    """config.json, with end-of-sequence ids from generation_config.json where that file names them (HF's order)."""
    raw = read_json(directory / "config.json")
    generation = directory / "generation_config.json"
    if generation.exists():
        raw |= {key: value for key, value in read_json(generation).items() if key == "eos_token_id"}
    return config_from_hf(raw, str(directory / "config.json"))


class SafetensorsDirectory:
    """The weights of one checkpoint directory; tensors are views of the mapped file until someone converts them.

    Raises:
        CheckpointError: no weights, a missing shard, a damaged or cut-short file.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self.config = read_config(directory)
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
        """None: these files have no blocks."""
        return


def _shard_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        files = sorted({directory / file for file in read_json(index).get("weight_map", {}).values()})
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{directory}: no *.safetensors file in it; PyTorch .bin weights are not read")
    for file in files:
        if not file.exists():
            raise CheckpointError(f"{file} is named by {index.name} but missing; fetch it")
    return files


def _open_shard(file: Path) -> Any:  # noqa: ANN401 (safetensors' handle has no public type)
    try:
        return safe_open(file, framework="pt", device="cpu")
    except SafetensorError as error:
        raise CheckpointError(
            f"{file}: damaged or cut short ({file.stat().st_size} bytes: {error}); fetch it again"
        ) from error
