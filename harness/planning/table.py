"""A plan as terminal tables."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from harness.planning.calibration import Calibration
from harness.planning.device import BatchRow, DevicePlan
from harness.planning.plan import Plan, Sizing
from harness.planning.sizing import Candidate
from results.metrics import CATALOGUE, Unit
from results.report.terminal_table import terminal_table
from results.text.format import ABSENT, percent_text, plain, rate_text, value_text

_SMALL_CONTEXTS = 5


def print_plan(plan: Plan, console: Console) -> None:
    """Print model, each device, sizing and calibration."""
    for line in model_lines(plan):
        console.print(plain(line), markup=False, highlight=False)
    if len(plan.devices) > 1:
        _print_overview(plan, console)
    else:
        _print_device(plan.devices[0], console)
    if plan.sizing is not None:
        _print_sizing(plan.sizing, console)
    for calibration in plan.calibration:
        _print_calibration(calibration, console)
    console.print()
    for line in plan.assumptions:
        console.print(plain(line), style="dim", markup=False, highlight=False)


def model_lines(plan: Plan) -> list[str]:
    """The model in words."""
    model, traffic = plan.model, plan.traffic
    active = (
        "" if model.active_parameters >= model.parameters / 2 else f", {model.active_parameters / 1e9:.2f} G active"
    )
    cached = f", {traffic.cached_tokens:,} of them cached" if traffic.cached_tokens else ""
    return [
        (
            f"{model.name}: {model.parameters / 1e9:.2f} G parameters{active}; "
            f"{value_text(Unit.BYTES, model.weight_bytes)} in {model.precision} ({model.layout})"
        ),
        f"KV cache in {model.cache}: {model.kv_bytes_per_token / 1024:,.1f} KiB a token: {model.kv_parts}",
        f"requests: {traffic.input_tokens:,} prompt tokens{cached}, {traffic.output_tokens:,} output tokens",
    ]


def _print_overview(plan: Plan, console: Console) -> None:
    """One line for each GPU."""
    table = terminal_table("GPU")
    headings = ("GPUs", "weights", "for KV", f"fit at {plan.traffic.tokens:,}", "TTFT floor", "ITL floor", "critical")
    for heading in (*headings, "ITL alone", "most tok/s"):
        table.add_column(heading, justify="right")
    for device in plan.devices:
        rows = device.batches
        table.add_row(
            device.gpu.name,
            str(device.ranks),
            _gib(device.memory.weights),
            _gib(device.memory.for_kv),
            f"{device.fitting[plan.traffic.tokens]:,}",
            _seconds(device.ttft_floor_s),
            _seconds(device.itl_floor_s),
            ABSENT if device.critical_batch is None else f"{device.critical_batch:,}",
            _seconds(rows[0].itl_p50_s) if rows else ABSENT,
            f"{max(row.output_tokens_per_s for row in rows):,.0f}" if rows else ABSENT,
        )
    console.print()
    console.print(table)
    for device in plan.devices:
        if device.why_not:
            console.print(plain(f"{device.gpu.name}: {device.why_not}"), markup=False, highlight=False)


def _print_device(device: DevicePlan, console: Console) -> None:
    gpu, memory = device.gpu, device.memory
    fit = [f"{count:,} of {context:,}" for context, count in device.fitting.items()]
    lines = [
        "",
        f"{gpu.title}{f' × {device.ranks}' if device.ranks > 1 else ''}: {rate_text(gpu.bytes_per_s, 'B/s')}, "
        + ", ".join(f"{rate_text(rate, 'FLOP/s')} {dtype}" for dtype, rate in gpu.flops_per_s.items())
        + (", measured" if gpu.is_measured else ", achievable shares of the datasheet"),
        (
            f"memory{' on each' if device.ranks > 1 else ''}: weights {_gib(memory.weights)}, workspace "
            f"{_gib(memory.workspace)}, runtime {_gib(memory.runtime)}; of {_gib(memory.usable)} usable "
            f"{_gib(memory.for_kv)} are left for KV"
        ),
        f"sequences that fit (by tokens): {', '.join(fit)}",
        (
            f"floors: TTFT {_seconds(device.ttft_floor_s)}, ITL {_seconds(device.itl_floor_s)}; decode turns compute-bound "
            f"at batch {_batch(device.critical_batch)} with an empty context, {_batch(device.critical_batch_at_context)} with "
            "these requests"
        ),
    ]
    for line in lines:
        console.print(plain(line), markup=False, highlight=False, soft_wrap=False)
    if device.why_not:
        console.print(plain(f"cannot be served: {device.why_not}"), style="bold", markup=False, highlight=False)
        return
    console.print()
    console.print(_batch_table(device.batches))


def _batch_table(rows: Sequence[BatchRow]):  # noqa: ANN202  (a rich table)
    table = terminal_table()
    priced = rows[0].cost_per_million_output is not None
    headings = ["in flight", "ITL floor", "bound", "ITL p50", "TTFT p50", "tok/s", "req/s", "J/token"]
    for heading in headings + (["1M in", "1M out"] if priced else []):
        table.add_column(heading, justify="right")
    for row in rows:
        energy = row.energy_per_output_token_j
        costs = [_money(row.list_price_per_million_input), _money(row.cost_per_million_output)] if priced else []
        table.add_row(
            f"{row.batch:,}",
            _seconds(row.itl_floor_s),
            "memory" if row.is_memory_bound else "compute",
            _seconds(row.itl_p50_s),
            _seconds(row.ttft_p50_s),
            f"{row.output_tokens_per_s:,.0f}",
            f"{row.requests_per_s:.3g}",
            ABSENT if energy is None else f"≤ {energy:.3g}",
            *costs,
        )
    return table


def _print_sizing(sizing: Sizing, console: Console) -> None:
    kept = [each for each in sizing.candidates if each.failure is None]
    priced = any(each.price_per_hour is not None for each in kept)
    console.print()
    console.print(f"{', '.join(sizing.slo)} at {sizing.rate_per_s:g} requests/s:", markup=False, highlight=False)
    table = terminal_table("GPU")
    metrics = list(kept[0].values) if kept else []
    columns = ["tensor × replicas", "GPUs", "max req/s each", *map(_metric_title, metrics), "running"]
    for heading in columns + (["price/h"] if priced else ["max W"]):
        table.add_column(heading, justify="right")
    for each in kept:
        last = _money(each.price_per_hour) if priced else (ABSENT if each.tdp_w is None else f"{each.tdp_w:,.0f}")
        table.add_row(
            each.gpu,
            f"{each.ranks} × {each.replicas}",
            str(each.count),
            f"{each.capacity_per_s:.3g}",
            *(_seconds(each.values[name]) for name in metrics),
            f"{each.running:.3g}",
            last,
        )
    if kept:
        console.print(table)
    for text in failures(sizing.candidates):
        console.print(plain(text), style="dim", markup=False, highlight=False)


def failures(candidates: Sequence[Candidate]) -> list[str]:
    """Why candidates fail, one line each."""
    failed = [each for each in candidates if each.failure is not None]
    return [f"{each.gpu} × {each.ranks}: {each.failure}: {each.detail}" for each in failed]


def _print_calibration(calibration: Calibration, console: Console) -> None:
    efficiency = calibration.efficiency
    how = (
        "each load predicted from the others"
        if calibration.is_prediction
        else "fewer than three loads: fitted, not predicted"
    )
    console.print()
    console.print(
        plain(
            f"{calibration.engine} in {calibration.run}: {percent_text(efficiency.bytes_share)} of the bandwidth, "
            f"{percent_text(efficiency.flops_share)} of the products, {_seconds(efficiency.step_s)} a step, "
            f"{_seconds(efficiency.sequence_s)} a sequence, {_seconds(efficiency.request_s)} a request; {how}"
        ),
        markup=False,
        highlight=False,
    )
    table = terminal_table("load")
    for heading in ("metric", "measured", "predicted", "error"):
        table.add_column(heading, justify="right")
    for each in calibration.predictions:
        unit = CATALOGUE[each.metric].unit if each.metric in CATALOGUE else Unit.BYTES
        table.add_row(
            Text(plain(each.load)),
            _metric_title(each.metric),
            value_text(unit, each.measured),
            value_text(unit, each.predicted),
            f"{100 * each.error:+.1f} %".replace("-", "−"),
        )
    console.print(table)


def _metric_title(name: str) -> str:
    return CATALOGUE[name].title if name in CATALOGUE else name


def _gib(value: float) -> str:
    return f"{value / 2**30:,.1f} GiB"


def _seconds(value: float | None) -> str:
    return value_text(Unit.SECONDS, value)


def _batch(value: int | None) -> str:
    return "none" if value is None else f"{value:,}"


def _money(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.3g}"
