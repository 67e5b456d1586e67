"""Fit a preset to a trace: ``bakeoff workloads fit``.

Lengths, turns and pauses become tables of quantiles, those of sub-agents apart from the main agent's. Arrivals become a
renewal process with the rate and the coefficient of variation (CV) of the trace's gaps. It has no silences and no drift
of the rate: where these matter, the trace should be replayed instead. :class:`Fit` says where the preset's traffic
differs from the trace.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from bakeoff.workloads.distributions import Distribution, Fixed, quantiles_of
from bakeoff.workloads.errors import BadTrace
from bakeoff.workloads.lengths import Lengths
from bakeoff.workloads.outline import outlines
from bakeoff.workloads.presets import Anchor, NaturalArrival, Preset, PresetTraffic, Shared, SubAgents
from bakeoff.workloads.profile import WorkloadProfile, profile_workload
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.tokenizer import Tokenizer
from bakeoff.workloads.types import Workload

FEWEST_REQUESTS, FEWEST_STARTS = 50, 50
"""Fewer requests are too few to estimate a distribution; fewer starts determine a rate, but not a process."""
COMPARED = {
    "rate_per_s": 0.26,
    "gap_cv": 0.26,
    "dispersion_1s": 0.26,
    "dispersion_10s": 0.26,
    "dispersion_60s": 0.26,
    "input_mean": 0.18,
    "input_p90": 0.18,
    "output_mean": 0.18,
    "output_p90": 0.18,
    "input_per_output": 0.18,
    "turns_mean": 0.18,
    "think_mean_s": 0.18,
    "sub_agent_share": 0.18,
    "sub_agents_mean": 0.18,
    "prefix_bound": 0.18,
}
"""Figures of trace and preset that are compared, with the largest relative difference that is acceptable. Two parts of
one Azure 2023 trace differ by up to 26 % in their arrivals and 18 % in their lengths, so a fit cannot do better."""
_ARRIVALS = ("rate_per_s", "gap_cv", "dispersion_1s", "dispersion_10s", "dispersion_60s")
_PROFILED_SESSIONS, _FEWEST_DRAWN = 20_000, 2_000
_CHANCES = 3.0
_EVEN_CV, _AS_POISSON = 0.01, 0.03
_SMALL_CORRELATION, _NOTABLE_SHARE = 0.02, 0.05
_DIGITS = 4
_Floats = Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]]


class Comparison(msgspec.Struct, frozen=True):
    """One figure of the trace beside that of the preset.

    Attributes:
        name: as in :class:`~bakeoff.workloads.profile.WorkloadProfile`.
        trace: value in the trace.
        preset: value in traffic that was drawn from the preset.
        tolerance: largest relative difference that is acceptable.
    """

    name: str
    trace: float
    preset: float
    tolerance: float

    @property
    def difference(self) -> float:
        """Difference relative to the trace; infinite if only the trace's figure is 0."""
        if self.trace == 0:
            return 0.0 if self.preset == 0 else math.inf
        return self.preset / self.trace - 1

    @property
    def is_within(self) -> bool:
        """Whether the difference is within its tolerance."""
        return abs(self.difference) <= self.tolerance


class Fit(msgspec.Struct, frozen=True):
    """A preset fitted to a trace.

    Attributes:
        preset: the preset; :func:`~bakeoff.workloads.presets.toml.preset_toml` writes it.
        arrivals: one sentence on the choice of the arrival process.
        figures: trace and preset compared.
        notes: what the preset does not reproduce, or guesses; its summary repeats them.
        requests: number of requests in the trace.
        sessions: number of sessions in the trace.
    """

    preset: Preset
    arrivals: str
    figures: tuple[Comparison, ...]
    notes: tuple[str, ...]
    requests: int
    sessions: int

    @property
    def poor(self) -> tuple[str, ...]:
        """Names of the figures that differ by more than their tolerance; empty for a good fit."""
        return tuple(figure.name for figure in self.figures if not figure.is_within)


def fit(trace: Workload, seed: Seed, name: str = "trace", *, tokenizer: Tokenizer | None = None) -> Fit:
    """Fit a preset to a trace.

    Args:
        trace: a replay of it, which is read three times; about 50 bytes per request are held in memory.
        seed: seed of what the trace leaves open, and of the preset's traffic that is compared with it.
        name: of the trace.
        tokenizer: required if the trace has text but no lengths.

    Raises:
        BadTrace: a row cannot be read, or there are fewer than 50 requests.
        NoTokenizer: rows have text but no lengths, and ``tokenizer`` is None.
        WorkloadError: sessions are not in the order of their start.
    """
    lengths = Lengths()
    for session in outlines(trace, seed, tokenizer):
        lengths.add(session.turns, has_start=session.start_s is not None)
    if lengths.requests < FEWEST_REQUESTS:
        raise BadTrace(f"the trace has {lengths.requests} requests; a fit needs at least {FEWEST_REQUESTS}")
    profile = profile_workload(name, trace, seed, tokenizer=tokenizer, sessions=_PROFILED_SESSIONS)
    arrival, reason, is_guessed = _arrival(profile, lengths)
    expected = _expected(profile.figures, lengths)
    draft = _preset(lengths, expected, arrival, name)
    drawn = profile_workload(
        name, PresetTraffic(name, draft), seed, sessions=_sessions(lengths), arrivals=max(lengths.starts, _FEWEST_DRAWN)
    )
    figures = tuple(
        Comparison(figure, value, drawn.figures[figure], tolerance)
        for figure, (value, tolerance) in expected.items()
        if figure in drawn.figures
    )
    notes = (reason,) if is_guessed else ()
    notes = (*notes, *_notes(lengths, {figure.name: figure for figure in figures}))
    preset = msgspec.structs.replace(draft, summary="; ".join((draft.summary, *notes)))
    return Fit(preset, reason, figures, notes, lengths.requests, lengths.sessions)


def _arrival(profile: WorkloadProfile, lengths: Lengths) -> tuple[NaturalArrival, str, bool]:
    """The process, a sentence on it, and whether it is a guess."""
    rate_per_s, cv = profile.figures.get("rate_per_s"), profile.figures.get("gap_cv", 1.0)
    if rate_per_s is None and lengths.starts > 1:
        return NaturalArrival("at-once"), "all sessions of the trace start at once", False
    if rate_per_s is None:
        return NaturalArrival("poisson"), "the trace has no start times: Poisson at 1 per second is used instead", True
    rate = _rounded(rate_per_s)
    if lengths.starts < FEWEST_STARTS:
        return NaturalArrival("poisson", rate), f"{lengths.starts} starts determine only a rate: Poisson is used", True
    if cv < _EVEN_CV:
        return NaturalArrival("constant", rate), "the gaps of the trace are all equal", False
    if abs(cv - 1) < _AS_POISSON:
        return NaturalArrival("poisson", rate), f"the gaps have the CV of a Poisson process, {cv:.3g}", False
    options = {"burstiness": _rounded(cv**-2)}
    return NaturalArrival("gamma", rate, options), f"Gamma gaps with the trace's CV, {cv:.3g}", False


def _preset(
    lengths: Lengths, expected: Mapping[str, tuple[float, float]], arrival: NaturalArrival, name: str
) -> Preset:
    main, correlation = lengths.main, round(lengths.main.correlation(), 2)
    least_correlation = max(_SMALL_CORRELATION, _CHANCES / math.sqrt(lengths.requests))
    preset = Preset(
        summary=f"traffic like {name}",
        source=f"fitted to the {lengths.requests:,} requests of {name}",
        arrival=arrival,
        input=_table(main.first[0]),
        output=_table([*main.output, *main.last_output]),
        correlation=correlation if abs(correlation) >= least_correlation else 0.0,
        shared=_shared(main.shared_tokens()),
        max_input_tokens=lengths.context_limit(),
        anchors=tuple(_anchors(expected, name)),
    )
    if not lengths.main.later:
        return preset
    return msgspec.structs.replace(
        preset,
        turns=_table(main.turns),
        append=_table(main.appended[0] or [1.0]),
        think_s=_table(main.think_s or [0.0]),
        sub_agents=_sub_agents(lengths) if lengths.starts_sub_agents else None,
    )


def _sub_agents(lengths: Lengths) -> SubAgents:
    each = lengths.sub_agents
    return SubAgents(
        start_share=_rounded(min(1.0, len(lengths.at_once) / lengths.main.later)),
        at_once=_table(lengths.at_once),
        input=_table(each.first[0]),
        output=_table(each.output or each.last_output),
        last_output=_table(each.last_output),
        turns=_table(each.turns),
        append=_table(each.appended[0] or [1.0]),
        think_s=_table(each.think_s or [0.0]),
        start_pause_s=_table(lengths.start_pause_s),
        join_pause_s=_table(lengths.join_pause_s or [0.0]),
        background_share=_rounded(lengths.background / len(each.turns)),
        shared=_shared(each.shared_tokens()),
    )


def _shared(tokens: int) -> Shared | None:
    return Shared(tokens) if tokens else None


def _table(values: _Floats) -> Distribution:
    """Quantiles of a sample, integers exact and others to four digits; ``fixed`` if all values are equal."""
    sample = np.array(values)
    if not (sample == np.round(sample)).all():
        sample = np.array([_rounded(value) for value in sample.tolist()])
    return Fixed(float(sample[0])) if sample.min() == sample.max() else quantiles_of(sample)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _expected(figures: Mapping[str, float], lengths: Lengths) -> dict[str, tuple[float, float]]:
    """The figures of a trace that a preset should have, each with its tolerance.

    Figures of arrivals also differ by chance: three standard errors of the mean gap, of its CV, and of a variance over
    so many windows, in trace and preset, are added to the tolerance.
    """
    rate, cv, starts = figures.get("rate_per_s", 0.0), figures.get("gap_cv", 1.0), max(1, lengths.starts)
    chances = {"rate_per_s": cv / math.sqrt(starts), "gap_cv": 1 / math.sqrt(starts)}
    for window_s in (1, 10, 60):
        chances[f"dispersion_{window_s}s"] = math.sqrt(2 / max(1.0, starts / rate / window_s - 1)) if rate else 0.0
    return {
        name: (figures[name], math.hypot(tolerance, _CHANCES * math.sqrt(2) * chances.get(name, 0.0)))
        for name, tolerance in COMPARED.items()
        if name in figures and (lengths.later or name != "turns_mean")
    }


def _anchors(expected: Mapping[str, tuple[float, float]], name: str) -> Iterator[Anchor]:
    """The figures that the preset reproduces; dispersion depends on bursts, which it does not."""
    for metric, (value, tolerance) in expected.items():
        if value > 0 and not metric.startswith("dispersion"):
            low, high = _rounded(value * max(0.0, 1 - tolerance)), _rounded(value * (1 + tolerance))
            yield Anchor(metric, low, high, f"{name}: {value:.4g}, give or take {100 * tolerance:.0f} %")


def _sessions(lengths: Lengths) -> int:
    """Sessions to draw from the preset: as many as the trace has, within limits."""
    return min(max(lengths.sessions, _FEWEST_DRAWN), _PROFILED_SESSIONS)


def _notes(lengths: Lengths, figures: Mapping[str, Comparison]) -> Iterator[str]:
    """What the preset does not reproduce."""
    if any(name in figures and not figures[name].is_within for name in _ARRIVALS):
        yield "its arrivals burst or drift as no Gamma process does; replay the trace if that matters"
    if lengths.main.later and not any(lengths.main.think_s):
        yield "pauses between turns are unknown and are left out"
    for count, text in (
        (
            lengths.main.shrunk + lengths.sub_agents.shrunk,
            "are not longer than the previous one; the preset compacts contexts at a fixed length",
        ),
        (
            lengths.main.overlapping + lengths.sub_agents.overlapping,
            "leave out part of the previous answer; the preset always includes all of it",
        ),
    ):
        if count > _NOTABLE_SHARE * lengths.later:
            yield f"{100 * count / lengths.later:.0f} % of later prompts {text}"
    if lengths.sub_agents.turns and not lengths.starts_sub_agents:
        yield "no sub-agent starts before the main agent's last request; sub-agents are left out"
    elif lengths.nested > _NOTABLE_SHARE * len(lengths.sub_agents.turns):
        share = 100 * lengths.nested / len(lengths.sub_agents.turns)
        yield f"{share:.0f} % of sub-agents are not started by the main agent; the preset's all are"
    if lengths.beside > _NOTABLE_SHARE * lengths.requests:
        share = 100 * lengths.beside / lengths.requests
        yield f"{share:.0f} % of requests run beside others of their agent; the preset sends them one after another"
    bound = figures.get("prefix_bound")
    if bound is not None and not bound.is_within:
        shares = (
            f"{100 * bound.trace:.0f} % of the trace's prompt tokens and {100 * bound.preset:.0f} % of the preset's"
        )
        yield f"a prefix cache could hit {shares}; replay the trace if prefixes matter"
