"""Format numbers and text for display; the only module that scales units and rounds digits.

Three significant digits; bounds have no more decimals than their centre. Absent values are :data:`ABSENT`, never 0.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from bakeoff.results.log.run_log import Manifest
from bakeoff.results.metric import Metric, Unit
from bakeoff.results.records import RunStatus
from bakeoff.results.statistics.comparison import Comparison
from bakeoff.results.statistics.interval import Interval

ABSENT = "–"
WIDE_FACTOR = 10.0
_MAX_MONEY_DECIMALS = 6
STATE_TEXTS = {
    RunStatus.RUNNING: "is still running",
    RunStatus.INTERRUPTED: "was interrupted",
    RunStatus.FAILED: "failed",
    RunStatus.INCOMPLETE: "is incomplete",
}
"""What is said of a run that is not complete."""
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_BYTES = ((1024.0**3, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"))
_RATES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_COUNTS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_CLOCKS = ((86_400, 3_600, ("d", "h")), (3_600, 60, ("h", "min")), (60, 1, ("min", "s")))
_SUFFIXES = {
    Unit.PER_SECOND: "/s",
    Unit.PER_HOUR: "/h",
    Unit.TOKENS_PER_SECOND: "tok/s",
    Unit.JOULES: "J",
    Unit.COUNT: "",
}
# C0 and C1 controls drive terminals (and are not legal HTML); the bidirectional overrides reorder what is read.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


class Scale(msgspec.Struct, frozen=True):
    """Format of one quantity: ``value / factor`` with ``decimals`` and ``suffix``."""

    factor: float
    suffix: str
    decimals: int

    def number(self, value: float) -> str:
        """The digits alone."""
        text = f"{value / self.factor:,.{self.decimals}f}"
        return text.removeprefix("-") if not any(digit in text for digit in "123456789") else text.replace("-", "−")

    def text(self, value: float) -> str:
        """Digits and unit."""
        return f"{self.number(value)}{self.unit}"

    @property
    def unit(self) -> str:
        """The suffix with the space it needs."""
        return f" {self.suffix}" if self.suffix else ""


def scale_for(unit: Unit, magnitude: float) -> Scale:
    """Choose the scale for ``magnitude``; related values are written in the same one."""
    factor, suffix = _unit_of(unit, abs(magnitude))
    return Scale(factor, suffix, _decimals(abs(magnitude) / factor))


def scale_beside(unit: Unit, magnitude: float, like: float) -> Scale:
    """The scale of a value in the unit that suits ``like``, which a row or column shares."""
    factor, suffix = _unit_of(unit, abs(like))
    return Scale(factor, suffix, _decimals(abs(magnitude) / factor))


def unit_beside(unit: Unit, like: float) -> str:
    """The unit that suits ``like``: ``ms``; empty for a count."""
    return _unit_of(unit, abs(like))[1]


def value_text(unit: Unit, value: float | None) -> str:
    """One number with its unit: ``52.1 ms``, ``1.43 GiB``, ``1,204 tok/s``."""
    return ABSENT if value is None else scale_for(unit, value).text(value)


def interval_parts(metric: Metric, interval: Interval | None) -> tuple[str, str]:
    """Centre with its unit, and the bounds in the same unit: ``("52.1 ms", "[50.3, 54.0]")``."""
    if interval is None:
        return ABSENT, ""
    scale = scale_for(metric.unit, interval.centre)
    return scale.text(interval.centre), bounds_text(interval, scale)


def interval_text(metric: Metric, interval: Interval | None) -> str:
    """``52.1 ms [50.3, 54.0]``; ``52.1 ms (50.3 / 54.0)`` of two trials."""
    centre, bounds = interval_parts(metric, interval)
    return f"{centre} ({bounds})" if interval and interval.pair else f"{centre} {bounds}".rstrip()


def bounds_text(interval: Interval, scale: Scale) -> str:
    """``[50.3, 54.0]``; ``50.3 / 54.0`` for the values of two trials; or empty.

    Bounds at least :data:`WIDE_FACTOR` times away from their centre are written as that factor.
    """
    if interval.pair is not None:
        return " / ".join(map(scale.number, interval.pair))
    if interval.low is None or interval.high is None:
        return ""
    if min(interval.low, interval.centre) > 0 and interval.high >= WIDE_FACTOR * interval.centre:
        factor = interval.high / interval.centre
        digits = f"{factor:,.0f}" if factor < 1_000 else f"{factor:.0e}".replace("e+0", "e").replace("e+", "e")
        return f"[÷{digits}, ×{digits}]"
    return f"[{scale.number(interval.low)}, {scale.number(interval.high)}]"


def ratio_text(ratio: Interval | None) -> str:
    """``5.31× [5.02, 5.60]``: two or three decimals, depending on the half-width of the interval."""
    if ratio is None:
        return ABSENT
    decimals = 2
    if ratio.low is not None and ratio.high is not None and ratio.high > ratio.low:
        decimals = min(3, max(2, -math.floor(math.log10((ratio.high - ratio.low) / 2))))
    scale = Scale(1.0, "", decimals)
    return f"{scale.number(ratio.centre)}× {bounds_text(ratio, scale)}".rstrip()


def effect_text(comparison: Comparison) -> str:
    """The effect: ``5.31× [5.02, 5.60]`` for a ratio, ``−2.40 pp [−2.61, −2.19]`` for a difference of shares."""
    if comparison.difference is None:
        return ratio_text(comparison.ratio)
    points = comparison.difference
    decimals = 1
    if points.low is not None and points.high is not None and points.high > points.low:
        decimals = min(4, max(1, 1 - math.floor(math.log10(50 * (points.high - points.low)))))
    scale = Scale(0.01, "pp", decimals)
    return f"{scale.text(points.centre)} {_signed_bounds(points, scale)}".rstrip()


def _signed_bounds(interval: Interval, scale: Scale) -> str:
    if interval.low is None or interval.high is None:
        return ""
    return f"[{scale.number(interval.low)}, {scale.number(interval.high)}]"


_SMALLEST_MS = 0.001


def error_text(seconds: float) -> str:
    """A client's error: ``0.13 ms``, always in milliseconds, with two significant digits."""
    scaled = seconds * 1e3
    if 0 < scaled < _SMALLEST_MS:
        return f"<{_SMALLEST_MS} ms"
    decimals = min(3, max(0, 1 - math.floor(math.log10(scaled)))) if scaled > 0 else 0
    return Scale(1e-3, "ms", decimals).text(seconds)


def duration_text(seconds: float | None) -> str:
    """A duration: ``830 ms``, ``34.1 s``, ``12 min 05 s``, ``10 h 54 min``, ``46 d 12 h``."""
    if seconds is None:
        return ABSENT
    if seconds < 120:
        return value_text(Unit.SECONDS, seconds)
    unit_s, smaller_s, units = next(clock for clock in _CLOCKS if seconds >= 2 * clock[0])
    whole, rest = divmod(round(seconds / smaller_s), unit_s // smaller_s)
    return f"{whole} {units[0]} {rest:02d} {units[1]}"


def short_text(value: float) -> str:
    """A short count: ``0.05``, ``85``, ``1.2k``, ``131k``, ``9.8M``."""
    factor, suffix = _first_that_fits(_COUNTS, abs(value), (1.0, ""))
    scaled = value / factor
    digits = f"{scaled:.2g}" if abs(scaled) < 9.95 else f"{scaled:.0f}"
    return f"{digits}{suffix}"


def rate_text(per_second: float, unit: str) -> str:
    """A rate with a decimal prefix: ``4.51 TB/s``, ``680 TFLOP/s``."""
    factor, prefix = _first_that_fits(_RATES, abs(per_second), (1.0, ""))
    return Scale(factor, f"{prefix}{unit}", _decimals(abs(per_second) / factor)).text(per_second)


def moment_text(iso: str) -> str:
    """``2026-11-20 10:15 UTC`` for an ISO 8601 text; any other text is returned unchanged."""
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or ''}".rstrip()


def share_text(part: float, whole: float) -> str:
    """``2.7 %`` of a whole; absent if the whole is 0."""
    return ABSENT if whole <= 0 else f"{100 * part / whole:.3g} %"


def money(value: float | None) -> str:
    """An amount in the user's currency: ``0.0356``, ``3.5``, ``12,340``."""
    if value is None:
        return ABSENT
    text = money_like(value, value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def money_like(value: float, magnitude: float) -> str:
    """An amount with the decimals that ``magnitude`` needs: ``0.0350``, ``3.50``."""
    size = abs(magnitude)
    decimals = min(_MAX_MONEY_DECIMALS, max(0, 2 - math.floor(math.log10(size)))) if size > 0 else 0
    return f"{value:,.{decimals}f}"


def percent_text(share: float, decimals: int = 0) -> str:
    """``2.7 %`` for a share of 0.027, with fixed decimals."""
    return f"{100 * share:.{decimals}f} %"


def factor_text(factor: float) -> str:
    """``×2.9``, ``×12``."""
    return f"×{factor:.1f}" if factor < 9.95 else f"×{factor:,.0f}"


def ratio_change_text(ratio: float) -> str:
    """A change as signed per cent, from twofold on as a factor: ``+5.6 %``, ``−63.2 %``, ``×4.0``."""
    return factor_text(ratio) if ratio >= 2 else f"{100 * (ratio - 1):+.1f} %".replace("-", "−")


def plain(text: str) -> str:
    """Remove control characters: safe to print on a terminal, legal in HTML."""
    return _UNPRINTABLE.sub(" ", text)


def plain_block(text: str) -> str:
    """Like :func:`plain`, line by line, keeping newlines and expanding tabs."""
    return "\n".join(plain(line.replace("\t", "    ")) for line in text.splitlines())


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _unit_of(unit: Unit, magnitude: float) -> tuple[float, str]:
    if unit is Unit.SECONDS:
        return _first_that_fits(_TIMES, magnitude, (1e-3, "ms"))
    if unit is Unit.BYTES:
        return _first_that_fits(_BYTES, magnitude, (1.0, "B"))
    if unit is Unit.SHARE:
        return 0.01, "%"
    return 1.0, _SUFFIXES[unit]


def _first_that_fits(
    choices: Sequence[tuple[float, str]], magnitude: float, otherwise: tuple[float, str]
) -> tuple[float, str]:
    # 0.9995 of a unit would be rounded up to 1,000 of the next smaller one.
    return next((choice for choice in choices if magnitude >= 0.9995 * choice[0]), otherwise)


def _decimals(scaled: float) -> int:
    if scaled == 0 or not math.isfinite(scaled):
        return 0
    return min(3, max(0, 2 - math.floor(math.log10(scaled * 1.0005))))


def machine_text(manifest: Manifest) -> str:
    """The machine of a run."""
    return place_text(manifest.environment, manifest.host)


def place_text(environment: Mapping[str, Any], host: str) -> str:
    """A machine: ``Intel Xeon, 32 cores, 2 × NVIDIA H100 (bench-01)``; the host name alone if nothing else is known."""
    cores = environment.get("cores")
    counts = Counter(str(gpu.get("name")) for gpu in environment.get("gpus") or [])
    gpus = [f"{count} × {name}" if count > 1 else name for name, count in counts.items()]
    parts = [environment.get("cpu"), f"{cores} cores" if cores else None, *gpus]
    texts = ", ".join(str(part) for part in parts if part)
    return f"{texts} ({host})" if texts else host
