"""Quantised Hugging Face checkpoints, read as plain weights or as matrices of the engine."""

from collections.abc import Sequence

import torch

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.quantization.formats.base import CheckpointFormat, stored_modules
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix

_WEIGHT = ".weight"


class QuantisedDirectory:
    """The weights of a checkpoint directory with a `quantization_config`; a `WeightSource`.

    A module is quantised if its tensors are, whatever the config says: it lists some exceptions, but not all.

    Args:
        stored: the tensors.
        checkpoint_format: format of the quantised tensors.
    """

    def __init__(self, stored: SafetensorsDirectory, checkpoint_format: CheckpointFormat) -> None:
        self.config: ModelConfig = stored.config
        self._stored, self._format = stored, checkpoint_format
        names = stored.names()
        self._parts = stored_modules(names, checkpoint_format.parts)
        quantised = {name for parts in self._parts.values() for name in parts.values()}
        self._plain = [name for name in names if name not in quantised]

    def names(self) -> Sequence[str]:
        """Hugging Face names of all tensors, as if the checkpoint were plain."""
        return [*self._plain, *(f"{module}{_WEIGHT}" for module in self._parts)]

    def get(
        self,
        name: str,
        dtype: torch.dtype | None = None,  # noqa: ARG002 (see WeightSource)
        device: torch.device | None = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """The named tensor as stored; in float32 if it is quantised."""
        weight = self._decoded(name)
        if weight is None:
            return self._stored.get(name)
        if isinstance(weight, torch.Tensor):
            return weight.float()
        return weight.to(torch.device("cpu"), torch.float32).dequantised()

    def get_quantised(self, name: str) -> QuantisedMatrix | None:
        """The matrix of a tensor, in its codes.

        Raises:
            CheckpointError: its tensors are damaged, or in a layout that is not supported.
        """
        weight = self._decoded(name)
        return None if isinstance(weight, torch.Tensor) else weight

    def _decoded(self, name: str) -> QuantisedMatrix | torch.Tensor | None:
        """The weight of a quantised module; None for plain tensors."""
        module = name.removesuffix(_WEIGHT)
        parts = self._parts.get(module) if name.endswith(_WEIGHT) else None
        if parts is None:
            return None
        try:
            return self._format.decode(module, {part: self._stored.get(full) for part, full in parts.items()})
        except CheckpointError as error:
            raise CheckpointError(f"{self._stored.path}: {error}") from error
