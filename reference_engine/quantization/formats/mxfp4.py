"""gpt-oss' checkpoints: the experts' matrices of a layer are stacked in MXFP4; the other matrices are plain.

The family reads the stacks (:class:`bakeoff.reference_engine.models.gpt_oss.SplitExperts`); this only tells which
matrices are quantised.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from bakeoff.reference_engine.core.model_config import check_options
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.quantization import mxfp4
from bakeoff.reference_engine.quantization.formats.base import random_octets
from bakeoff.reference_engine.quantization.look_up import LookUpMatrix

_IN_EXPERTS = ".experts."


@dataclasses.dataclass(frozen=True, slots=True)
class Mxfp4Scheme:
    """A `Scheme` of MXFP4."""

    def random(self, module: str, shape: tuple[int, int], std: float, seed: int) -> LookUpMatrix:
        """Uniform codes."""
        rows, columns = shape
        if not self.suits(columns):
            raise CheckpointError(
                f"{module}: blocks of {mxfp4.BLOCK} do not divide {columns} inputs; it cannot be MXFP4"
            )
        blocks = random_octets(rows, columns // 2, seed).view(rows, columns // mxfp4.BLOCK, -1)
        exponent = round(math.log2(std / float(mxfp4.TABLE.square().mean().sqrt())))
        return mxfp4.from_blocks(blocks, torch.full(blocks.shape[:2], exponent + mxfp4.BIAS, dtype=torch.uint8))

    def suits(self, columns: int) -> bool:
        return columns % mxfp4.BLOCK == 0

    def nearest(self, weight: torch.Tensor) -> LookUpMatrix:
        matrix = mxfp4.quantised(weight)
        assert matrix is not None  # `suits` holds
        return matrix


@dataclasses.dataclass(frozen=True, slots=True)
class Mxfp4Experts:
    """Matrices of experts in MXFP4; see the module text."""

    def scheme(self, module: str) -> Mxfp4Scheme | None:
        return Mxfp4Scheme() if _IN_EXPERTS in module else None


def read_mxfp4(raw: Mapping[str, Any], where: str, model_type: str) -> Mxfp4Experts:
    """Reads a `quantization_config`.

    Raises:
        CheckpointError: the model is not of the family that has such checkpoints.
    """
    check_options({"model_type": model_type}, where, model_type=("gpt_oss",))
    check_options(raw, where, dequantize=(None, False))
    return Mxfp4Experts()
