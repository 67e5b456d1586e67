"""A calibration as a table: the load generator's own error at each load of the grid."""

from rich.console import Console
from rich.text import Text

from bakeoff.results.machine.calibration import Calibration, GridCell
from bakeoff.results.metrics.client_error import error_s
from bakeoff.results.show.table import Cell, Table, figures, names
from bakeoff.results.show.terminal import print_table
from bakeoff.results.text.format import ABSENT, listed, moment_text, place_text, plain, share_text

_ERRORS = {"TTFT p50": "ttft_p50_s", "p99": "ttft_p99_s", "ITL p99": "itl_p99_s"}


def print_calibration(calibration: Calibration, console: Console) -> None:
    """Print a calibration.

    Args:
        calibration: the calibration.
        console: the console, at least 80 columns wide.
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
    titles = ("streams", "gap ms", *_ERRORS, "lag", "chunks/s", "share", "µs/chunk")
    note = (
        "TTFT, ITL: ± in ms, the largest error of this percentile. lag: p99 of the send lag in ms. "
        "share: chunks/s reached of those requested. µs/chunk: CPU time of the client."
    )
    rows = [list(map(Cell, _row(cell))) for cell in calibration.cells]
    print_table(Table("Calibration", [*figures(titles), *names("")], rows, notes=[note]), console)


def _row(cell: GridCell) -> tuple[str, ...]:
    error = cell.error
    return (
        f"{cell.streams:,}",
        f"{cell.gap_s * 1e3:g}",
        *(_ms(error_s(metric, error)) for metric in _ERRORS.values()),
        _ms(error.send_lag_s),
        f"{error.chunks_per_s:,.0f}",
        share_text(error.chunks_per_s, cell.asked_chunks_per_s),
        f"{cell.cpu_per_chunk_s * 1e6:.1f}",
        "saturated" if cell.saturated else "",
    )


def _ms(seconds: float | None) -> str:
    """Milliseconds throughout, so that columns are easy to scan."""
    return ABSENT if seconds is None else f"{seconds * 1e3:.2f}"
