"""AWQ's checkpoints (arXiv 2306.00978) in version gemm, as AutoAWQ writes them.

Codes and zero points are packed along outputs, each 8 of them interleaved: qweight int32 [in, out / 8], qzeros int32
[groups, out / 8], scales [groups, out].
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from bakeoff.reference_engine.core.model_config import check_options
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.quantization.formats.base import IN_LAYERS, IntegerScheme, own_scheme, part_of
from bakeoff.reference_engine.quantization.formats.codes import Codes
from bakeoff.reference_engine.quantization.formats.packing import WORD, in_sequence, interleaved, packed, unpacked
from bakeoff.reference_engine.quantization.integer_matrix import IntegerMatrix
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix

_BITS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class AwqFormat:
    """A `CheckpointFormat`.

    Attributes:
        group_size: inputs that share a scale; None for all inputs of an output.
        plain: a module stays plain if one of these is a part of its name.
    """

    group_size: int | None = 128
    plain: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        return "qweight", "qzeros", "scales"

    def scheme(self, module: str) -> IntegerScheme | None:
        if IN_LAYERS not in module or any(name in module for name in self.plain):
            return None
        return IntegerScheme(_BITS, self.group_size, symmetric=False)

    def decode(self, module: str, parts: Mapping[str, torch.Tensor]) -> IntegerMatrix:
        codes, zeros = (
            in_sequence(unpacked(part_of(parts, module, name), _BITS)).t() for name in ("qweight", "qzeros")
        )
        return Codes(codes, part_of(parts, module, "scales").t(), zeros, _BITS).matrix(module)

    def encode(self, module: str, matrix: QuantisedMatrix) -> dict[str, torch.Tensor]:
        own = own_scheme(self.scheme(module), module).own(module, matrix)
        if own.shape[0] % (WORD // _BITS):
            raise ConfigError(
                f"{module}: AWQ packs {WORD // _BITS} outputs in a word, which does not divide {own.shape[0]}; "
                "leave the module plain"
            )
        codes = Codes.of(own, module)
        assert codes.zeros is not None  # of this scheme
        return {
            "qweight": packed(interleaved(codes.codes.t()), _BITS),
            "qzeros": packed(interleaved(codes.zeros.t()), _BITS),
            "scales": codes.scales.t().contiguous(),
        }

    def config(self) -> dict[str, Any]:
        return {
            "quant_method": "awq",
            "version": "gemm",
            "bits": _BITS,
            "group_size": self.group_size or -1,
            "zero_point": True,
            "modules_to_not_convert": list(self.plain) or None,
        }


def read_awq(raw: Mapping[str, Any], where: str) -> AwqFormat:
    """Reads a `quantization_config`; see `registry.READERS`."""
    bits, size = raw.get("w_bit", raw.get("bits")), int(raw.get("q_group_size", raw.get("group_size", 128)))
    version = str(raw.get("version") or raw.get("format") or "gemm").lower()
    check_options({**raw, "bits": bits, "version": version}, where, bits=(4,), version=("gemm",), zero_point=(True,))
    return AwqFormat(None if size < 0 else size, tuple(raw.get("modules_to_not_convert") or ()))
