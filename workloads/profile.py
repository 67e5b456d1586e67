"""Workload profile: arrivals, lengths, sessions and cacheable share of a workload, before anything is sent.

Figures carry the names that presets' anchors use; units are seconds, tokens and fractions of 1.
"""

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from bakeoff.workloads.dispersion import FEWEST_WINDOWS, WINDOWS_S, ArrivalCounts, ArrivalStatistics
from bakeoff.workloads.errors import WorkloadError
from bakeoff.workloads.histogram import Histogram, integer_histogram, seconds_histogram
from bakeoff.workloads.outline import SessionOutline, TurnOutline, outlines
from bakeoff.workloads.prefix_hits import Call, PrefixHits, call_times_s, timeline
from bakeoff.workloads.presets.preset import Anchor
from bakeoff.workloads.presets.traffic import PresetTraffic
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.tokenizer import Tokenizer
from bakeoff.workloads.types import SupportsFigures, SupportsStarts, Workload

SESSIONS, ARRIVALS = 2000, 200_000
"""Default number of sessions and of session starts in a sample."""
_OPENING_SESSIONS = 2000
_MAX_SEGMENTS = 4_000_000
"""Segments of prompts in a sample; those of a coding agent's session are a hundred thousand."""
_CURVE_POINTS = 12
_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


class CachePoint(msgspec.Struct, frozen=True):
    """Hit rate of a prefix cache of one size."""

    capacity_tokens: int
    hit_share: float
    """Fraction of all prompt tokens."""


class HitCurve(msgspec.Struct, frozen=True):
    """Hit rate against the size of a prefix cache.

    Attributes:
        points: smallest cache first; empty if nothing can be found.
    """

    points: tuple[CachePoint, ...]


class CheckedAnchor(Anchor, frozen=True):
    """An anchor beside the sample's figure.

    Attributes:
        value: the figure; None if the sample does not have it.
        met: whether the figure lies in the anchor's range; None if there is no figure or lengths were scaled or cut.
    """

    value: float | None
    met: bool | None


class WorkloadProfile(msgspec.Struct, frozen=True):
    """Everything that ``bakeoff workloads show`` reports about a sample of a workload.

    Attributes:
        name: of the workload.
        notes: the workload's own remarks on scale, source and synthetic parts.
        sessions: number of sessions in the sample.
        requests: number of requests in the sample.
        figures: every number by its name; a figure that cannot be computed is missing.
        absent: why an arrival figure is missing, by its name.
        arrivals: session starts over time; empty if all sessions start at once or have no start time.
        opening: session starts of the sample's first sessions; one bin if all start at once, empty without times.
        input_tokens: prompt tokens per request.
        output_tokens: requested output tokens per request.
        turns: requests per session.
        think_s: pause before each request except a session's first, in seconds.
        prefix_cache: simulated hit rates.
        anchors: the preset's anchors, checked.
        rescaled: whether the preset's lengths were scaled or cut, so that its anchors do not apply.
    """

    name: str
    notes: tuple[str, ...]
    sessions: int
    requests: int
    figures: dict[str, float]
    absent: dict[str, str]
    arrivals: ArrivalCounts
    opening: ArrivalCounts
    input_tokens: Histogram
    output_tokens: Histogram
    turns: Histogram
    think_s: Histogram
    prefix_cache: HitCurve
    anchors: tuple[CheckedAnchor, ...]
    rescaled: bool

    @property
    def no_arrivals_reason(self) -> str:
        """Why there are no arrival figures; empty if there are some."""
        if self.arrivals.counts:
            return ""
        if self.opening.counts:
            return "all sessions are waiting when the load begins, so there are no arrivals"
        return "this workload has no start times: the load's arrival process sets them"


def profile_workload(
    name: str,
    workload: Workload,
    seed: Seed,
    *,
    tokenizer: Tokenizer | None = None,
    sessions: int = SESSIONS,
    arrivals: int = ARRIVALS,
) -> WorkloadProfile:
    """Draw a sample of a workload and profile it.

    Args:
        name: name of the profile.
        workload: prompts are written only if it cannot outline them; starts beyond ``sessions`` are drawn only if it
            can draw them alone (:class:`~bakeoff.workloads.types.SupportsStarts`).
        seed: of the sample.
        tokenizer: required if prompts must be written.
        sessions: number of sessions to draw.
        arrivals: number of session starts to draw.

    Raises:
        NoTokenizer: prompts must be written and ``tokenizer`` is None.
        WorkloadError: there is no session, or sessions are not in the order of their start.
    """
    sample = list(sampled(itertools.islice(outlines(workload, seed, tokenizer), sessions)))
    if not sample:
        raise WorkloadError(f"{name} has no session; check its options, such as max_input_tokens")
    starts_s = [session.start_s for session in sample if session.start_s is not None]
    has_starts = isinstance(workload, SupportsStarts)
    timing = _timing(itertools.islice(workload.starts(seed), arrivals) if has_starts else starts_s)
    turns = [turn for session in sample for turn in session.turns]
    calls = timeline(sample).calls
    # Sessions arrive however many calls are in progress, so these are not taken to hold room.
    hits = PrefixHits([Call(call.start_s, call.start_s, 0, call.turn) for call in calls])
    figures = {
        **_arrival_figures(timing),
        **_length_figures("input", [turn.input_tokens for turn in turns]),
        **_length_figures("output", [turn.output_tokens for turn in turns]),
        **_session_figures(sample),
        **_agent_figures(sample),
        **_prefix_figures([call.turn for call in calls], hits),
        **(workload.extra_figures(seed) if isinstance(workload, SupportsFigures) else {}),
    }
    preset = workload if isinstance(workload, PresetTraffic) else None
    rescaled = preset is not None and (preset.scale != 1 or preset.max_input_tokens is not None)
    profile = WorkloadProfile(
        name=name,
        notes=tuple(workload.notes()),
        sessions=len(sample),
        requests=len(turns),
        figures=figures,
        absent={},
        arrivals=timing.counts_over_time() if timing.span_s > 0 else ArrivalCounts(0, ()),
        opening=_timing(starts_s[:_OPENING_SESSIONS]).counts_over_time(),
        input_tokens=integer_histogram([turn.input_tokens for turn in turns]),
        output_tokens=integer_histogram([turn.output_tokens for turn in turns]),
        turns=integer_histogram([len(session.turns) for session in sample]),
        think_s=seconds_histogram([turn.think_s for session in sample for turn in session.turns[1:]]),
        prefix_cache=_hit_curve(hits, max(turn.input_tokens for turn in turns)),
        anchors=tuple(check_anchor(anchor, figures, rescaled=rescaled) for anchor in preset.preset.anchors)
        if preset
        else (),
        rescaled=rescaled,
    )
    return msgspec.structs.replace(profile, absent=_absent(figures, profile.no_arrivals_reason))


def sampled(sessions: Iterable[SessionOutline]) -> Iterator[SessionOutline]:
    """The sessions that have turns, up to the one whose segments exceed what fits into memory."""
    segments = 0
    for session in sessions:
        if session.turns:
            yield session
        segments += sum(len(turn.segments) for turn in session.turns)
        if segments > _MAX_SEGMENTS:
            return


def check_anchor(anchor: Anchor, figures: Mapping[str, float], *, rescaled: bool = False) -> CheckedAnchor:
    """Compare an anchor with a sample's figures."""
    value = figures.get(anchor.metric)
    met = None if value is None or rescaled else anchor.low <= value <= anchor.high
    return CheckedAnchor(anchor.metric, anchor.low, anchor.high, anchor.source, value, met)


def _timing(offsets_s: Iterable[float]) -> ArrivalStatistics:
    timing = ArrivalStatistics()
    try:
        timing.add_all(offsets_s)
        _ = timing.span_s  # processes, and so checks, the offsets that are still buffered
    except ValueError as cause:
        raise WorkloadError(f"sessions must be in the order of their start: {cause}") from cause
    return timing


def _arrival_figures(timing: ArrivalStatistics) -> dict[str, float]:
    if timing.span_s <= 0:
        return {}
    figures = {
        "rate_per_s": timing.rate_per_s,
        "gap_cv": timing.gap_cv,
        "longest_gap_s": timing.longest_gap_s,
        **{f"dispersion_{window_s}s": timing.dispersion(window_s) for window_s in WINDOWS_S},
        "peak_to_mean_60s": timing.peak_to_mean(60),
    }
    return {name: value for name, value in figures.items() if value is not None}


def _absent(figures: Mapping[str, float], no_arrivals_reason: str) -> dict[str, str]:
    windows = {f"dispersion_{window_s}s": window_s for window_s in WINDOWS_S} | {"peak_to_mean_60s": 60}
    reasons = {name: f"fewer than {FEWEST_WINDOWS} windows of {window_s} s" for name, window_s in windows.items()}
    reasons |= dict.fromkeys(("rate_per_s", "gap_cv", "longest_gap_s"), "too few arrivals")
    return {name: no_arrivals_reason or reason for name, reason in reasons.items() if name not in figures}


def _length_figures(name: str, tokens: Sequence[int]) -> dict[str, float]:
    quantiles = np.percentile(tokens, _PERCENTILES).tolist()
    named = {f"{name}_p{percent}": value for percent, value in zip(_PERCENTILES, quantiles, strict=True)}
    return {f"{name}_mean": statistics.fmean(tokens), f"{name}_min": min(tokens), **named, f"{name}_max": max(tokens)}


def _session_figures(sessions: Sequence[SessionOutline]) -> dict[str, float]:
    turns = [turn for session in sessions for turn in session.turns]
    thinks_s = [turn.think_s for session in sessions for turn in session.turns[1:]]
    figures = {
        "turns_mean": len(turns) / len(sessions),
        "single_turn_share": sum(len(session.turns) == 1 for session in sessions) / len(sessions),
        "input_per_output": sum(t.input_tokens for t in turns) / max(1, sum(t.output_tokens for t in turns)),
    }
    if thinks_s:
        figures |= {"think_p50_s": statistics.median(thinks_s), "think_mean_s": statistics.fmean(thinks_s)}
    return figures


def _agent_figures(sessions: Sequence[SessionOutline]) -> dict[str, float]:
    """Figures of sub-agents; empty if there are none."""
    agents = [turn.agent for session in sessions for turn in session.turns]
    if not any(agents):
        return {}
    sub_agents = sum(len({turn.agent for turn in session.turns} - {""}) for session in sessions)
    prompt_tokens = sum(turn.input_tokens for session in sessions for turn in session.turns)
    return {
        "sub_agent_share": sum(map(bool, agents)) / len(agents),
        "sub_agents_mean": sub_agents / len(sessions),
        "calls_at_once_max": max(map(_calls_at_once, sessions)),
        "prompt_tokens_per_session": prompt_tokens / len(sessions),
    }


def _calls_at_once(session: SessionOutline) -> int:
    """The largest number of a session's calls that an engine that decodes 50 tokens per second answers at once."""
    starts_s, ends_s = call_times_s(session)
    changes = sorted([*((start_s, 1) for start_s in starts_s), *((end_s, -1) for end_s in ends_s)])
    return max(itertools.accumulate(change for _, change in changes))


def _prefix_figures(turns: Sequence[TurnOutline], hits: PrefixHits) -> dict[str, float]:
    found = hits.of_calls(None, block_tokens=1)
    new_tokens = np.array([turn.input_tokens for turn in turns]) - found
    return {
        "prompt_tokens": float(hits.prompt_tokens),
        "prefix_bound": int(found.sum()) / max(1, hits.prompt_tokens),
        "new_tokens_p50": float(np.percentile(new_tokens, 50)),
        "new_tokens_p95": float(np.percentile(new_tokens, 95)),
    }


def _hit_curve(hits: PrefixHits, longest_prompt: int) -> HitCurve:
    """Hit rates of LRU caches, from the size of the longest prompt to one that finds as much as an unlimited one."""
    if not hits.share():
        return HitCurve(())
    largest = hits.largest_tokens
    sizes = map(round, np.geomspace(min(longest_prompt, largest), largest, _CURVE_POINTS).tolist())
    return HitCurve(tuple(CachePoint(size, hits.share(size)) for size in sizes))
