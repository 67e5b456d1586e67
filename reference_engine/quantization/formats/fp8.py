"""FP8 checkpoints: weight float8_e4m3fn [out, in], and weight_scale, one number or [out] or [out, 1].

`quant_method` fp8 is vLLM's own: one scale for a tensor, and activations whose scales are computed at run time.
compressed-tensors stores the same tensors.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from bakeoff.reference_engine.core.model_config import check_options
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.quantization.formats.base import IN_LAYERS, own_scheme, part_of
from bakeoff.reference_engine.quantization.formats.schemes import Fp8Scheme
from bakeoff.reference_engine.quantization.fp8 import E4M3, Fp8Matrix
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix


def fp8_matrix(parts: Mapping[str, torch.Tensor], module: str) -> Fp8Matrix:
    """The matrix of a module's weight and weight_scale.

    Raises:
        CheckpointError: one is missing, or of another dtype or shape.
    """
    codes, scales = part_of(parts, module, "weight"), part_of(parts, module, "weight_scale")
    if codes.dtype is not E4M3:
        raise CheckpointError(f"{module}: its weight is {codes.dtype}, and FP8 checkpoints keep {E4M3}")
    if scales.numel() not in (1, codes.shape[0]):
        raise CheckpointError(
            f"{module}: scales of shape {tuple(scales.shape)} for a weight of shape {tuple(codes.shape)} are not "
            "supported, only one scale or one for each output"
        )
    row_scales = scales.float().reshape(-1, 1).expand(codes.shape[0], 1)
    return Fp8Matrix(codes.clone(), row_scales.clone(memory_format=torch.contiguous_format))


def fp8_parts(matrix: Fp8Matrix, *, per_tensor: bool) -> dict[str, torch.Tensor]:
    """Inverse of `fp8_matrix`."""
    scales = matrix.scales[:1, 0] if per_tensor else matrix.scales
    return {"weight": matrix.codes.contiguous(), "weight_scale": scales.contiguous()}


@dataclasses.dataclass(frozen=True, slots=True)
class Fp8Format:
    """A `CheckpointFormat`.

    Attributes:
        plain: names of modules that stay plain.
    """

    plain: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        return "weight_scale", "weight"

    def scheme(self, module: str) -> Fp8Scheme | None:
        return None if IN_LAYERS not in module or module in self.plain else Fp8Scheme(per_tensor=True)

    def decode(self, module: str, parts: Mapping[str, torch.Tensor]) -> Fp8Matrix:
        return fp8_matrix(parts, module)

    def encode(self, module: str, matrix: QuantisedMatrix) -> dict[str, torch.Tensor]:
        return fp8_parts(own_scheme(self.scheme(module), module).own(module, matrix), per_tensor=True)

    def config(self) -> dict[str, Any]:
        return {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": list(self.plain) or None}


def read_fp8(raw: Mapping[str, Any], where: str) -> Fp8Format:
    """Reads a `quantization_config`; see `registry.READERS`."""
    check_options({"activation_scheme": raw["activation_scheme"]}, where, activation_scheme=("dynamic",))
    check_options(raw, where, weight_block_size=(None,))
    return Fp8Format(tuple(raw.get("ignored_layers") or raw.get("modules_to_not_convert") or ()))
