"""Fit a preset to a trace: ``bakeoff workloads fit``.

Lengths, turns and pauses become tables of quantiles. Arrivals become a renewal process with the rate and the
coefficient of variation (CV) of the trace's gaps. It has no silences and no drift of the rate: where these matter, the
trace should be replayed instead. :class:`Fit` says where the preset's traffic differs from the trace.
"""

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from bakeoff.workloads.distributions import Distribution, Fixed, quantiles_of
from bakeoff.workloads.errors import BadTrace
from bakeoff.workloads.outline import Segment, TurnOutline, outlines
from bakeoff.workloads.presets import Anchor, NaturalArrival, Preset, PresetTraffic, Shared
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
    "prefix_bound": 0.18,
}
"""Figures of trace and preset that are compared, with the largest relative difference that is acceptable. Two parts of
one Azure 2023 trace differ by up to 26 % in their arrivals and 18 % in their lengths, so a fit cannot do better."""
_ARRIVALS = ("rate_per_s", "gap_cv", "dispersion_1s", "dispersion_10s", "dispersion_60s")
_PROFILED_SESSIONS, _FEWEST_DRAWN = 20_000, 2_000
_SESSIONS_FOR_PREFIX = 2_000
_NEARLY_ALL, _CHANCES = 0.9, 3.0
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
    lengths = _Lengths()
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


class _Lengths:
    """Lengths, turns and pauses of all sessions.

    Attributes:
        first: input and output tokens of each session's first request.
        appended: tokens that later requests add to the previous prompt and answer, and their output tokens.
        input: prompt tokens of every request.
        output: output tokens of every request.
        think_s: pauses before later requests.
        turns: requests per session.
        shrunk: number of later requests whose prompt is not longer than the previous one.
        compacted: number of those that are shorter than half the previous one.
        overlapping: number of later requests whose prompt grew by less than the previous answer.
        starts: number of sessions with a start time.
    """

    def __init__(self) -> None:
        self.first = (array("d"), array("d"))
        self.appended = (array("d"), array("d"))
        self.input = array("d")
        self.output = array("d")
        self.think_s = array("d")
        self.turns = array("d")
        self.shrunk = self.compacted = self.overlapping = self.starts = 0
        self._leading: list[tuple[Segment, ...]] = []

    def add(self, turns: Sequence[TurnOutline], *, has_start: bool) -> None:
        """Add a session of at least one request."""
        self.turns.append(len(turns))
        self.starts += has_start
        if len(self._leading) < _SESSIONS_FOR_PREFIX:
            self._leading.append(turns[0].segments)
        last: TurnOutline | None = None
        for turn in turns:
            self.output.append(turn.output_tokens)
            self.input.append(turn.input_tokens)
            if last is None:
                _extend(self.first, turn.input_tokens, turn.output_tokens)
            else:
                self.think_s.append(turn.think_s)
                self._add_later(turn, last)
            last = turn

    def _add_later(self, turn: TurnOutline, last: TurnOutline) -> None:
        if turn.input_tokens <= last.input_tokens:
            self.shrunk += 1
            self.compacted += turn.input_tokens < last.input_tokens / 2
            return
        appended = turn.input_tokens - last.input_tokens - last.output_tokens
        self.overlapping += appended < 1
        _extend(self.appended, max(1, appended), turn.output_tokens)

    @property
    def requests(self) -> int:
        return len(self.output)

    @property
    def sessions(self) -> int:
        return len(self.turns)

    @property
    def later(self) -> int:
        """Number of requests that are not the first of their session."""
        return self.requests - self.sessions

    def context_limit(self) -> int:
        """The longest prompt; where contexts are compacted, the length that 10 % of the prompts exceed."""
        return round(float(np.quantile(self.input, 0.9 if self.compacted else 1.0)))

    def correlation(self) -> float:
        """Spearman's correlation of the new tokens of a prompt (first input or appended) with its answer."""
        from scipy.stats import rankdata  # noqa: PLC0415  (scipy costs 0.5 s; --help must not pay)

        total = 0.0
        for new, output in (self.first, self.appended):
            if len(new) > 1 and min(new) < max(new) and min(output) < max(output):
                total += len(new) * float(np.corrcoef(rankdata(new), rankdata(output))[0, 1])
        return total / (len(self.first[0]) + len(self.appended[0]))

    def shared_tokens(self) -> int:
        """Length of the prefix that at least 90 % of the sessions share."""
        matching, depth, tokens = self._leading, 0, 0
        while True:
            segments = Counter(prompt[depth] for prompt in matching if len(prompt) > depth)
            segment, count = segments.most_common(1)[0] if segments else (("", 0), 0)
            if count < max(_NEARLY_ALL * len(self._leading), 2):
                return tokens
            matching = [prompt for prompt in matching if len(prompt) > depth and prompt[depth] == segment]
            depth, tokens = depth + 1, tokens + segment[1]


def _extend(columns: tuple["array[float]", "array[float]"], *row: float) -> None:
    for column, value in zip(columns, row, strict=True):
        column.append(value)


def _arrival(profile: WorkloadProfile, lengths: _Lengths) -> tuple[NaturalArrival, str, bool]:
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
    lengths: _Lengths, expected: Mapping[str, tuple[float, float]], arrival: NaturalArrival, name: str
) -> Preset:
    correlation, shared_tokens = round(lengths.correlation(), 2), lengths.shared_tokens()
    least_correlation = max(_SMALL_CORRELATION, _CHANCES / math.sqrt(lengths.requests))
    preset = Preset(
        summary=f"traffic like {name}",
        source=f"fitted to the {lengths.requests:,} requests of {name}",
        arrival=arrival,
        input=_table(lengths.first[0]),
        output=_table(lengths.output),
        correlation=correlation if abs(correlation) >= least_correlation else 0.0,
        shared=Shared(shared_tokens) if shared_tokens else None,
        max_input_tokens=lengths.context_limit(),
        anchors=tuple(_anchors(expected, name)),
    )
    if not lengths.later:
        return preset
    append = _table(lengths.appended[0]) if lengths.appended[0] else Fixed(1.0)
    return msgspec.structs.replace(
        preset, turns=_table(lengths.turns), append=append, think_s=_table(lengths.think_s)
    )  # fmt: skip


def _table(values: _Floats) -> Distribution:
    """Quantiles of a sample, integers exact and others to four digits; ``fixed`` if all values are equal."""
    sample = np.array(values)
    if not (sample == np.round(sample)).all():
        sample = np.array([_rounded(value) for value in sample.tolist()])
    return Fixed(float(sample[0])) if sample.min() == sample.max() else quantiles_of(sample)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _expected(figures: Mapping[str, float], lengths: _Lengths) -> dict[str, tuple[float, float]]:
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


def _sessions(lengths: _Lengths) -> int:
    """Sessions to draw from the preset: as many as the trace has, within limits."""
    return min(max(lengths.sessions, _FEWEST_DRAWN), _PROFILED_SESSIONS)


def _notes(lengths: _Lengths, figures: Mapping[str, Comparison]) -> Iterator[str]:
    """What the preset does not reproduce."""
    if any(name in figures and not figures[name].is_within for name in _ARRIVALS):
        yield "its arrivals burst or drift as no Gamma process does; replay the trace if that matters"
    if lengths.later and not any(lengths.think_s):
        yield "pauses between turns are unknown and are left out"
    for count, text in (
        (
            lengths.shrunk,
            "are not longer than the previous one; the preset compacts contexts at a fixed length",
        ),
        (lengths.overlapping, "leave out part of the previous answer; the preset always includes all of it"),
    ):
        if count > _NOTABLE_SHARE * lengths.later:
            yield f"{100 * count / lengths.later:.0f} % of later prompts {text}"
    bound = figures.get("prefix_bound")
    if bound is not None and not bound.is_within:
        shares = (
            f"{100 * bound.trace:.0f} % of the trace's prompt tokens and {100 * bound.preset:.0f} % of the preset's"
        )
        yield f"a prefix cache could hit {shares}; replay the trace if prefixes matter"
