"""Calibration of a machine: the load generator's own error over a grid of loads, stored in one file per user."""

from pathlib import Path
from typing import Any

import msgspec

from bakeoff.results.errors import UNDECODABLE, NotCalibrated, NotWritable, RunUnreadable
from bakeoff.results.files.atomic import write_atomic
from bakeoff.results.records import ClientError
from bakeoff.results.schema import SCHEMA_VERSION

SATURATED_BELOW = 0.98
"""Below this fraction of the requested chunks per second, the client or its mock server was saturated."""


class GridCell(msgspec.Struct, frozen=True, omit_defaults=True):
    """One load of the grid.

    Attributes:
        streams: concurrent streams.
        gap_s: time between two chunks of a stream.
        asked_chunks_per_s: requested rate over all streams; less than streams over gap, because each answer also
            waits for its first token.
        cpu_per_chunk_s: CPU time of the client per chunk received, including requests and framing.
        error: median over the repeats.
    """

    streams: int
    gap_s: float
    asked_chunks_per_s: float
    cpu_per_chunk_s: float
    error: ClientError

    @property
    def saturated(self) -> bool:
        """Whether the client or the mock server fell behind."""
        return self.error.chunks_per_s < SATURATED_BELOW * self.asked_chunks_per_s


class Calibration(msgspec.Struct, frozen=True, omit_defaults=True):
    """``calibration.json``.

    Attributes:
        schema_version: of the file.
        created_utc: end of the calibration, ISO 8601.
        bakeoff_version: version of the client.
        host: host name.
        environment: the machine, as in a run's manifest.
        workers: client processes.
        cores: core of each pinned worker; empty if none is pinned.
        transport: ``http`` or ``aiohttp``.
        repeats: measurements behind each cell.
        cells: in measuring order.
    """

    schema_version: int
    created_utc: str
    bakeoff_version: str
    host: str
    environment: dict[str, Any]
    workers: int
    cores: list[int]
    transport: str
    repeats: int
    cells: list[GridCell]


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Replace the stored calibration, creating its folder.

    Raises:
        NotWritable: the folder cannot be created or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWritable(
            f"cannot create {path.parent}: {error.strerror}", "set XDG_DATA_HOME to a folder you own"
        ) from error
    write_atomic(path, msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")


def read_calibration(path: Path) -> Calibration:
    """Read the stored calibration.

    Raises:
        NotCalibrated: no calibration is stored.
        RunUnreadable: the file is damaged or has another schema version.
    """
    try:
        calibration = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except FileNotFoundError as error:
        raise NotCalibrated("this machine has not been calibrated; run: bakeoff lab calibrate") from error
    except (OSError, *UNDECODABLE) as error:
        raise RunUnreadable(f"{path} cannot be read ({error}); run bakeoff lab calibrate again") from error
    if calibration.schema_version != SCHEMA_VERSION:
        raise RunUnreadable(f"{path} has schema {calibration.schema_version}; run bakeoff lab calibrate again")
    return calibration
