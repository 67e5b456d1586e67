"""Where a model's weights come from."""

from collections.abc import Sequence
from typing import Protocol

import torch

from reference_engine.kernels.blocks import QuantisedTensor


class WeightSource(Protocol):
    """Where weights come from: tensors under Hugging Face's names."""

    def names(self) -> Sequence[str]:
        """All tensor names."""
        ...

    def get(self, name: str, dtype: torch.dtype | None = None, device: torch.device | None = None) -> torch.Tensor:
        """One tensor: as stored and on the CPU if it is read, in `dtype` on `device` if it is generated.

        Raises:
            CheckpointError: there is none of that name.
        """
        ...

    def get_quantised(self, name: str) -> QuantisedTensor | None:
        """One matrix in the blocks that it is stored in, in memory of its own; None if it is stored otherwise."""
        ...
