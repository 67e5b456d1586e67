"""GPU clock throttling: one row per reason, below the timeline and on its time axis."""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.records import TelemetryRecord
from bakeoff.results.report.charts.scales import Axis
from bakeoff.results.report.charts.svg import label, line, num, tag
from bakeoff.results.text.format import share_text

REASONS = (
    (0x20, "GPU heat, driver", True),
    (0x40, "GPU heat, hardware", True),
    (0x80, "GPU power brake", True),
    (0x08, "GPU slowdown", True),
    (0x04, "GPU power cap", False),
    (0x10, "GPU sync boost", False),
    (0x02, "GPU clocks as set", False),
    (0x100, "GPU display clocks", False),
)
"""Bits of NVML's clock event reasons (nvml.h), their titles, and whether they slow the GPU; idling is left out."""
_ROW, _MARGIN = 15.0, 18.0


class Throttling(msgspec.Struct, frozen=True):
    """Observed reasons: title, whether it slows the GPU, (from, to) in monotonic ns, share of the samples."""

    rows: list[tuple[str, bool, list[tuple[int, int]], str]]

    @property
    def height(self) -> float:
        """Height in pixels."""
        return _MARGIN + _ROW * max(1, len(self.rows))


def throttling_of(telemetry: Sequence[TelemetryRecord], start: int, end: int) -> Throttling | None:
    """Throttling in the samples within ``start``…``end``; None if no GPU reports reasons."""
    masks: dict[int, int] = {}
    for record in telemetry:
        mask = record.values.get("throttle_reasons")
        if record.source.startswith("gpu") and start <= record.t_ns <= end and isinstance(mask, int):
            masks[record.t_ns] = masks.get(record.t_ns, 0) | mask
    if not masks:
        return None
    times = sorted(masks)
    until = dict(zip(times, [*times[1:], end], strict=True))
    rows: list[tuple[str, bool, list[tuple[int, int]], str]] = []
    for bit, title, hinders in REASONS:
        held = [t for t in times if masks[t] & bit]
        if held:
            rows.append((title, hinders, [(t, until[t]) for t in held], share_text(len(held), len(times))))
    return Throttling(rows)


def draw_throttling(throttling: Throttling, x: Axis, top: float) -> Markup:
    """Draw the rows, or one row that says "never"."""
    parts: list[Markup] = []
    for i, (title, hinders, spans, share) in enumerate(throttling.rows or [("GPU throttled", False, [], "")]):
        y = top + 5 + _ROW * i
        parts += [
            line(x.start, y, x.end, y, "base"),
            tag("path", d=_merged(spans, x, y), class_="hindered" if hinders else "held", stroke_width=6),
            label(x.start - 8, y + 4, title, "tick", "end"),
            label(x.end + 8, y + 4, f"throttled {share}" if spans else "never", "tick"),
        ]
    return tag("g", *parts)


def _merged(spans: Sequence[tuple[int, int]], x: Axis, y: float) -> str:
    """Path of the spans, merged where they are less than half a pixel apart."""
    runs: list[list[float]] = []
    for start, end in spans:
        left, right = x.at(start), max(x.at(end), x.at(start) + 0.5)
        if runs and left - runs[-1][1] < 0.5:
            runs[-1][1] = right
        else:
            runs.append([left, right])
    return "".join(f"M{num(left)} {num(y)}H{num(right)}" for left, right in runs)
