"""A workload profile's figures as text, the same in the terminal and on the page."""

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np

from bakeoff.harness.traffic.profile.selection import ShownProfile
from bakeoff.results.metrics import Unit
from bakeoff.results.text.format import ABSENT, duration_text, percent_text, scale_for, short_text, value_text
from bakeoff.workloads.dispersion import WINDOWS_S
from bakeoff.workloads.histogram import SHORTEST_S
from bakeoff.workloads.prefixes import BLOCK_TOKENS
from bakeoff.workloads.presets import Anchor
from bakeoff.workloads.profile import HitCurve, WorkloadProfile

LENGTH_COLUMNS = ("min", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "max", "mean")
_TOKENS = ("input_p", "input_m", "output_", "new_tokens_", "prompt_tokens")
_RATIOS = {"input_per_output"}
_USEFUL_SHARE = 0.9
"""Fraction of the best hit rate at which a cache counts as large enough."""
_PLACED = {
    "rate_per_s", "gap_cv", "longest_gap_s", "peak_to_mean_60s", *(f"dispersion_{window_s}s" for window_s in WINDOWS_S),
    "turns_mean", "single_turn_share", "input_per_output", "think_p50_s", "think_mean_s",
    "prompt_tokens", "prefix_bound", "new_tokens_p50", "new_tokens_p95",
    *(f"{kind}_{level}" for kind in ("input", "output") for level in LENGTH_COLUMNS),
}  # fmt: skip
"""Figures shown in a section of their own; the others are extra figures."""


class Line(msgspec.Struct, frozen=True):
    """A figure's title, text and remark; an absent figure's remark is the reason."""

    title: str
    text: str
    note: str = ""


def figure_text(name: str, value: float | None) -> str:
    """A figure with the unit that its name implies."""
    if value is None:
        return ABSENT
    if name.startswith(_TOKENS) and name not in _RATIOS:
        return f"{value:,.0f}"
    unit = _unit(name)
    return duration_text(value) if unit is Unit.SECONDS else value_text(unit, value)


def anchor_texts(anchor: Anchor, value: float | None) -> tuple[str, str]:
    """A figure and its anchor's range, in one unit."""
    if anchor.metric.startswith(_TOKENS) and anchor.metric not in _RATIOS:
        return figure_text(anchor.metric, value), f"{anchor.low:,.0f} – {anchor.high:,.0f}"
    scale = scale_for(_unit(anchor.metric), anchor.high)
    low, high = (f"{bound / scale.factor:,.10g}" for bound in (anchor.low, anchor.high))
    return ABSENT if value is None else scale.text(value), f"{low} – {high}{scale.unit}"


def summary(profile: WorkloadProfile) -> str:
    """The most important figures in one sentence."""

    def text(name: str) -> str:
        return figure_text(name, profile.figures.get(name))

    if profile.arrivals.counts:
        times = f"{text('rate_per_s').removesuffix(' /s')} sessions/s, gap CV {text('gap_cv')}"
    else:
        times = "All sessions at once" if profile.opening.counts else "No start times"
    sessions = f"; {text('turns_mean')} requests per session" if profile.turns.max > 1 else ""
    lengths = (
        f"; prompts p50 {text('input_p50')} and p99 {text('input_p99')} tokens"
        f", answers p50 {text('output_p50')} and p99 {text('output_p99')}"
    )
    bound = profile.figures.get("prefix_bound")
    cached = f"; an unlimited prefix cache hits {text('prefix_bound')} of prompt tokens" if bound else ""
    return f"{times}{sessions}{lengths}{cached or '; no shared prefixes'}."


def sample_text(profile: ShownProfile) -> str:
    """Size of the sample."""
    output_tokens = profile.output_tokens.total * profile.output_tokens.mean
    sample = (
        f"{_counted(profile.sessions, 'session')}, {_counted(profile.requests, 'request')}, "
        f"{short_text(profile.figures['prompt_tokens'])} prompt and {short_text(output_tokens)} answer tokens"
    )
    starts = sum(profile.arrivals.counts)
    if starts > profile.sessions:
        sample += f"; start times of {starts:,} sessions"
    return f"{sample}; seed {profile.seed}"


def arrival_lines(profile: WorkloadProfile) -> Iterator[Line]:
    """Arrival rate and burstiness."""
    figures = profile.figures
    rate, turns = figures.get("rate_per_s"), figures["turns_mean"]
    yield Line("sessions", figure_text("rate_per_s", rate))
    if rate and turns > 1:
        yield Line("requests", figure_text("rate_per_s", rate * turns), f"{turns:.3g} per session")
    for title, kind in (("prompt tokens", "input"), ("answer tokens", "output")):
        offered = None if rate is None else rate * turns * figures[f"{kind}_mean"]
        yield Line(title, value_text(Unit.TOKENS_PER_SECOND, offered))
    yield _line(profile, "gap CV", "gap_cv", "Poisson: 1")
    for window_s in WINDOWS_S:
        yield _line(profile, f"dispersion, {window_s} s", f"dispersion_{window_s}s", "Poisson: 1" * (window_s == 1))
    yield _line(profile, "peak / mean, 60 s", "peak_to_mean_60s")
    yield _line(profile, "longest gap", "longest_gap_s")


def session_lines(profile: WorkloadProfile) -> Iterator[Line]:
    """Requests per session and pauses; empty if every session has one request."""
    pauses = profile.think_s
    if profile.turns.max < 2:
        return
    yield _line(profile, "requests per session, mean", "turns_mean")
    yield _line(profile, "sessions of one request", "single_turn_share")
    if not pauses.bins:
        yield Line("pauses", ABSENT, "none: the next request follows at once")
        return
    yield _line(profile, "pause, median", "think_p50_s")
    yield _line(profile, "pause, mean", "think_mean_s")
    no_pause = 1 - sum(bin_.count for bin_ in pauses.bins) / pauses.total
    yield Line("no pause", value_text(Unit.SHARE, no_pause), f"under {1e3 * SHORTEST_S:.0f} ms")


def prefix_lines(profile: WorkloadProfile) -> Iterator[Line]:
    """Savings that a prefix cache can bring."""
    yield _line(profile, "prefix hits, bound", "prefix_bound", "unlimited cache")
    yield _line(profile, "new tokens, p50", "new_tokens_p50", "per prompt")
    yield _line(profile, "new tokens, p95", "new_tokens_p95", "per prompt")
    if capacity := sufficient_tokens(profile.prefix_cache):
        yield Line("sufficient cache", f"{short_text(capacity)} tokens", f"{percent_text(_USEFUL_SHARE)} of all hits")


def sufficient_tokens(curve: HitCurve) -> float | None:
    """Cache size in tokens that gets most of the hits, interpolated; None if nothing can be hit."""
    points = curve.points
    if not points:
        return None
    sizes = np.log([point.capacity_tokens for point in points])
    return float(np.exp(np.interp(_USEFUL_SHARE * points[-1].hit_share, [point.hit_share for point in points], sizes)))


def curve_notes(profile: WorkloadProfile) -> list[str]:
    """How the hit curve was computed, or why there is none."""
    curve = profile.prefix_cache
    if not profile.figures.get("prefix_bound"):
        return ["No two prompts share a prefix beyond what the chat template puts before every text."]
    if not curve.points:
        return [f"Shared prefixes are shorter than a block of {BLOCK_TOKENS} tokens."]
    slots = "." if profile.opening.counts else "; sessions run in eight slots, because they have no start times."
    return [
        f"LRU cache in blocks of {BLOCK_TOKENS} tokens. Answers are cached only as part of a later prompt.",
        f"Requests arrive as at an engine that decodes 50 tokens per second{slots}",
        f"The bound grows with the sample, here {_counted(profile.sessions, 'session')}.",
    ]


def extra_lines(profile: WorkloadProfile) -> list[Line]:
    """Figures that only some workloads have."""
    return [Line(name, figure_text(name, value)) for name, value in profile.figures.items() if name not in _PLACED]


def length_rows(figures: Mapping[str, float]) -> list[tuple[str, list[str]]]:
    """Rows of the table of lengths, in tokens."""
    return [
        (title, [figure_text(f"{kind}_{column}", figures[f"{kind}_{column}"]) for column in LENGTH_COLUMNS])
        for title, kind in (("prompt", "input"), ("answer", "output"))
    ]


def anchors_text(profile: WorkloadProfile) -> str:
    """How many anchors are met."""
    if not profile.anchors:
        return ""
    if profile.rescaled:
        return "not checked: they hold for the real lengths, and this workload is scaled or cut"
    met = sum(anchor.met is True for anchor in profile.anchors)
    return f"{met} of {len(profile.anchors)} met"


def _line(profile: WorkloadProfile, title: str, name: str, note: str = "") -> Line:
    return Line(title, figure_text(name, profile.figures.get(name)), profile.absent.get(name, note))


def _counted(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _unit(name: str) -> Unit:
    if name == "prefix_bound" or name.endswith("_share"):
        return Unit.SHARE
    if name == "rate_per_s":
        return Unit.PER_SECOND
    is_time = name.endswith("_s") and not name.startswith(("dispersion_", "peak_to_mean_"))
    return Unit.SECONDS if is_time else Unit.COUNT
