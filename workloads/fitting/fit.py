"""Fit a preset to a trace: ``bakeoff workloads fit``."""

from collections.abc import Iterator
from typing import Any

import msgspec

from bakeoff.workloads.distributions import Distribution, Fixed
from bakeoff.workloads.fitting.arrivals import BUDGET, ArrivalFit, fit_arrivals
from bakeoff.workloads.fitting.goodness import Goodness, goodness, trace_figures
from bakeoff.workloads.fitting.observed import Observed, observe
from bakeoff.workloads.fitting.redrawn import with_context_limit
from bakeoff.workloads.fitting.rounding import rounded, table
from bakeoff.workloads.presets import Anchor, Preset, Shared
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.row import Trace

_ANCHORED = (
    "rate_per_s",
    "gap_cv",
    "dispersion_1s",
    "dispersion_10s",
    "input_mean",
    "output_mean",
    "input_per_output",
    "turns_mean",
    "think_mean_s",
    "prefix_bound",
)
"""Figures that become anchors. Dispersion over a minute is not one: it varies too much from draw to draw."""
_SMALL_CORRELATION = 0.02
_NOTABLE_SHARE = 0.05


class Fit(msgspec.Struct, frozen=True):
    """A preset fitted to a trace.

    Attributes:
        preset: the preset; :func:`~bakeoff.workloads.fitting.toml.preset_toml` writes it.
        arrivals: the arrival processes that were compared.
        goodness: goodness of fit.
        notes: what the preset does not reproduce, or guesses; its summary repeats them.
        requests: number of requests in the trace.
        sessions: number of sessions in the trace.
    """

    preset: Preset
    arrivals: ArrivalFit
    goodness: Goodness
    notes: tuple[str, ...]
    requests: int
    sessions: int


def fit(trace: Trace, seed: Seed, name: str = "trace", *, budget: int = BUDGET) -> Fit:
    """Fit a preset to a trace.

    Args:
        trace: read once, in bounded memory.
        seed: of draws for what the trace leaves open, and for goodness of fit.
        name: of the trace.
        budget: arrivals to draw for goodness of fit; fewer is faster and noisier.

    Raises:
        BadTrace: a row cannot be read or has no lengths, there are fewer than 50 rows, or times decrease.
    """
    observed = observe(trace, seed)
    arrivals = fit_arrivals(observed.arrivals, seed, at_once=observed.at_once, budget=budget)
    draft = with_context_limit(observed, _preset(observed, arrivals, name), seed)
    fit_goodness = goodness(observed, draft, seed, budget)
    notes = tuple(_notes(observed, arrivals, fit_goodness))
    preset = msgspec.structs.replace(draft, summary="; ".join((draft.summary, *notes)))
    lengths = observed.lengths
    return Fit(preset, arrivals, fit_goodness, notes, len(lengths.requests), len(lengths.turns))


def _preset(observed: Observed, arrivals: ArrivalFit, name: str) -> Preset:
    lengths, prefixes = observed.lengths, observed.prefixes
    later: dict[str, Any] = {}
    if lengths.later_count:
        later["turns"] = table(lengths.turns.column())
        later["append"] = _table_or(lengths.later.column(0), Fixed(1.0))
        later["think_s"] = _table_or(lengths.think_s.column(), Fixed(0.0))
    if prefixes is not None and prefixes.shared_tokens:
        later["shared"] = Shared(prefixes.shared_tokens)
    correlation = rounded(lengths.correlation(), 2)
    return Preset(
        summary=f"traffic like {name}",
        source=f"fitted to the {len(lengths.requests):,} requests of {name}",
        arrival=arrivals.chosen,
        input=table(lengths.first.column(0)),
        output=table(lengths.requests.column(1)),
        correlation=correlation if abs(correlation) >= _SMALL_CORRELATION else 0.0,
        max_input_tokens=round(lengths.requests.highest(0)),
        anchors=tuple(_anchors(observed, name)),
        **later,
    )


def _table_or(values: Any, otherwise: Distribution) -> Distribution:  # noqa: ANN401
    return table(values) if values.size else otherwise


def _anchors(observed: Observed, name: str) -> Iterator[Anchor]:
    figures = trace_figures(observed)
    for metric in _ANCHORED:
        value, tolerance = figures.get(metric, (0.0, 0.0))
        if value > 0:
            low, high = rounded(value * (1 - tolerance)), rounded(value * (1 + tolerance))
            yield Anchor(metric, low, high, f"{name}: {value:.4g}, give or take {100 * tolerance:.0f} %")


def _notes(observed: Observed, arrivals: ArrivalFit, fit_goodness: Goodness) -> Iterator[str]:
    """What the preset does not reproduce, or guesses."""
    lengths, later = observed.lengths, observed.lengths.later_count
    if not arrivals.candidates:
        yield arrivals.reason
    if observed.arrivals is not None and observed.arrivals.tick_s is not None:
        yield f"the trace's clock has a resolution of {observed.arrivals.tick_s:g} s; starts were spread over each tick"
    if later and not len(lengths.think_s):
        yield "pauses between turns are unknown and are left out"
    elif observed.arrival_thinks > _NOTABLE_SHARE * later:
        yield "pauses between turns are measured from request to request, so they include the time of the answer"
    if lengths.shrunk > _NOTABLE_SHARE * later:
        share = f"{100 * lengths.shrunk / later:.0f} % of later prompts"
        yield f"{share} are no longer than the previous one; in the preset they always grow"
    if lengths.overlapping > _NOTABLE_SHARE * later:
        share = f"{100 * lengths.overlapping / later:.0f} % of later prompts"
        yield f"{share} leave out part of the previous answer; the preset always includes all of it"
    yield from _prefix_notes(observed, fit_goodness)


def _prefix_notes(observed: Observed, fit_goodness: Goodness) -> Iterator[str]:
    bound = next((figure for figure in fit_goodness.figures if figure.name == "prefix_bound"), None)
    if bound is None or bound.is_within or observed.prefixes is None:
        return
    cause = "" if observed.has_sessions else ", because its sessions are unknown"
    shares = f"{100 * bound.trace:.0f} % of the trace's prompt tokens and {100 * bound.preset:.0f} % of the preset's"
    yield f"a prefix cache could hit {shares}{cause}; replay the trace if prefixes matter"
    if observed.prefixes.is_cut:
        yield "the trace's share of hits was measured on its beginning only"
