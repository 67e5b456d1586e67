"""Figures of GPUs: the built-in table, a user's own, or what ``bakeoff lab machine --json`` measured."""

import math
import tomllib
from collections.abc import Container, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.harness.errors import BadPlan

_BYTES_SHARE, _FLOPS_SHARE = 0.9, 0.7
"""Shares of a datasheet's peaks that one large read and sustained matrix products reach; used unless measured."""
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8"}
"""torch's names of data types."""
_WIDE = ("bf16", "fp16", "fp32")
"""Types one of which computes what a device does not support."""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A positive number and where it comes from."""

    value: float
    source: str

    def __post_init__(self) -> None:
        _check_positive("value", self.value)


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU of a table, see gpus.toml."""

    title: str
    memory_bytes: Figure
    bytes_per_s: Figure
    flops_per_s: dict[str, Figure]
    tdp_w: Figure | None = None
    link_bytes_per_s: Figure | None = None
    bytes_share: Figure | None = None
    flops_share: Figure | None = None

    def __post_init__(self) -> None:
        _check_types(self.flops_per_s)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    gpus: dict[str, _Entry]


class _Measured(msgspec.Struct, frozen=True):
    """One device of ``bakeoff lab machine --json``."""

    device: str
    name: str
    memory_bytes: int
    read_bytes_per_s: float
    flops_per_s: dict[str, float]

    def __post_init__(self) -> None:
        _check_types([_DTYPES.get(name, name) for name in self.flops_per_s])
        rates = {f"flops_per_s.{name}": rate for name, rate in self.flops_per_s.items()}
        for name, value in {
            "memory_bytes": self.memory_bytes,
            "read_bytes_per_s": self.read_bytes_per_s,
            **rates,
        }.items():
            _check_positive(name, value)


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} {value} must be above 0, and finite")


def _check_types(dtypes: Container[str]) -> None:
    if not any(dtype in dtypes for dtype in _WIDE):
        raise ValueError(f"flops_per_s must have {' or '.join(_WIDE)}")


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one device.

    Attributes:
        name: key in the table.
        title: full name.
        memory_bytes: usable memory.
        bytes_per_s: memory bandwidth that one large read reaches.
        flops_per_s: dense matrix products that are sustained, by data type.
        tdp_w: maximum power; None if unknown.
        link_bytes_per_s: one direction, to the other GPUs of its host; None if it has no others.
        is_measured: whether this machine was measured; otherwise datasheet peaks times stated shares.
        sources: of each figure.
    """

    name: str
    title: str
    memory_bytes: float
    bytes_per_s: float
    flops_per_s: dict[str, float]
    tdp_w: float | None = None
    link_bytes_per_s: float | None = None
    is_measured: bool = False
    sources: dict[str, str] = {}

    def flops(self, dtype: str) -> float:
        """Products per second in a data type; for an unsupported one in bf16, or in the widest type of the device.

        Raises:
            BadPlan: the type is fp32, which no other one replaces.
        """
        rates = self.flops_per_s
        if dtype == "fp32" and dtype not in rates:
            raise BadPlan(f"the products of {self.name} in fp32 are unknown; add flops_per_s.fp32 to its --gpus file")
        return rates.get(dtype) or rates.get("bf16") or rates.get("fp16") or rates["fp32"]


def gpu_table(extra: Path | None = None, machine: Path | None = None) -> dict[str, Gpu]:
    """All known devices by name.

    Args:
        extra: a TOML file like gpus.toml; its entries take precedence.
        machine: output of ``bakeoff lab machine --json``; its devices are named ``cpu``, ``cuda:0``, …

    Raises:
        BadPlan: a file cannot be read or has unknown or missing fields.
    """
    built_in = (resources.files("bakeoff.harness.sizing") / "gpus.toml").read_text(encoding="utf-8")
    table = _entries(built_in, "gpus.toml")
    if extra is not None:
        table |= _entries(_text(extra), str(extra))
    return table | ({} if machine is None else _devices(_text(machine), str(machine)))


def chosen(table: Mapping[str, Gpu], names: Iterable[str]) -> list[Gpu]:
    """The GPUs of these names; without names all of the table.

    Raises:
        BadPlan: a name is unknown.
    """
    wanted = [name.lower() for name in names] or list(table)
    if unknown := [name for name in wanted if name not in table]:
        raise BadPlan(
            f"unknown GPU '{unknown[0]}'; known: {', '.join(table)}; add others with --gpus FILE.toml, this machine "
            "with --machine FILE.json"
        )
    return [table[name] for name in dict.fromkeys(wanted)]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadPlan(f"cannot read {path}: {error}") from error


def _entries(text: str, where: str) -> dict[str, Gpu]:
    try:
        table = msgspec.convert(tomllib.loads(text), _Table)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadPlan(f"{where}: {error}; write it like harness/sizing/gpus.toml") from error
    except RecursionError as error:
        raise BadPlan(f"{where} is nested too deeply; write it like harness/sizing/gpus.toml") from error
    return {name.lower(): _gpu(name.lower(), entry) for name, entry in table.gpus.items()}


def _gpu(name: str, entry: _Entry) -> Gpu:
    bytes_share = entry.bytes_share or Figure(_BYTES_SHARE, "assumed")
    flops_share = entry.flops_share or Figure(_FLOPS_SHARE, "assumed")
    figures: dict[str, Any] = {
        "memory_bytes": entry.memory_bytes, "bytes_per_s": entry.bytes_per_s, "tdp_w": entry.tdp_w,
        "link_bytes_per_s": entry.link_bytes_per_s, "bytes_share": bytes_share, "flops_share": flops_share,
        **{f"flops_per_s.{dtype}": figure for dtype, figure in entry.flops_per_s.items()},
    }  # fmt: skip
    return Gpu(
        name=name,
        title=entry.title,
        memory_bytes=entry.memory_bytes.value,
        bytes_per_s=entry.bytes_per_s.value * bytes_share.value,
        flops_per_s={dtype: figure.value * flops_share.value for dtype, figure in entry.flops_per_s.items()},
        tdp_w=entry.tdp_w.value if entry.tdp_w else None,
        link_bytes_per_s=entry.link_bytes_per_s.value if entry.link_bytes_per_s else None,
        sources={key: f"{figure.value:g}: {figure.source}" for key, figure in figures.items() if figure is not None},
    )


def _devices(text: str, where: str) -> dict[str, Gpu]:
    try:
        devices = msgspec.json.decode(text, type=list[_Measured])
    except msgspec.DecodeError as error:
        raise BadPlan(f"{where}: {error}; write it with bakeoff lab machine --json") from error
    return {
        device.device: Gpu(
            name=device.device,
            title=device.name,
            memory_bytes=device.memory_bytes,
            bytes_per_s=device.read_bytes_per_s,
            flops_per_s={_DTYPES.get(name, name): rate for name, rate in device.flops_per_s.items()},
            is_measured=True,
            sources={"all": f"bakeoff lab machine: {where}"},
        )
        for device in devices
    }
