"""Quantised Hugging Face checkpoints as if their weights were plain or matrices of the engine."""

from collections.abc import Sequence

import torch

from reference_engine.errors import CheckpointError
from reference_engine.loading.safetensors import SafetensorsDirectory
from reference_engine.quantization.formats.base import CheckpointFormat
from reference_engine.quantization.matrix import QuantisedMatrix

_WEIGHT = ".weight"


class QuantisedDirectory:
    """The weights of a checkpoint directory with a `quantization_config`; a `WeightSource`.

    A module is quantised if its tensors are, whatever the config says: it lists some exceptions, but not all.

    Args:
        stored: the tensors.
        checkpoint_format: of the quantised ones.
    """

    def __init__(self, stored: SafetensorsDirectory, checkpoint_format: CheckpointFormat) -> None:
        self.config = stored.config
        self._stored, self._format = stored, checkpoint_format
        names, parts = stored.names(), checkpoint_format.parts
        mark = f".{parts[0]}"
        modules = {name.removesuffix(mark) for name in names if name.endswith(mark)}
        self._parts: dict[str, dict[str, str]] = {module: {} for module in modules}
        self._plain: list[str] = []
        for name in names:
            module, _, part = name.rpartition(".")
            if module in modules and part in parts:
                self._parts[module][part] = name
            else:
                self._plain.append(name)

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
        matrix = self.get_quantised(name)
        return self._stored.get(name) if matrix is None else matrix.dequantised()

    def get_quantised(self, name: str) -> QuantisedMatrix | None:
        """See `WeightSource`.

        Raises:
            CheckpointError: its tensors are damaged, or in a layout that is not supported.
        """
        module = name.removesuffix(_WEIGHT)
        parts = self._parts.get(module) if name.endswith(_WEIGHT) else None
        if parts is None:
            return None
        try:
            return self._format.decode(module, {part: self._stored.get(full) for part, full in parts.items()})
        except CheckpointError as error:
            raise CheckpointError(f"{self._stored.path}: {error}") from error
