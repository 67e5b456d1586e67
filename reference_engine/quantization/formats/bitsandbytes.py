"""bitsandbytes' checkpoints, as Transformers writes them: NF4, and INT8 for LLM.int8().

- 4 bits: the tensors of :mod:`bakeoff.reference_engine.quantization.bitsandbytes`.
- 8 bits: weight int8 [out, in], SCB float32 [out], the largest magnitudes of outputs, scale = SCB / 127, and
  weight_format, a uint8 that is 0 for codes row by row.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from bakeoff.reference_engine.core.model_config import check_options
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.quantization.bitsandbytes import matrix_of, plain_of, tensors_of
from bakeoff.reference_engine.quantization.formats.base import IN_LAYERS, own_scheme, part_of
from bakeoff.reference_engine.quantization.formats.schemes import Int8Scheme, Nf4Scheme
from bakeoff.reference_engine.quantization.llm_int8 import THRESHOLD, LlmInt8Matrix
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix

_WEIGHT = "weight"
_STATE = "weight.quant_state.bitsandbytes__nf4"
_HEAD = "lm_head"
_LIMIT = 127
_BY_ROWS = 0


@dataclasses.dataclass(frozen=True, slots=True)
class BitsAndBytes:
    """A `CheckpointFormat`.

    Attributes:
        default: of modules that do not stay plain.
        plain: a module stays plain if its name begins or ends with one of these.
    """

    default: Nf4Scheme | Int8Scheme
    plain: tuple[str, ...] = (_HEAD,)

    @property
    def parts(self) -> tuple[str, ...]:
        if isinstance(self.default, Int8Scheme):
            return "SCB", _WEIGHT, "weight_format"
        scales = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
        return _STATE, _WEIGHT, *(f"{_WEIGHT}.{name}" for name in scales)

    def scheme(self, module: str) -> Nf4Scheme | Int8Scheme | None:
        is_plain = any(f"{module}.".startswith(f"{name}.") or module.endswith(name) for name in self.plain)
        return None if is_plain or IN_LAYERS not in module else self.default

    def decode(self, module: str, parts: Mapping[str, torch.Tensor]) -> QuantisedMatrix | torch.Tensor:
        """Dequantised if blocks span rows."""
        if isinstance(self.default, Int8Scheme):
            return _int8_matrix(module, parts)
        own = {name: part if name == _WEIGHT else part.clone() for name, part in parts.items()}  # no views of a file
        try:
            matrix = matrix_of(own, _WEIGHT)
            return plain_of(own, _WEIGHT) if matrix is None else matrix
        except CheckpointError as error:
            raise CheckpointError(f"{module}: {error}") from error

    def encode(self, module: str, matrix: QuantisedMatrix) -> dict[str, torch.Tensor]:
        scheme = own_scheme(self.scheme(module), module)
        if isinstance(scheme, Nf4Scheme):
            return tensors_of(scheme.own(module, matrix), _WEIGHT)
        own = scheme.own(module, matrix)
        return {
            "weight": own.codes.contiguous(),
            "SCB": own.scales[:, 0] * _LIMIT,
            "weight_format": torch.tensor(_BY_ROWS, dtype=torch.uint8),
        }

    def config(self) -> dict[str, Any]:
        """`bnb_4bit_compute_dtype` is for other programs, the engine's is an option."""
        is_nf4 = isinstance(self.default, Nf4Scheme)
        return {
            "quant_method": "bitsandbytes",
            "load_in_4bit": is_nf4,
            "load_in_8bit": not is_nf4,
            "llm_int8_threshold": THRESHOLD,
            "llm_int8_skip_modules": list(self.plain),
            "llm_int8_has_fp16_weight": False,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": isinstance(self.default, Nf4Scheme) and self.default.nested,
            "bnb_4bit_compute_dtype": "float32",
            "bnb_4bit_quant_storage": "uint8",
        }


def _int8_matrix(module: str, parts: Mapping[str, torch.Tensor]) -> LlmInt8Matrix:
    codes, largest = part_of(parts, module, _WEIGHT), part_of(parts, module, "SCB")
    if codes.dtype is not torch.int8 or largest.shape != codes.shape[:1]:
        raise CheckpointError(
            f"{module}: a weight of {codes.dtype} and shape {tuple(codes.shape)} does not fit to SCB of shape "
            f"{tuple(largest.shape)}; fetch the checkpoint again"
        )
    if parts.get("weight_format", torch.tensor(_BY_ROWS)).any():
        raise CheckpointError(f"{module}: its weight_format is not row by row; save the model again on a CPU")
    return LlmInt8Matrix(codes.clone(), largest.float()[:, None] / _LIMIT)


def read_bitsandbytes(raw: Mapping[str, Any], where: str) -> BitsAndBytes:
    """Reads a `quantization_config`; see `registry.READERS`."""
    plain = tuple(raw.get("llm_int8_skip_modules") or (_HEAD,))
    if raw.get("load_in_8bit"):
        check_options(raw, where, llm_int8_threshold=(THRESHOLD,), llm_int8_has_fp16_weight=(False,))
        return BitsAndBytes(Int8Scheme(LlmInt8Matrix), plain)
    check_options({"load_in_4bit": raw.get("load_in_4bit", False)}, where, load_in_4bit=(True,))
    check_options({"bnb_4bit_quant_type": raw.get("bnb_4bit_quant_type", "fp4")}, where, bnb_4bit_quant_type=("nf4",))
    return BitsAndBytes(Nf4Scheme(nested=bool(raw.get("bnb_4bit_use_double_quant", False))), plain)
