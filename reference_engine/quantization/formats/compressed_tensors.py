"""The checkpoints of compressed-tensors and llm-compressor: whole numbers, packed or a byte each, or FP8.

- `pack-quantized`: weight_packed int32 [out, in / n] with weight_shape, and weight_zero_point int32 [out / n, groups],
  packed along outputs (int8 [out, groups] in early files), where n = 32 / bits.
- `int-quantized`, `naive-quantized`: weight int8 [out, in], weight_zero_point int8 [out, groups].
- `float-quantized`, and `naive-quantized` of type float: weight float8_e4m3fn [out, in].

All have weight_scale [out, groups], or [out, 1], or one number, and early files weight_g_idx int32 [in] for groups that
are not neighbours (actorder group, which the library has dropped). Codes and zero points are signed; packed ones are
stored plus 2^(bits - 1).

Activations are quantised if the checkpoint quantises them dynamically in 8 bits with a scale for each token: to FP8
beside FP8 weights, to INT8 beside symmetric INT8 weights with a scale for each output. Others keep the model's dtype.
"""

import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from bakeoff.reference_engine.core.model_config import check_options
from bakeoff.reference_engine.errors import CheckpointError, ConfigError
from bakeoff.reference_engine.quantization.formats.base import IntegerScheme, own_scheme, part_of
from bakeoff.reference_engine.quantization.formats.codes import Codes, middle
from bakeoff.reference_engine.quantization.formats.fp8 import fp8_matrix, fp8_parts
from bakeoff.reference_engine.quantization.formats.packing import packed, unpacked
from bakeoff.reference_engine.quantization.formats.schemes import Fp8Scheme, Int8Scheme
from bakeoff.reference_engine.quantization.integer_matrix import IntegerMatrix
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix
from bakeoff.reference_engine.quantization.rounding import Bits

_log = logging.getLogger(__name__)

Storage = Literal["pack-quantized", "int-quantized", "naive-quantized", "float-quantized"]
AnyScheme = IntegerScheme | Int8Scheme | Fp8Scheme

_STORAGES: tuple[Storage, ...] = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized")
_PATTERN = "re:"
_ONE_SCALE = ("channel", "tensor")
_DYNAMIC = {"num_bits": 8, "symmetric": True, "strategy": "token", "dynamic": True}
_DYNAMIC_INT8, _DYNAMIC_FP8 = _DYNAMIC | {"type": "int"}, _DYNAMIC | {"type": "float"}


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Modules that are quantised alike.

    Attributes:
        scheme: of their weights.
        storage: of their weights.
        targets: names, classes or ``re:`` patterns, of which one must match.
    """

    scheme: AnyScheme
    storage: Storage = "pack-quantized"
    targets: tuple[str, ...] = ("Linear",)


@dataclasses.dataclass(frozen=True, slots=True)
class CompressedTensors:
    """A `CheckpointFormat`.

    Attributes:
        groups: the first one with a matching target applies.
        ignore: modules that stay plain, in the syntax of targets.
    """

    groups: tuple[Group, ...]
    ignore: tuple[str, ...] = ("lm_head",)

    @property
    def parts(self) -> tuple[str, ...]:
        return "weight_scale", "weight", "weight_packed", "weight_shape", "weight_zero_point", "weight_g_idx"

    def scheme(self, module: str) -> AnyScheme | None:
        group = None if _matches(module, self.ignore) else self._group(module)
        return None if group is None else group.scheme

    def _group(self, module: str) -> Group | None:
        return next((group for group in self.groups if _matches(module, group.targets)), None)

    def decode(self, module: str, parts: Mapping[str, torch.Tensor]) -> QuantisedMatrix:
        group = self._group(module)
        if group is None:
            raise CheckpointError(f"{module} is quantised, but no target of config_groups matches it; add one")
        match group.scheme:
            case Fp8Scheme():
                return fp8_matrix(parts, module)
            case Int8Scheme() as scheme:
                stored = _integer_matrix(module, parts, IntegerScheme(8, None), group.storage)
                if stored.scales.shape[1] != 1:
                    raise CheckpointError(
                        f"{module} has {stored.scales.shape[1]} scales an output; its config says one"
                    )
                return scheme.own(module, stored)
            case scheme:
                return _integer_matrix(module, parts, scheme, group.storage)

    def encode(self, module: str, matrix: QuantisedMatrix) -> dict[str, torch.Tensor]:
        scheme = own_scheme(self.scheme(module), module)
        group = self._group(module)
        assert group is not None  # it has a scheme
        match scheme:
            case Fp8Scheme():
                return fp8_parts(scheme.own(module, matrix), per_tensor=scheme.per_tensor)
            case Int8Scheme():
                own = scheme.own(module, matrix)
                return {"weight": own.codes.contiguous(), "weight_scale": own.scales.contiguous()}
            case _:
                return _integer_parts(module, scheme.own(module, matrix), group.storage)

    def config(self) -> dict[str, Any]:
        storages = {group.storage for group in self.groups}
        return {
            "quant_method": "compressed-tensors",
            "format": next(iter(storages)) if len(storages) == 1 else "mixed-precision",
            "quantization_status": "compressed",
            "config_groups": {f"group_{i}": _group_fields(group) for i, group in enumerate(self.groups)},
            "ignore": list(self.ignore),
            "kv_cache_scheme": None,
        }


def _integer_matrix(
    module: str, parts: Mapping[str, torch.Tensor], scheme: IntegerScheme, storage: Storage
) -> IntegerMatrix:
    bits = scheme.bits
    if storage == "pack-quantized":
        rows, columns = part_of(parts, module, "weight_shape").tolist()
        codes = unpacked(part_of(parts, module, "weight_packed"), bits)[:rows, :columns]
    else:
        stored = part_of(parts, module, "weight")
        if stored.dtype != torch.int8:
            raise CheckpointError(f"{module}: its weight is {stored.dtype}, and {storage} keeps int8")
        codes = _unsigned(stored, bits)
    index = parts.get("weight_g_idx")
    if index is not None and bool((index < 0).any()):  # a placeholder
        index = None
    scales = _columns(part_of(parts, module, "weight_scale"), codes.shape[0])
    zeros = None if scheme.symmetric else _zeros(part_of(parts, module, "weight_zero_point"), codes, bits)
    return Codes(codes, scales, zeros, bits, index).matrix(module)


def _integer_parts(module: str, matrix: IntegerMatrix, storage: Storage) -> dict[str, torch.Tensor]:
    codes, bits = Codes.of(matrix, module), matrix.bits
    if codes.group_index is not None:
        raise ConfigError(f"{module}: compressed-tensors no longer reads act-order; write gptq")
    if storage == "pack-quantized":
        tensors = {
            "weight_packed": packed(codes.codes, bits),
            "weight_shape": torch.tensor(matrix.shape),
            "weight_scale": codes.scales.contiguous(),
        }
        zeros = None if codes.zeros is None else packed(codes.zeros.t(), bits).t().contiguous()
    else:
        tensors = {"weight": _signed(codes.codes, bits), "weight_scale": codes.scales.contiguous()}
        zeros = None if codes.zeros is None else _signed(codes.zeros, bits)
    return tensors if zeros is None else tensors | {"weight_zero_point": zeros}


def _zeros(stored: torch.Tensor, codes: torch.Tensor, bits: Bits) -> torch.Tensor:
    rows = codes.shape[0]
    if stored.dtype == torch.int32:
        return unpacked(stored.t(), bits)[:, :rows].t()
    return _columns(_unsigned(stored, bits), rows)


def _columns(numbers: torch.Tensor, rows: int) -> torch.Tensor:
    """One number for each group, [rows, groups], from that shape, [rows] or a single number."""
    return numbers.reshape(1, 1).expand(rows, 1) if numbers.numel() == 1 else numbers.reshape(numbers.shape[0], -1)


def _unsigned(stored: torch.Tensor, bits: Bits) -> torch.Tensor:
    return stored.view(torch.uint8) + middle(bits)  # modulo 256


def _signed(codes: torch.Tensor, bits: Bits) -> torch.Tensor:
    return (codes - middle(bits)).view(torch.int8)


def _matches(module: str, targets: Sequence[str]) -> bool:
    kind = "Embedding" if module.endswith("embed_tokens") else "Linear"
    return any(
        re.match(target.removeprefix(_PATTERN), module) if target.startswith(_PATTERN) else target in (module, kind)
        for target in targets
    )


def _group_fields(group: Group) -> dict[str, Any]:
    bits, size, symmetric, kind, activations = 8, None, True, "int", None
    strategy = "channel"
    match group.scheme:
        case IntegerScheme() as scheme:
            bits, size, symmetric = scheme.bits, scheme.group_size, scheme.symmetric
            strategy = strategy if size is None else "group"
        case Int8Scheme():
            activations = _DYNAMIC_INT8
        case Fp8Scheme(per_tensor=per_tensor):
            kind, activations = "float", _DYNAMIC_FP8
            strategy = "tensor" if per_tensor else strategy
    return {
        "targets": list(group.targets),
        "weights": {
            "num_bits": bits,
            "type": kind,
            "symmetric": symmetric,
            "strategy": strategy,
            "group_size": size,
            "dynamic": False,
        },
        "input_activations": activations,
        "output_activations": None,
        "format": group.storage,
    }


def read_compressed_tensors(raw: Mapping[str, Any], where: str) -> CompressedTensors:
    """Reads a `quantization_config`; see `registry.READERS`."""
    sparsity: Mapping[str, Any] = raw.get("sparsity_config") or {}
    check_options({"sparsity": sparsity.get("format", "dense")}, where, sparsity=("dense",))
    check_options({"transform_config": raw.get("transform_config") or None}, where, transform_config=(None,))
    config_groups: Mapping[str, Mapping[str, Any]] = raw["config_groups"]
    groups = tuple(
        _read_group(group, group.get("format") or raw.get("format"), where) for group in config_groups.values()
    )
    return CompressedTensors(groups, tuple(raw.get("ignore") or ()))


def _read_group(raw: Mapping[str, Any], storage: str | None, where: str) -> Group:
    check_options({"format": storage}, where, format=_STORAGES)
    storage_kind: Storage = next(name for name in _STORAGES if name == storage)
    activations: Mapping[str, Any] = raw.get("input_activations") or {}
    weights: Mapping[str, Any] = raw["weights"]
    size = weights.get("group_size")
    strategy = weights.get("strategy") or ("tensor" if size is None else "channel" if size < 0 else "group")
    types = {"float-quantized": ("float",), "naive-quantized": ("int", "float")}.get(storage_kind, ("int",))
    check_options({"type": weights.get("type", "int")}, where, type=types)
    if weights.get("type") == "float":
        scheme = _float_scheme(weights, strategy, activations, where)
    else:
        scheme = _integer_scheme(weights, strategy, where)
        in_8_bits = scheme == IntegerScheme(8, None) and storage_kind != "pack-quantized"
        if in_8_bits and _is_dynamic(activations, _DYNAMIC_INT8):
            scheme = Int8Scheme()
        elif activations:
            _log.info("%s: activations stay in the dtype of the model; only weights are in fewer bits", where)
    return Group(scheme, storage_kind, tuple(raw["targets"]))


def _integer_scheme(weights: Mapping[str, Any], strategy: str, where: str) -> AnyScheme:
    check_options({"num_bits": weights["num_bits"]}, where, num_bits=(4, 8))
    check_options({"strategy": strategy}, where, strategy=("group", *_ONE_SCALE))
    return IntegerScheme(
        bits=4 if weights["num_bits"] == 4 else 8,
        group_size=None if strategy in _ONE_SCALE else int(weights["group_size"]),
        symmetric=bool(weights.get("symmetric", True)),
        act_order=weights.get("actorder") in ("group", "dynamic", True),
    )


def _float_scheme(weights: Mapping[str, Any], strategy: str, activations: Mapping[str, Any], where: str) -> Fp8Scheme:
    check_options({"num_bits": weights["num_bits"], "strategy": strategy}, where, num_bits=(8,), strategy=_ONE_SCALE)
    if activations and not _is_dynamic(activations, _DYNAMIC_FP8):
        raise CheckpointError(
            f"{where}: input_activations of FP8 weights are supported only if dynamic, with a scale for each token"
        )
    return Fp8Scheme(per_tensor=strategy == "tensor")


def _is_dynamic(activations: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether activations are quantised dynamically with the settings `wanted`."""
    return {"symmetric": True} | {name: activations[name] for name in wanted if name in activations} == wanted
