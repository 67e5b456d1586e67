"""The command ``bakeoff lab calibrate``: measures the client's own error."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import cyclopts

from bakeoff.harness.cli.command import Command, command
from bakeoff.harness.cli.options import Json
from bakeoff.harness.cli.output import print_line

if TYPE_CHECKING:
    from bakeoff.results.machine.calibration import Calibration

Several = cyclopts.Parameter(consume_multiple=True, negative="")


def calibrate(
    *,
    streams: Annotated[list[int] | None, Several] = None,
    gaps_ms: Annotated[list[float] | None, Several] = None,
    workers: int = 1,
    cores: Annotated[list[int] | None, Several] = None,
    transport: Literal["http", "aiohttp"] = "http",
    repeats: int = 3,
    show: Annotated[bool, cyclopts.Parameter(negative="")] = False,
) -> "Calibration":
    """Measure the load generator's own error on this machine.

    The default grid takes about 90 seconds; run nothing else meanwhile. The result is stored for this user.

    Examples
    --------
    bakeoff lab calibrate
    bakeoff lab calibrate --streams 64 512 --gaps-ms 5
    bakeoff lab calibrate --show

    Parameters
    ----------
    streams
        Numbers of concurrent streams; default 1 8 64 256 512.
    gaps_ms
        Milliseconds between two chunks of a stream, 1 to 100; default 50 20 10 5.
    workers
        Number of client processes.
    cores
        One core per worker to pin it to; not pinned by default.
    transport
        Client transport: http (the built-in one), or aiohttp for comparison.
    repeats
        Measurements per pair of streams and gap; the median is stored.
    show
        Print the stored calibration without measuring.
    """
    from bakeoff.harness.calibration.grid import GAPS_S, STREAMS, calibration_path
    from bakeoff.results.machine.calibration import read_calibration, write_calibration

    path = calibration_path()
    if show:
        stored = read_calibration(path)
        print_line(f"stored: {path}")
        return stored
    calibration = _measured(
        STREAMS if streams is None else streams,
        GAPS_S if gaps_ms is None else [gap_ms / 1e3 for gap_ms in gaps_ms],
        workers=workers,
        cores=cores or [],
        transport=transport,
        repeats=repeats,
    )
    write_calibration(path, calibration)
    print_line(f"stored: {path}")
    return calibration


def _show(calibration: "Calibration", *, json: Json = False) -> None:
    """Print a table of the errors.

    Parameters
    ----------
    json
        Print the calibration as JSON on stdout.
    """
    from bakeoff.harness.cli.output import print_result
    from bakeoff.results.report import print_calibration

    print_result(calibration, print_calibration, json=json)


def _measured(
    streams: Sequence[int], gaps_s: Sequence[float], *, workers: int, cores: Sequence[int], transport: str, repeats: int
) -> "Calibration":
    """Measure, with a progress bar on a terminal."""
    import asyncio

    import uvloop
    from rich.console import Console
    from rich.progress import Progress

    from bakeoff.harness.calibration.grid import calibrate_grid

    console = Console(stderr=True)
    with (
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        task = progress.add_task("calibrating", total=len(streams) * len(gaps_s))
        return runner.run(
            calibrate_grid(
                streams, gaps_s, workers=workers, cores=cores, transport=transport, repeats=repeats,
                done=lambda _: progress.advance(task),
            )
        )  # fmt: skip


COMMANDS = [Command("lab calibrate", command(calibrate, _show))]
