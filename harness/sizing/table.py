"""A plan as terminal tables."""

from rich.console import Console

from bakeoff.harness.sizing import cells
from bakeoff.harness.sizing.calibration import Calibration
from bakeoff.harness.sizing.device import DevicePlan
from bakeoff.harness.sizing.plan import Plan, Sizing
from bakeoff.harness.sizing.prefix_cache import PrefixCachePlan
from bakeoff.results.show.table import text_table
from bakeoff.results.show.terminal import print_table
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
    rows = (_overview_cells(plan, device) for device in plan.devices)
    print_table(text_table("GPUs", headings, rows), console)
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
    print_table(cells.batch_table(device), console)


def _print_prefix_cache(plan: Plan, cache: PrefixCachePlan, console: Console) -> None:
    _say(console, "", cells.prefix_cache_title(cache), *cells.prefix_cache_lines(plan, cache))
    if cache.sizes:
        print_table(cells.prefix_cache_table(cache), console)


def _print_sizing(sizing: Sizing, console: Console) -> None:
    _say(console, "", f"{', '.join(sizing.slo)} at {sizing.rate_per_s:g} requests/s")
    if (table := cells.sizing_table(sizing)).rows:
        print_table(table, console)
    _say(console, *filter(None, [cells.unpriced_text(sizing)]), *cells.failures(sizing.candidates), style="dim")


def _print_calibration(calibration: Calibration, console: Console) -> None:
    facts = ", ".join(f"{text} {name}" for name, text in cells.calibration_facts(calibration))
    _say(console, "", f"{calibration.engine} in {calibration.run}: {facts}; {cells.calibration_note(calibration)}")
    print_table(cells.calibration_table(calibration), console)
