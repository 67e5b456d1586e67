"""A machine's calibration: how wrong the measuring client is on it, over a grid of loads; one file per user."""

from pathlib import Path
from typing import Any

import msgspec

from results.atomic import write_atomic
from results.errors import NotCalibrated, NotWritable, RunUnreadable
from results.records import ClientError, schema_problem

SATURATED_BELOW = 0.98
"""A client that reached a smaller share of the chunks per second asked for did not keep up, or its server did not."""


class GridCell(msgspec.Struct, frozen=True, omit_defaults=True):
    """One load of the grid.

    Attributes:
        streams: kept in flight.
        gap_s: between two chunks of a stream.
        asked_chunks_per_s: over all streams, when nothing is ever late; answers have a first token to wait for, so
            this is less than streams over gap.
        cpu_per_chunk_s: CPU time of the client for each chunk that it read, requests and framing included.
        error: the median of the repeats.
    """

    streams: int
    gap_s: float
    asked_chunks_per_s: float
    cpu_per_chunk_s: float
    error: ClientError

    @property
    def saturated(self) -> bool:
        """Whether the load could not be kept up."""
        return self.error.chunks_per_s < SATURATED_BELOW * self.asked_chunks_per_s


class Calibration(msgspec.Struct, frozen=True, omit_defaults=True):
    """``calibration.json``.

    Attributes:
        schema_version: of the file.
        created_utc: when it ended, ISO 8601.
        bakeoff_version: of the client.
        host: name of the machine.
        environment: what it is, as in a run's manifest.
        workers: processes of the client.
        cores: one for each worker that was pinned; empty for none.
        transport: ``http`` or ``aiohttp``.
        repeats: calibrations behind each cell.
        cells: in the order in which they were measured.
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
    """Replace the stored calibration; its folder is made.

    Raises:
        NotWritable: the folder cannot be made or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWritable(
            f"cannot make {path.parent}: {error.strerror}; set XDG_DATA_HOME to a folder you own"
        ) from error
    write_atomic(path, msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")


def read_calibration(path: Path) -> Calibration:
    """The stored calibration.

    Raises:
        NotCalibrated: there is none.
        RunUnreadable: it is damaged, or of another schema.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except FileNotFoundError as error:
        raise NotCalibrated("this machine has not been calibrated; run: bakeoff calibrate") from error
    except (msgspec.MsgspecError, OSError) as error:
        raise RunUnreadable(f"{path} cannot be read ({error}); run bakeoff calibrate again") from error
    if problem := schema_problem(found.schema_version):
        raise RunUnreadable(f"{path} {problem}")
    return found
