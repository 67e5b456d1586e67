"""GPTQ's checkpoints (arXiv 2210.17323), as AutoGPTQ and GPTQModel write them.

Codes are packed along inputs, zero points along outputs: qweight int32 [in / n, out], qzeros int32 [groups, out / n],
scales [groups, out], g_idx int32 [in], where n = 32 / bits.

Version 1 (`checkpoint_format` gptq) stores zero points less one, modulo 2^bits. Programs disagree about the meaning of
a stored zero point of 0, so it is read but not written.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal

import torch

from bakeoff.reference_engine.core.model_config import check_options
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.quantization.formats.base import IN_LAYERS, IntegerScheme, own_scheme, part_of
from bakeoff.reference_engine.quantization.formats.codes import Codes
from bakeoff.reference_engine.quantization.formats.packing import WORD, packed, unpacked
from bakeoff.reference_engine.quantization.integer_matrix import IntegerMatrix
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix

Version = Literal["gptq", "gptq_v2"]

_SKIPPED, _CHANGED = "-:", "+:"


@dataclasses.dataclass(frozen=True, slots=True)
class GptqFormat:
    """A `CheckpointFormat`.

    Attributes:
        default: of modules without an exception.
        version: of zero points.
        has_head: whether lm_head is quantised.
        exceptions: the first pattern that matches the beginning of a module's name applies; None: stays plain.
    """

    default: IntegerScheme
    version: Version = "gptq"
    has_head: bool = False
    exceptions: tuple[tuple[str, IntegerScheme | None], ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        return "qweight", "qzeros", "scales", "g_idx"

    def scheme(self, module: str) -> IntegerScheme | None:
        if IN_LAYERS not in module and not (self.has_head and module == "lm_head"):
            return None
        return self._listed(module)

    def _listed(self, module: str) -> IntegerScheme | None:
        return next((scheme for pattern, scheme in self.exceptions if re.match(pattern, module)), self.default)

    def decode(self, module: str, parts: Mapping[str, torch.Tensor]) -> IntegerMatrix:
        """Groups and zero points of the tensors have precedence over the configuration."""
        scheme = self._listed(module) or self.default
        codes = unpacked(part_of(parts, module, "qweight").t(), scheme.bits)
        scales = part_of(parts, module, "scales").t()
        zeros = unpacked(part_of(parts, module, "qzeros"), scheme.bits)[:, : scales.shape[0]].t()
        if self.version == "gptq":
            zeros = (zeros + 1) & ((1 << scheme.bits) - 1)
        index = part_of(parts, module, "g_idx") if scheme.act_order else parts.get("g_idx")
        stored = Codes(codes, scales, zeros, scheme.bits, index)
        if scheme.symmetric and bool((zeros == stored.middle).all()):
            stored = dataclasses.replace(stored, zeros=None)
        return stored.matrix(module)

    def encode(self, module: str, matrix: QuantisedMatrix) -> dict[str, torch.Tensor]:
        scheme = own_scheme(self.scheme(module), module)
        own = scheme.own(module, matrix)
        if any(size % (WORD // scheme.bits) for size in own.shape):
            raise ConfigError(
                f"{module}: GPTQ packs {WORD // scheme.bits} outputs and inputs in a word, which does not divide "
                f"{own.shape}; leave the module plain"
            )
        stored = Codes.of(own, module)
        zeros = stored.zeros
        if zeros is None:
            zeros = torch.full(stored.scales.shape, stored.middle, dtype=torch.uint8)
        if self.version == "gptq":
            if not zeros.all():
                raise ConfigError(f"{module}: version 1 of GPTQ cannot store a zero point of 0; write gptq_v2")
            zeros = zeros - 1
        columns = torch.arange(own.shape[1])
        index = columns // own.group if stored.group_index is None else stored.group_index
        return {
            "qweight": packed(stored.codes, scheme.bits).t().contiguous(),
            "qzeros": packed(zeros.t(), scheme.bits),
            "scales": stored.scales.t().contiguous(),
            "g_idx": index.to(torch.int32),
        }

    def config(self) -> dict[str, Any]:
        raw = {
            "quant_method": "gptq",
            **_fields(self.default),
            "lm_head": self.has_head,
            "checkpoint_format": self.version,
            "pack_dtype": "int32",
        }
        if not self.exceptions:
            return raw
        dynamic: dict[str, dict[str, Any]] = {
            f"{_SKIPPED if scheme is None else _CHANGED}{pattern}": {} if scheme is None else _fields(scheme)
            for pattern, scheme in self.exceptions
        }
        return raw | {"dynamic": dynamic}


def _fields(scheme: IntegerScheme) -> dict[str, Any]:
    return {
        "bits": scheme.bits,
        "group_size": scheme.group_size or -1,
        "desc_act": scheme.act_order,
        "sym": scheme.symmetric,
    }


def read_gptq(raw: Mapping[str, Any], where: str) -> GptqFormat:
    """Reads a `quantization_config`; see `registry.READERS`."""
    version = str(raw.get("checkpoint_format") or raw.get("format") or "gptq").lower()
    check_options({"checkpoint_format": version}, where, checkpoint_format=("gptq", "gptq_v2"))
    check_options(raw, where, is_marlin_format=(False, None), pack_dtype=("int32", None))
    exceptions: list[tuple[str, IntegerScheme | None]] = []
    changes: Mapping[str, Mapping[str, Any]] = raw.get("dynamic") or {}
    for pattern, changed in changes.items():
        if pattern.startswith(_SKIPPED):
            exceptions.append((pattern.removeprefix(_SKIPPED), None))
        else:
            exceptions.append((pattern.removeprefix(_CHANGED), _scheme({**raw, **changed}, where)))
    return GptqFormat(
        _scheme(raw, where),
        version="gptq_v2" if version == "gptq_v2" else "gptq",
        has_head=bool(raw.get("lm_head", False)),
        exceptions=tuple(exceptions),
    )


def _scheme(raw: Mapping[str, Any], where: str) -> IntegerScheme:
    check_options({"bits": raw["bits"]}, where, bits=(4, 8))
    size = int(raw.get("group_size", 128))
    return IntegerScheme(
        bits=4 if raw["bits"] == 4 else 8,
        group_size=None if size < 0 else size,
        symmetric=bool(raw.get("sym", True)),
        act_order=bool(raw.get("desc_act", False)),
    )
