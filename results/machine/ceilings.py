"""Ceilings of a machine: memory bandwidth and matrix products measured by ``bakeoff lab machine``, stored beside runs.

A run that is started in the same folder of runs on the same machine copies them into its log.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.results.errors import UNDECODABLE, NotWritable, RunUnreadable
from bakeoff.results.files.atomic import write_atomic

CEILINGS_FILE = "ceilings.json"
READ, COPY = "read", "copy"
"""Keys of :attr:`Ceilings.spread` beside those of data types."""
_VERSION = 1
_MACHINE, _GPU = ("cpu", "cores"), ("name", "memory_bytes", "driver")


class Ceilings(msgspec.Struct, frozen=True):
    """Limits of one device.

    Attributes:
        device: ``cpu``, ``cuda:0``, …
        name: of the processor.
        memory_bytes: its memory.
        read_bytes_per_s: summing a tensor much larger than the caches.
        copy_bytes_per_s: copying such a tensor; bytes read and bytes written both count.
        flops_per_s: square matrix products by data type, on a GPU as they are sustained; a multiplication and an
            addition are two.
        spread: 10th percentile and maximum over the rounds of each measurement, in its unit: by ``read``, ``copy`` and
            data type.
        threads: of the host that computed; None on a GPU, or of an earlier measurement.
    """

    device: str
    name: str
    memory_bytes: int
    read_bytes_per_s: float
    copy_bytes_per_s: float
    flops_per_s: dict[str, float]
    spread: dict[str, tuple[float, float]] = {}
    threads: int | None = None


class _File(msgspec.Struct, frozen=True):
    version: int
    environment: dict[str, Any]
    devices: list[Ceilings]


def store_ceilings(root: Path, environment: Mapping[str, Any], devices: Sequence[Ceilings]) -> Path:
    """Store the ceilings of a machine in a folder of runs, replacing earlier ones.

    Args:
        root: folder of runs; created if missing.
        environment: of the machine, as in a run's manifest.
        devices: its ceilings.

    Raises:
        NotWritable: the folder cannot be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWritable(f"cannot make the folder {root}: {error.strerror}") from error
    path = root / CEILINGS_FILE
    file = _File(_VERSION, _machine(environment), list(devices))
    write_atomic(path, msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")
    return path


def stored_ceilings(root: Path, environment: Mapping[str, Any]) -> list[Ceilings]:
    """Read the ceilings that are stored in a folder of runs; empty if there are none of this machine.

    Args:
        root: folder of runs.
        environment: of the machine, as in a run's manifest.

    Raises:
        RunUnreadable: the file is damaged or has another version.
    """
    path = root / CEILINGS_FILE
    if not path.is_file():
        return []
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, *UNDECODABLE) as error:
        raise RunUnreadable(f"{path} is damaged ({error}); measure it again: bakeoff lab machine") from error
    if file.version != _VERSION:
        raise RunUnreadable(f"{path} has version {file.version}, not {_VERSION}; measure it again: bakeoff lab machine")
    return file.devices if _machine(file.environment) == _machine(environment) else []


def _machine(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that must be equal for ceilings to apply."""
    gpus = [{name: gpu.get(name) for name in _GPU} for gpu in environment.get("gpus") or []]
    return {**{name: environment.get(name) for name in _MACHINE}, "gpus": gpus}
