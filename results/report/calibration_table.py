"""A calibration as a table: how well this machine's client knows a latency, at each load of the grid."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from results.calibration import Calibration, GridCell
from results.report.format import ABSENT, listed, moment_text, place_text, plain, share_text

_COLUMNS = ("streams", "gap ms", "TTFT ± ms", "ITL ± ms", "lag ms", "chunks/s", "of asked", "µs/chunk", "")


def print_calibration(calibration: Calibration, console: Console) -> None:
    """Print a calibration.

    Args:
        calibration: as measured, or as read back.
        console: where to; 80 columns are enough.
    """
    where = place_text(calibration.environment, calibration.host)
    workers = f"{calibration.workers} client worker{'' if calibration.workers == 1 else 's'}"
    pinned = f" on cores {listed([str(core) for core in calibration.cores])}" if calibration.cores else ""
    console.print(Text(plain(where), "bold"), soft_wrap=True)
    console.print(
        Text(
            f"bakeoff {calibration.bakeoff_version} · {moment_text(calibration.created_utc)} · {workers}{pinned} · "
            f"transport {calibration.transport} · median of {calibration.repeats}",
            "dim",
        ),
        soft_wrap=True,
    )
    console.print(_table(calibration))
    console.print(
        Text(
            "±: 99 % of the requests, and of the gaps between chunks, were within this of the truth. lag: 99 % of the "
            "sends. µs/chunk: CPU time of the client.",
            "dim",
        )
    )


def _table(calibration: Calibration) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    for title in _COLUMNS:
        table.add_column(Text(title), justify="right" if title else "left", no_wrap=True)
    before: int | None = None
    for cell in calibration.cells:
        if before not in {None, cell.streams}:
            table.add_section()
        table.add_row(*_row(cell), style="yellow" if cell.saturated else "")
        before = cell.streams
    return table


def _row(cell: GridCell) -> tuple[str, ...]:
    error = cell.error
    return (
        f"{cell.streams:,}",
        f"{cell.gap_s * 1e3:g}",
        _ms(error.ttft_s),
        ABSENT if error.itl_s is None else _ms(error.itl_s),
        _ms(error.send_lag_s),
        f"{error.chunks_per_s:,.0f}",
        share_text(error.chunks_per_s, cell.asked_chunks_per_s),
        f"{cell.cpu_per_chunk_s * 1e6:.1f}",
        "saturated" if cell.saturated else "",
    )


def _ms(seconds: float) -> str:
    """One unit all the way down, so that a column can be read as one."""
    return f"{seconds * 1e3:.2f}"
