"""The client's error on this machine over a grid of loads: ``bakeoff lab calibrate``."""

import socket
import statistics
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import platformdirs

from bakeoff import system
from bakeoff.harness.calibration.client_error import MAX_GAP_S, MIN_GAP_S, Shape, calibrate, median_of
from bakeoff.harness.client import Fleet, local_fleet
from bakeoff.harness.errors import BadGrid
from bakeoff.harness.host.environment import VERSION, environment
from bakeoff.results.machine.calibration import Calibration, GridCell
from bakeoff.results.schema import SCHEMA_VERSION

STREAMS = (1, 8, 64, 256, 512)
GAPS_S = (0.05, 0.02, 0.01, 0.005)
REPEATS = 3
MAX_STREAMS = 4096


def calibration_path() -> Path:
    """File with this user's calibration, in the platform's user data folder (see ``XDG_DATA_HOME``)."""
    return platformdirs.user_data_path("bakeoff") / "calibration.json"


async def calibrate_grid(
    streams: Sequence[int] = STREAMS,
    gaps_s: Sequence[float] = GAPS_S,
    *,
    workers: int = 1,
    cores: Sequence[int] = (),
    transport: str = "http",
    repeats: int = REPEATS,
    done: Callable[[GridCell], None] = lambda _: None,
) -> Calibration:
    """Measure every pair of ``streams`` and ``gaps_s``.

    For each number of streams, measures all gaps in order, each ``repeats`` times in a row. A repeat takes about 1.3 s.

    Args:
        streams: numbers of concurrent streams.
        gaps_s: seconds between two chunks of a stream.
        workers: number of client processes.
        cores: one per worker to pin it to; empty for none.
        transport: ``http`` or ``aiohttp``.
        repeats: calibrations per cell; the result is their median.
        done: called with each cell.

    Raises:
        BadGrid: an argument is out of range.
        ClientFailed, TruthFailed: a calibration failed.
    """
    problem = _problem(streams, gaps_s, workers=workers, cores=cores, repeats=repeats)
    if problem:
        raise BadGrid(problem)
    cells: list[GridCell] = []
    async with local_fleet(workers, cores) as fleet:
        for count in streams:
            for gap_s in gaps_s:
                cells.append(await _cell(fleet, count, gap_s, transport, repeats))
                done(cells[-1])
    return Calibration(
        schema_version=SCHEMA_VERSION,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        bakeoff_version=VERSION,
        host=socket.gethostname(),
        environment=environment(),
        workers=workers,
        cores=list(cores),
        transport=transport,
        repeats=repeats,
        cells=cells,
    )


async def _cell(fleet: Fleet, streams: int, gap_s: float, transport: str, repeats: int) -> GridCell:
    shape = Shape(gap_s=gap_s, concurrency=streams).fitted()
    errors = [await calibrate(fleet, shape, transport) for _ in range(repeats)]
    return GridCell(
        streams=streams,
        gap_s=gap_s,
        asked_chunks_per_s=shape.chunks_per_s,
        cpu_per_chunk_s=statistics.median(error.cpu_s / (error.requests * shape.chunks) for error in errors),
        error=median_of(errors),
    )


def _problem(
    streams: Sequence[int], gaps_s: Sequence[float], *, workers: int, cores: Sequence[int], repeats: int
) -> str | None:
    """The first invalid argument, or None."""
    allowed = system.usable_cores()
    checks = (
        (bool(streams) and bool(gaps_s), "a grid needs at least one number of streams and one gap"),
        (all(1 <= count <= MAX_STREAMS for count in streams), f"streams must be between 1 and {MAX_STREAMS}"),
        (
            all(MIN_GAP_S <= gap_s <= MAX_GAP_S for gap_s in gaps_s),
            f"gaps must be between {MIN_GAP_S * 1e3:g} and {MAX_GAP_S * 1e3:g} ms",
        ),
        (workers >= 1, "workers must be at least 1"),
        (len(cores) in {0, workers}, "cores must name one core for each worker"),
        (set(cores) <= set(allowed), f"cores must be among those of this process: {', '.join(map(str, allowed))}"),
        (repeats >= 1, "repeats must be at least 1"),
    )
    return next((message for valid, message in checks if not valid), None)
