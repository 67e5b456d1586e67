"""A plan as one offline HTML page, in the look of the report of a run."""

import math
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import msgspec
from markupsafe import Markup

from bakeoff.harness.sizing import cells
from bakeoff.harness.sizing.calibration import Calibration
from bakeoff.harness.sizing.device import BatchRow, DevicePlan
from bakeoff.harness.sizing.plan import Plan, Sizing
from bakeoff.harness.sizing.prefix_cache import PrefixCachePlan
from bakeoff.results.files.atomic import write_atomic
from bakeoff.results.metrics import Unit
from bakeoff.results.report.charts.curve import Point as ShareAt
from bakeoff.results.report.charts.curve import curve
from bakeoff.results.report.charts.frontier import Point, Series, frontier
from bakeoff.results.report.charts.lines import Frame, Line, lines_chart
from bakeoff.results.report.charts.scales import Scale
from bakeoff.results.report.offline import SHELL, asset, rendered
from bakeoff.results.show.table import Table
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import value_text

_PACKAGE = "bakeoff.harness.sizing"
_FEWEST_POINTS = 2
_CONTEXT_TICKS = (1024, 4096, 16384, 65536)


class DevicePart(msgspec.Struct, frozen=True):
    """One GPU on the page."""

    title: str
    facts: list[tuple[str, str]]
    why_not: str | None
    table: Table
    sources: list[tuple[str, str]]


class CalibrationPart(msgspec.Struct, frozen=True):
    """One calibration on the page."""

    title: str
    facts: list[tuple[str, str]]
    note: str
    table: Table
    picture: Markup


class SizingPart(msgspec.Struct, frozen=True):
    """The SLO on the page."""

    title: str
    table: Table
    failures: list[str]


class PrefixCachePart(msgspec.Struct, frozen=True):
    """The prefix cache on the page."""

    title: str
    lines: list[str]
    picture: Markup
    table: Table


class Page(msgspec.Struct, frozen=True):
    """Everything on the page, in order."""

    name: str
    answer: str
    lines: list[str]
    memory: Markup
    frontier: Markup
    itl: Markup
    devices: list[DevicePart]
    prefix_cache: PrefixCachePart | None
    sizing: SizingPart | None
    calibration: list[CalibrationPart]
    assumptions: list[str]


def write_page(plan: Plan, path: Path) -> None:
    """Write the page.

    Raises:
        NotWritable: the folder is missing, read-only or full.
    """
    text = rendered(
        "plan.html", _page(plan), packages=[_PACKAGE, SHELL], style=asset("page.css"), script=asset("theme.js")
    )
    write_atomic(path, text.encode())


def _page(plan: Plan) -> Page:
    served = [device for device in plan.devices if device.batches]
    return Page(
        name=f"Plan of {plan.model.name}",
        answer=cells.answer(plan),
        lines=cells.model_lines(plan),
        memory=_memory_chart(plan),
        frontier=frontier("Predicted throughput against interactivity", _frontier_series(served)),
        itl=_itl_chart(served),
        devices=[_device(device) for device in plan.devices],
        prefix_cache=_prefix_cache(plan, plan.prefix_cache) if plan.prefix_cache else None,
        sizing=_sizing(plan.sizing) if plan.sizing else None,
        calibration=[_calibration(calibration) for calibration in plan.calibration],
        assumptions=plan.assumptions,
    )


def _memory_chart(plan: Plan) -> Markup:
    """Memory of weights and KV cache against the context, for several numbers of sequences."""
    drawn = [
        Line(f"{batch} sequence{'s' if batch > 1 else ''}", i, [(float(c), by_context[c]) for c in sorted(by_context)])
        for i, (batch, by_context) in enumerate(plan.memory_bytes.items())
    ]
    contexts = sorted(next(iter(plan.memory_bytes.values())))
    ticks = [(float(tick), f"{tick // 1024}k") for tick in _CONTEXT_TICKS if tick <= contexts[-1]]
    end = max(2 * contexts[0], contexts[-1])  # a model with short contexts has one only
    scale = Scale(contexts[0], end, ticks, "context of each sequence, tokens →", log=True)
    limits = [
        (device.memory.usable * device.ranks, device.gpu.name + (f" × {device.ranks}" if device.ranks > 1 else ""))
        for device in plan.devices
    ]
    frame = Frame("Memory against context and batch", "weights and KV cache", scale, Unit.BYTES, "↑ memory of all GPUs")
    return lines_chart(frame, drawn, limits)


def _itl_chart(devices: Sequence[DevicePlan]) -> Markup:
    """Predicted ITL and its floor against the batch; floors only if there is a single device, for lack of space."""
    most = max((device.batches[-1].batch for device in devices), default=1)
    ticks = [(float(tick), str(tick)) for tick in (1, 4, 16, 64, 256) if tick <= most]
    scale = Scale(1, max(2, most), ticks, "requests in flight →", log=True)
    drawn: list[Line] = []
    for i, device in enumerate(devices):
        rows = [row for row in device.batches if row.itl_p50_s is not None]
        drawn.append(Line(device.gpu.name, i, [(row.batch, row.itl_p50_s or 0.0) for row in rows]))
        if len(devices) == 1:
            drawn.append(Line("floor", i + 1, [(row.batch, row.itl_floor_s) for row in rows]))
    return lines_chart(
        Frame("ITL against requests in flight", "ITL p50, predicted", scale, Unit.SECONDS, "↑ ITL"), drawn
    )


def _frontier_series(devices: Sequence[DevicePlan]) -> list[Series]:
    return [
        Series(device.gpu.name, i, [_point(row) for row in device.batches if row.itl_p50_s])
        for i, device in enumerate(devices)
    ]


def _point(row: BatchRow) -> Point:
    return Point(f"c={row.batch}", _exactly(1 / (row.tpot_p50_s or 1.0)), _exactly(row.output_tokens_per_s))


def _exactly(value: float) -> Interval:
    return Interval(value, None, None, 1)


def _device(device: DevicePlan) -> DevicePart:
    memory = device.memory
    sizes = [("weights", memory.weights), ("workspace", memory.workspace), ("runtime", memory.runtime)]
    return DevicePart(
        title=cells.device_title(device),
        facts=[
            *((name, value_text(Unit.BYTES, value)) for name, value in sizes),
            ("left for KV", value_text(Unit.BYTES, max(0.0, memory.for_kv))),
            ("TTFT floor", cells.seconds(device.ttft_floor_s)),
            ("ITL floor", cells.seconds(device.itl_floor_s)),
            ("decode compute-bound at", cells.critical_text(device)),
            ("sequences that fit", cells.fit_text(device)),
        ],
        why_not=device.why_not,
        table=cells.batch_table(device),
        sources=list(device.gpu.sources.items()),
    )


def _prefix_cache(plan: Plan, cache: PrefixCachePlan) -> PrefixCachePart:
    return PrefixCachePart(
        title=cells.prefix_cache_title(cache),
        lines=cells.prefix_cache_lines(plan, cache),
        picture=_hit_chart(cache),
        table=cells.prefix_cache_table(cache),
    )


def _hit_chart(cache: PrefixCachePlan) -> Markup:
    """Hit share against the size of the cache; empty without hits."""
    drawn = [
        ShareAt(size.bytes, size.hit_share, f"{row[0].text}: {row[2].text}")
        for size, row in zip(cache.sizes, cells.prefix_cache_table(cache).rows, strict=True)
    ]
    if len(drawn) < _FEWEST_POINTS:
        return Markup("")
    ticks = [(point.x, f"{point.x / 2**30:,.4g}") for point in drawn[:: math.ceil(len(drawn) / 6)]]
    scale = Scale(drawn[0].x, drawn[-1].x, ticks, "size of the prefix cache in GiB, logarithmic", log=True)
    limit = (cache.unlimited_share, f"unlimited {value_text(Unit.SHARE, cache.unlimited_share)}")
    description = "; ".join(point.hint for point in drawn)
    return curve("prompt tokens found", description, drawn, scale, "↑ share of prompt tokens", limit=limit)


def _sizing(sizing: Sizing) -> SizingPart:
    return SizingPart(
        title=f"{', '.join(sizing.slo)} at {sizing.rate_per_s:g} requests/s",
        table=cells.sizing_table(sizing),
        failures=cells.failures(sizing.candidates),
    )


def _calibration(calibration: Calibration) -> CalibrationPart:
    return CalibrationPart(
        title=f"{calibration.engine} in {calibration.run}",
        facts=cells.calibration_facts(calibration),
        note=cells.calibration_note(calibration),
        table=cells.calibration_table(calibration),
        picture=frontier(
            f"Frontier of {calibration.engine}, predicted and measured", _measured_and_predicted(calibration)
        ),
    )


def _measured_and_predicted(calibration: Calibration) -> list[Series]:
    """Predicted and measured points of closed loops."""
    loads: dict[str, dict[str, tuple[float, float]]] = {}
    for prediction in calibration.predictions:
        loads.setdefault(prediction.load, {})[prediction.metric] = (prediction.measured, prediction.predicted)
    closed = {
        load: (of["tpot_p50_s"], of["output_tokens_per_s"])
        for load, of in loads.items()
        if {"tpot_p50_s", "output_tokens_per_s"} <= of.keys()
    }
    return [
        Series(
            name,
            i,
            [Point(load, _exactly(1 / tpot[i]), _exactly(output[i])) for load, (tpot, output) in closed.items()],
        )
        for i, name in zip(count(), ("measured", "predicted"), strict=False)
    ]
