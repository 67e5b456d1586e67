"""The load generator: its own error for each latency, and its workers if there are several."""

import msgspec

from bakeoff.results.metrics import Unit
from bakeoff.results.records import ClientRecord
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Table, text_table
from bakeoff.results.text.format import ABSENT, error_text, listed, value_text

WITH_ERROR = ("ttft_p50_s", "itl_p50_s")
"""Metrics printed with the client's own error."""


class ErrorText(msgspec.Struct, frozen=True):
    """``0.31 ms``, or the mark of absence with the reason; the reason is empty if there is a number."""

    text: str
    why: str


def error_of(cell: Cell, metric: str) -> ErrorText:
    """Return the client's own error of a latency metric in one cell."""
    error_s = cell.error_s(metric)
    if error_s is not None:
        return ErrorText(error_text(error_s), "")
    reason = f"not calibrated: {cell.uncalibrated}" if cell.client_error is None else "every answer is a single chunk"
    return ErrorText(ABSENT, reason)


def uncalibrated_text(run: Run) -> str:
    """Why no cell of a run has a client error; empty if any has."""
    if any(cell.client_error for cell in run.cells):
        return ""
    reasons = dict.fromkeys(cell.uncalibrated or "it was not measured" for cell in run.cells)
    return f"not calibrated: {'; '.join(reasons)}" if reasons else ""


def client_table(run: Run) -> Table | None:
    """One row per worker over all finished trials; None if there is only one."""
    workers = _workers(run)
    if len(workers) < 2:
        return None
    headings = ["#", "host", "requests", "CPU", "peak memory", "clock, minus the harness’s"]
    rows = (_row(number, records) for number, records in enumerate(workers, start=1))
    return text_table("Client workers", headings, rows, named=2, title="Client workers")


def clients_text(run: Run) -> str:
    """``client: 2 workers on a and b, CPU 3.12 s, largest 45.1 MiB, clocks known to ± 0.085 ms``; empty for one."""
    workers = _workers(run)
    if len(workers) < 2:
        return ""
    every = [record for records in workers for record in records]
    hosts = listed(list(dict.fromkeys(record.host for record in every)))
    text = (
        f"client: {len(workers)} workers on {hosts}, CPU {value_text(Unit.SECONDS, sum(r.cpu_s for r in every))}, "
        f"largest {value_text(Unit.BYTES, max(r.rss_bytes for r in every))}"
    )
    uncertainty_ns = max(record.clock_uncertainty_ns for record in every)
    clocks = f", clocks known to ± {error_text(uncertainty_ns / 1e9)}" if uncertainty_ns else ""
    return text + clocks


def _workers(run: Run) -> list[list[ClientRecord]]:
    """Records of each worker. Trials list workers in a fixed order; at low concurrency the last ones are absent."""
    most = max((len(trial.record.clients) for trial in run.finished), default=0)
    return [[trial.record.clients[i] for trial in run.finished if i < len(trial.record.clients)] for i in range(most)]


def _row(number: int, records: list[ClientRecord]) -> tuple[str, ...]:
    worst = max(records, key=lambda record: record.clock_uncertainty_ns)
    return (
        str(number),
        listed(list(dict.fromkeys(record.host for record in records))),
        f"{sum(record.planned_requests for record in records):,}",
        value_text(Unit.SECONDS, sum(record.cpu_s for record in records)),
        value_text(Unit.BYTES, max(record.rss_bytes for record in records)),
        _clock(worst),
    )


def _clock(record: ClientRecord) -> str:
    if not record.clock_uncertainty_ns:
        return "the harness’s own"
    offset = value_text(Unit.SECONDS, record.clock_offset_ns / 1e9)
    return f"{offset} ± {error_text(record.clock_uncertainty_ns / 1e9)}"
