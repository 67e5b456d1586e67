"""The interface between checkpoint formats and models."""

from collections.abc import Sequence
from typing import Protocol

import torch

from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix


class WeightSource(Protocol):
    """Provides tensors by their Hugging Face names."""

    def names(self) -> Sequence[str]:
        """All tensor names."""
        ...

    def get(self, name: str, dtype: torch.dtype | None = None, device: torch.device | None = None) -> torch.Tensor:
        """One tensor: as stored and on the CPU if it is read, in `dtype` on `device` if it is generated.

        Raises:
            CheckpointError: no tensor has that name.
        """
        ...

    def get_quantised(self, name: str) -> QuantisedMatrix | None:
        """A copy of the matrix as stored; None if it is not quantised."""
        ...
