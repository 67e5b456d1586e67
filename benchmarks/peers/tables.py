"""Tables of results with a row for each client."""

from collections.abc import Callable, Sequence

from benchmarks.peers.misread import often_wrong
from benchmarks.peers.readings import (
    Read,
    Results,
    cpu_s_per_1m_chunks,
    itl_p99_error_ms,
    later_cpu_s_per_1m_chunks,
    rss_mb,
    ttft_error_ms,
)
from benchmarks.peers.scenarios import LEVELS


def headline(results: Results, clients: Sequence[str]) -> str:
    """The main table, with a row for each client."""
    rows = [[client, *(cell(results, client) for cell in _COLUMNS.values())] for client in clients]
    return aligned([["client", *_COLUMNS], *rows])


def trap_table(results: Results, clients: Sequence[str], traps: Sequence[str]) -> str:
    """Which reported figures each trap makes wrong."""
    rows = [["client", "trap", "wrong figures"]]
    for client in clients:
        for trap in traps:
            verdict = "; ".join(often_wrong(results.trials(client, trap))) or "none"
            rows.append([client, trap, "all: it ended badly" if results.failed(trap, client) else verdict])
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are padded."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _cell(form: str, *readings: tuple[str, Read]) -> Callable[[Results, str], str]:
    """A column: one figure for each pair of scenario and statistic."""

    def cell(results: Results, client: str) -> str:
        values = [results.median(scenario, client, read) for scenario, read in readings]
        if set(values) == {None}:
            return "–"
        whole = form.endswith("d")  # the median of an even number of rounds is no integer
        return " / ".join("–" if v is None else format(round(v) if whole else v, form) for v in values)

    return cell


_PACED = [f"paced-{streams}" for streams in LEVELS]
_COLUMNS: dict[str, Callable[[Results, str], str]] = {
    f"TTFT error mean, ms, c = {' / '.join(map(str, LEVELS))}": _cell(
        "+.2f", *((name, ttft_error_ms) for name in _PACED)
    ),
    "ITL p99 error, ms, same": _cell("+.2f", *((name, itl_p99_error_ms) for name in _PACED)),
    "in flight, same": _cell(".1f", *((name, lambda trial: trial.truth.in_flight) for name in _PACED)),
    "chunks/s, ITL 0, c = 64 / 256 / 64 by 8": _cell(
        ",.0f",
        *(
            (name, lambda trial: trial.truth.chunks_per_s)
            for name in ("capacity-64", "capacity-256", "capacity-64-by-8")
        ),
    ),
    "CPU s / 1M chunks, ITL 0 / paced": _cell(
        ".1f", ("capacity-64", cpu_s_per_1m_chunks), ("paced-256", cpu_s_per_1m_chunks)
    ),
    "and later": _cell(".1f", ("capacity-64", later_cpu_s_per_1m_chunks), ("paced-256", later_cpu_s_per_1m_chunks)),
    "req/s, 1 token": _cell(",.0f", ("one-token", lambda trial: trial.truth.requests_per_s)),
    "Poisson 500: rate / CV": _cell(
        ".2f",
        ("poisson-500", lambda trial: trial.truth.arrivals_per_s),
        ("poisson-500", lambda trial: trial.truth.arrivals_cv),
    ),
    "peak RSS MB, paced 8 / 256 / ITL 0": _cell(
        ".0f", ("paced-8", rss_mb), ("paced-256", rss_mb), ("capacity-256", rss_mb)
    ),
    "processes": _cell("d", ("paced-64", lambda trial: trial.footprint.processes)),
}
