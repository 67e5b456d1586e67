"""A portrait's figures as people read them, the same on the terminal and on the page."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from harness.portraits.bins import SHORTEST_S
from harness.portraits.subject import Subject
from results.metrics import Unit
from results.report.format import ABSENT, duration_text, scale_for, short_text, value_text
from workloads.dispersion import WINDOWS_S
from workloads.portrait import Portrait
from workloads.presets import Anchor

LENGTH_COLUMNS = ("min", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "max", "mean")
_TOKENS = ("input_p", "input_m", "output_", "new_tokens_", "prompt_tokens")
_RATIOS = {"input_per_output"}
_NEAR = 0.9
"""Of what an endless cache hits: a cache that hits so much is large enough for most purposes."""
_SHOWN = {
    "rate_per_s", "gap_cv", "longest_gap_s", "peak_to_mean_60s", *(f"dispersion_{window_s}s" for window_s in WINDOWS_S),
    "turns_mean", "single_turn_share", "input_per_output", "think_p50_s", "think_mean_s",
    "prompt_tokens", "prefix_bound", "new_tokens_p50", "new_tokens_p95",
    *(f"{kind}_{level}" for kind in ("input", "output") for level in LENGTH_COLUMNS),
}  # fmt: skip
"""Figures that have a place of their own."""


class Line(msgspec.Struct, frozen=True):
    """A figure's name, its text and a word on it; absent ones say why."""

    title: str
    text: str
    note: str = ""


class View(msgspec.Struct, frozen=True):
    """Arrivals over time, for drawing: ``counts`` in bins of ``bin_s`` seconds."""

    title: str
    counts: Sequence[int]
    bin_s: int


def figure_text(name: str, value: float | None) -> str:
    """A figure in the unit that its name tells."""
    if value is None:
        return ABSENT
    if name.startswith(_TOKENS) and name not in _RATIOS:
        return f"{value:,.0f}"
    unit = _unit(name)
    return duration_text(value) if unit is Unit.SECONDS else value_text(unit, value)


def anchor_texts(anchor: Anchor, value: float | None) -> tuple[str, str]:
    """A figure, and the range that its anchor wants, in one unit."""
    if anchor.metric.startswith(_TOKENS) and anchor.metric not in _RATIOS:
        return figure_text(anchor.metric, value), f"{anchor.low:,.0f} – {anchor.high:,.0f}"
    scale = scale_for(_unit(anchor.metric), anchor.high)
    low, high = (f"{bound / scale.factor:,.10g}" for bound in (anchor.low, anchor.high))
    wanted = f"{low} – {high}{scale.unit}"
    return ABSENT if value is None else scale.text(value), wanted


def in_a_sentence(portrait: Portrait) -> str:
    """The workload's figures that matter most."""
    find = portrait.figures.get
    if portrait.arrivals_per_bin:
        times = f"{figure_text('rate_per_s', find('rate_per_s')).removesuffix(' /s')} sessions/s"
        times += f", their gaps with a CV of {figure_text('gap_cv', find('gap_cv'))}"
    else:
        times = "all sessions at once" if portrait.opening_per_bin else "no times of its own"
    sessions = ""
    if max(portrait.turns) > 1:
        sessions = f"; {figure_text('turns_mean', find('turns_mean'))} requests in a session"
    lengths = (
        f"; prompts of {figure_text('input_p50', find('input_p50'))} tokens at the median"
        f" and {figure_text('input_p99', find('input_p99'))} at p99"
        f", answers of {figure_text('output_p50', find('output_p50'))}"
        f" and {figure_text('output_p99', find('output_p99'))}"
    )
    bound = find("prefix_bound", 0.0)
    share = figure_text("prefix_bound", bound)
    cached = f"; an endless prefix cache hits {share} of the prompt tokens" if bound else "; no shared prefixes"
    return times[0].upper() + times[1:] + sessions + lengths + cached


def sample_text(subject: Subject) -> str:
    """How much was drawn."""
    portrait = subject.portrait
    drawn = (
        f"{_counted(len(portrait.turns), 'session')}, {_counted(len(portrait.input_tokens), 'request')}, "
        f"{short_text(sum(portrait.input_tokens))} prompt and {short_text(sum(portrait.output_tokens))} answer tokens"
    )
    if portrait.arrivals_per_bin and sum(portrait.arrivals_per_bin) > len(portrait.turns):
        drawn += f"; times of {sum(portrait.arrivals_per_bin):,} sessions"
    return f"{drawn}; seed {subject.seed}"


def why_no_arrivals(portrait: Portrait) -> str:
    """Why there is no figure about arrivals; empty where there are some."""
    if portrait.arrivals_per_bin:
        return ""
    if portrait.opening_per_bin:
        return "all sessions wait when the load begins, so there are no arrivals to look at"
    return "this workload does not say when its sessions start: the load's own arrival process does"


def arrival_lines(portrait: Portrait) -> Iterator[Line]:
    """How sessions arrive."""
    find = portrait.figures.get
    rate, turns = find("rate_per_s"), find("turns_mean", 1.0)
    yield Line("sessions", figure_text("rate_per_s", rate))
    if rate and turns > 1:
        yield Line("requests", figure_text("rate_per_s", rate * turns), f"{turns:.3g} each")
    for title, kind in (("prompt tokens", "input"), ("answer tokens", "output")):
        offered = None if rate is None else rate * turns * portrait.figures[f"{kind}_mean"]
        yield Line(title, value_text(Unit.TOKENS_PER_SECOND, offered))
    yield Line("CV of the gaps", figure_text("gap_cv", find("gap_cv")), "Poisson: 1")
    for window_s in WINDOWS_S:
        name = f"dispersion_{window_s}s"
        note = "under 10 windows" if name not in portrait.figures else "Poisson: 1" if window_s == 1 else ""
        yield Line(f"dispersion, {window_s} s", figure_text(name, find(name)), note)
    peak = find("peak_to_mean_60s")
    yield Line("peak / mean, 60 s", figure_text("peak_to_mean_60s", peak), "" if peak else "under 10 windows")
    yield Line("longest gap", figure_text("longest_gap_s", find("longest_gap_s")))


def session_lines(portrait: Portrait) -> Iterator[Line]:
    """What sessions of several requests are like."""
    find = portrait.figures.get
    yield Line("requests, mean", figure_text("turns_mean", find("turns_mean")))
    yield Line("of one request only", figure_text("single_turn_share", find("single_turn_share")))
    if all(pause_s < SHORTEST_S for pause_s in portrait.think_s):
        yield Line("pauses", ABSENT, "none: the next request follows at once")
        return
    yield Line("pause, median", figure_text("think_p50_s", find("think_p50_s")))
    yield Line("pause, mean", figure_text("think_mean_s", find("think_mean_s")))
    at_once = sum(pause_s < SHORTEST_S for pause_s in portrait.think_s) / len(portrait.think_s)
    yield Line("no pause", value_text(Unit.SHARE, at_once), f"under {1e3 * SHORTEST_S:.0f} ms")


def prefix_lines(portrait: Portrait) -> Iterator[Line]:
    """What a prefix cache can do."""
    find = portrait.figures.get
    yield Line("bound", figure_text("prefix_bound", find("prefix_bound")), "endless cache")
    yield Line("new tokens, p50", figure_text("new_tokens_p50", find("new_tokens_p50")), "of a prompt")
    yield Line("new tokens, p95", figure_text("new_tokens_p95", find("new_tokens_p95")))
    if enough := enough_tokens(portrait):
        yield Line(f"cache for {_NEAR:.0%}", short_text(enough), "of the curve’s top")


def enough_tokens(portrait: Portrait) -> float | None:
    """The cache size, between the points of the curve, that hits most of what can be hit; None where nothing can."""
    points = portrait.curve
    if not points or points[-1].hit_share <= 0:
        return None
    sizes = np.log([point.capacity_tokens for point in points])
    return float(np.exp(np.interp(_NEAR * points[-1].hit_share, [point.hit_share for point in points], sizes)))


def curve_notes(portrait: Portrait) -> list[str]:
    """What the curve rests on; why there is none."""
    if not portrait.figures.get("prefix_bound"):
        return ["no prompt begins as an earlier one does, beyond what the chat template puts before every text"]
    if not portrait.curve:
        return ["prompts are too short or too long for a simulation in blocks"]
    if not portrait.curve[-1].hit_share:
        return [f"what prompts share is shorter than a block of {portrait.curve_block_tokens} tokens"]
    blocks = (
        f"Blocks of {portrait.curve_block_tokens} tokens, the one used longest ago given up first; answers count as "
        "part of a session’s next prompt only."
    )
    notes = [
        blocks,
        "Requests come in the order in which an engine would see them at 50 answer tokens a second"
        + ("." if portrait.opening_per_bin else ", sessions in eight slots, as they say no times."),
    ]
    notes.append(f"The bound grows with the sample: these are {_counted(len(portrait.turns), 'session')}.")
    if portrait.curve_sample_share < 1:
        part = value_text(Unit.SHARE, portrait.curve_sample_share)
        top = value_text(Unit.SHARE, portrait.curve[-1].hit_share)
        notes.append(
            f"Simulated on the first {part} of the sample's prompt tokens, of which an endless cache hits {top}: "
            "first prompts weigh more there."
        )
    return notes


def other_lines(portrait: Portrait) -> list[Line]:
    """Figures that only some workloads have."""
    return [Line(name, figure_text(name, value)) for name, value in portrait.figures.items() if name not in _SHOWN]


def length_rows(portrait: Portrait, *, short: bool = False) -> list[tuple[str, list[str]]]:
    """Names and texts of the table of lengths: percentiles, mean and extremes, in tokens."""

    def text(name: str) -> str:
        return short_text(portrait.figures[name]) if short else figure_text(name, portrait.figures[name])

    return [
        (title, [text(f"{kind}_{column}") for column in LENGTH_COLUMNS])
        for title, kind in (("prompt", "input"), ("answer", "output"))
    ]


def anchors_text(subject: Subject) -> str:
    """How many anchors are met."""
    anchors = subject.portrait.anchors
    if not anchors:
        return ""
    if not subject.judged:
        return "not judged: they are of the real lengths, and this workload is scaled or cut"
    met = sum(subject.met(anchor) is True for anchor in anchors)
    return f"{met} of {len(anchors)} met"


def arrival_views(portrait: Portrait) -> list[View]:
    """All arrivals, and the first ones more closely; nothing where there are none."""
    if not portrait.arrivals_per_bin:
        return []
    views = [View("all that was drawn", _whole(portrait.arrivals_per_bin), portrait.bin_s)]
    if len(portrait.opening_per_bin) > 1 and sum(portrait.opening_per_bin) < sum(portrait.arrivals_per_bin):
        opening = _whole(portrait.opening_per_bin)
        length = duration_text(len(opening) * portrait.opening_bin_s)
        views.append(View(f"closer: the first {length}", opening, portrait.opening_bin_s))
    return views


def absent(portrait: Portrait) -> dict[str, str]:
    """Why figures about arrivals cannot be had."""
    reason = why_no_arrivals(portrait)
    windows = {f"dispersion_{window_s}s": window_s for window_s in WINDOWS_S} | {"peak_to_mean_60s": 60}
    reasons = {name: reason or f"there are fewer than 10 windows of {length} s" for name, length in windows.items()}
    reasons |= dict.fromkeys(("rate_per_s", "gap_cv", "longest_gap_s"), reason or "there are too few arrivals")
    return {name: why for name, why in reasons.items() if name not in portrait.figures}


def _whole(counts: Sequence[int]) -> Sequence[int]:
    """Bins without the last one, which may be cut short, where there are enough to spare it."""
    return counts[:-1] if len(counts) >= 20 else counts


def _counted(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _unit(name: str) -> Unit:
    if name == "prefix_bound" or name.endswith("_share"):
        return Unit.SHARE
    if name == "rate_per_s":
        return Unit.PER_SECOND
    is_time = name.endswith("_s") and not name.startswith(("dispersion_", "peak_to_mean_"))
    return Unit.SECONDS if is_time else Unit.COUNT
