"""A plan as terminal tables."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bakeoff.harness.sizing import cells
from bakeoff.harness.sizing.calibration import Calibration
from bakeoff.harness.sizing.device import DevicePlan
from bakeoff.harness.sizing.plan import Plan, Sizing
from bakeoff.harness.sizing.prefix_cache import PrefixCachePlan
from bakeoff.results.show.terminal import terminal_table
from bakeoff.results.text.format import ABSENT, plain, rate_text


def print_plan(plan: Plan, console: Console) -> None:
    """Print model, devices, prefix cache, sizing and calibration."""
    _say(console, *cells.model_lines(plan), "")
    if len(plan.devices) > 1:
        _print_overview(plan, console)
    else:
        _print_device(plan.devices[0], console)
    if plan.prefix_cache is not None:
        _print_prefix_cache(plan, plan.prefix_cache, console)
    if plan.sizing is not None:
        _print_sizing(plan.sizing, console)
    for calibration in plan.calibration:
        _print_calibration(calibration, console)
    _say(console, "", *plan.assumptions, style="dim")


def _say(console: Console, *lines: str, style: str | None = None) -> None:
    for line in lines:
        console.print(plain(line), style=style, markup=False, highlight=False)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table with the first column aligned left, the others right."""
    table = terminal_table(headings[0])
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table


def _print_overview(plan: Plan, console: Console) -> None:
    """One line for each GPU."""
    headings = [
        "GPUs",
        "weights\nGiB",
        "for KV\nGiB",
        "fit",
        "TTFT\nfloor",
        "ITL\nfloor",
        "crit.\nbatch",
        "ITL\nalone",
        "max\ntok/s",
    ]
    console.print(_table(headings, [_overview_cells(plan, device) for device in plan.devices]))
    _say(
        console, *(f"{device.gpu.name} × {device.ranks}: {device.why_not}" for device in plan.devices if device.why_not)
    )


def _overview_cells(plan: Plan, device: DevicePlan) -> list[str]:
    rows = device.batches
    return [
        f"{device.ranks} × {device.gpu.name}",
        cells.gib_number(device.memory.weights),
        cells.gib_number(device.memory.for_kv) if rows else ABSENT,
        f"{device.fitting[plan.traffic.tokens]:,}",
        cells.seconds(device.ttft_floor_s) if rows else ABSENT,
        cells.seconds(device.itl_floor_s) if rows else ABSENT,
        ABSENT if device.critical_batch is None or not rows else f"{device.critical_batch:,}",
        cells.seconds(rows[0].itl_p50_s) if rows else ABSENT,
        f"{max(row.output_tokens_per_s for row in rows):,.0f}" if rows else ABSENT,
    ]


def _print_device(device: DevicePlan, console: Console) -> None:
    gpu, memory = device.gpu, device.memory
    rates = [f"{rate_text(rate, 'FLOP/s')} {dtype}" for dtype, rate in gpu.flops_per_s.items()]
    origin = "measured" if gpu.is_measured else "achievable shares of the datasheet"
    parts = f"weights {cells.gib(memory.weights)}, workspace {cells.gib(memory.workspace)}"
    _say(
        console,
        f"{cells.device_title(device)}: {', '.join([rate_text(gpu.bytes_per_s, 'B/s'), *rates])} ({origin})",
        f"memory of each: {parts}, runtime {cells.gib(memory.runtime)}; {cells.gib(memory.for_kv)} of "
        f"{cells.gib(memory.usable)} usable are left for KV",
        f"sequences that fit: {cells.fit_text(device)}",
        f"floors: TTFT {cells.seconds(device.ttft_floor_s)}, ITL {cells.seconds(device.itl_floor_s)}",
        f"decode turns compute-bound at: {cells.critical_text(device)}",
    )
    if device.why_not:
        _say(console, f"cannot be served: {device.why_not}", style="bold")
        return
    console.print()
    console.print(_table(cells.batch_headings(device), [cells.batch_cells(device, row) for row in device.batches]))


def _print_prefix_cache(plan: Plan, cache: PrefixCachePlan, console: Console) -> None:
    _say(console, "", cells.prefix_cache_title(cache), *cells.prefix_cache_lines(plan, cache))
    if cache.sizes:
        console.print(_table(cells.PREFIX_CACHE_HEADINGS, cells.prefix_cache_cells(cache)))


def _print_sizing(sizing: Sizing, console: Console) -> None:
    _say(console, "", f"{', '.join(sizing.slo)} at {sizing.rate_per_s:g} requests/s")
    if rows := cells.sizing_cells(sizing):
        console.print(_table(cells.sizing_headings(sizing), rows))
    _say(console, *filter(None, [cells.unpriced_text(sizing)]), *cells.failures(sizing.candidates), style="dim")


def _print_calibration(calibration: Calibration, console: Console) -> None:
    facts = ", ".join(f"{text} {name}" for name, text in cells.calibration_facts(calibration))
    _say(console, "", f"{calibration.engine} in {calibration.run}: {facts}; {cells.calibration_note(calibration)}")
    console.print(_table(cells.CALIBRATION_HEADINGS, cells.calibration_cells(calibration)))
