"""What a workload looks like before anything is sent: its arrivals, lengths, sessions, and how far a cache can help.

Figures are named as presets' anchors name them; seconds, tokens and shares of 1.
"""

import heapq
import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from workloads.dispersion import WINDOWS_S, ArrivalStatistics
from workloads.errors import WorkloadError
from workloads.outline import SessionOutline, TurnOutline, outlines, segment_blocks
from workloads.prefixes import LruCache
from workloads.presets.preset import Anchor
from workloads.presets.traffic import PresetTraffic
from workloads.rng import Seed
from workloads.tokenizer import Tokenizer
from workloads.types import SupportsFigures, SupportsStarts, Workload

SESSIONS, ARRIVALS = 2000, 200_000
"""How many are drawn unless told otherwise."""
_PACE_TOKENS_PER_S = 50.0
"""Assumed of an engine, to say when a session's next turn comes."""
_OPENING = 2000
"""Sessions of the closer look."""
_SLOTS = 8
"""Sessions at a time where nothing says when they start."""
_MOST_BLOCKS, _LARGEST_BLOCK = 300_000, 512
_CURVE_POINTS = 12
_LEVELS = (1, 5, 10, 25, 50, 75, 90, 95, 99)


class CachePoint(msgspec.Struct, frozen=True):
    """What a prefix cache of one size hits."""

    capacity_tokens: int
    hit_share: float
    """Of all prompt tokens."""


class Portrait(msgspec.Struct, frozen=True):
    """A drawn sample of a workload.

    Attributes:
        name: of the workload.
        notes: what a reader must know.
        figures: every number by its name; one that cannot be had is absent.
        arrivals_per_bin: arrivals in equal bins of ``bin_s`` seconds; empty where all come at once.
        bin_s: length of a bin.
        opening_per_bin: a closer look at the first sessions of the sample: one bin where all start at once, none where
            nothing says when.
        opening_bin_s: length of such a bin.
        turns: requests of each session in the sample.
        think_s: before each later turn in the sample.
        input_tokens: of each request in the sample.
        output_tokens: of each request in the sample.
        curve: hits against the size of a prefix cache, smallest first.
        curve_block_tokens: block size at which the curve was found.
        curve_sample_share: of the sample's prompt tokens, those on which the curve was found: its beginning.
        anchors: what the workload says it meets.
    """

    name: str
    notes: tuple[str, ...]
    figures: dict[str, float]
    arrivals_per_bin: tuple[int, ...]
    bin_s: int
    opening_per_bin: tuple[int, ...]
    opening_bin_s: int
    turns: tuple[int, ...]
    think_s: tuple[float, ...]
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    curve: tuple[CachePoint, ...]
    curve_block_tokens: int
    curve_sample_share: float
    anchors: tuple[Anchor, ...] = ()

    def met(self, anchor: Anchor) -> bool | None:
        """Whether the sample meets an anchor; None where the figure is absent."""
        value = self.figures.get(anchor.metric)
        return None if value is None else anchor.low <= value <= anchor.high


def portrait(
    name: str,
    workload: Workload,
    seed: Seed,
    *,
    tokenizer: Tokenizer | None = None,
    sessions: int = SESSIONS,
    arrivals: int = ARRIVALS,
) -> Portrait:
    """Draw a sample of a workload.

    Args:
        name: what to call it.
        workload: one that supports outlines need not be written; of one that supports starts more arrivals than
            sessions can be drawn.
        seed: of the sample.
        tokenizer: needed where the workload cannot outline.
        sessions: how many to draw.
        arrivals: how many starts to draw.

    Raises:
        NoTokenizer: it is needed and there is none.
        WorkloadError: there is no session, or sessions do not come in the order of their start.
    """
    drawn = [session for session in itertools.islice(outlines(workload, seed, tokenizer), sessions) if session.turns]
    if not drawn:
        raise WorkloadError(f"{name} has no session; look at its options, such as max_input_tokens")
    known = [s.start_s for s in drawn if s.start_s is not None]
    has_starts = isinstance(workload, SupportsStarts)
    timing = _timing(itertools.islice(workload.starts(seed), arrivals) if has_starts else known)
    opening = _timing(known[:_OPENING]).histogram()
    turns = [turn for session in drawn for turn in session.turns]
    order = list(in_time(drawn))
    bound, block_tokens = _bound(order), _block_tokens(order)
    simulated = _beginning(order, block_tokens)
    figures = {
        **_arrival_figures(timing),
        **_length_figures("input", [turn.input_tokens for turn in turns]),
        **_length_figures("output", [turn.output_tokens for turn in turns]),
        **_session_figures(drawn),
        **_prefix_figures(order, bound),
        **(workload.extra_figures(seed) if isinstance(workload, SupportsFigures) else {}),
    }
    return Portrait(
        name=name,
        notes=tuple(workload.notes()),
        figures=figures,
        arrivals_per_bin=timing.histogram().counts if timing.span_s > 0 else (),
        bin_s=timing.histogram().bin_s if timing.span_s > 0 else 0,
        opening_per_bin=opening.counts,
        opening_bin_s=opening.bin_s,
        turns=tuple(len(session.turns) for session in drawn),
        think_s=tuple(turn.think_s for session in drawn for turn in session.turns[1:]),
        input_tokens=tuple(turn.input_tokens for turn in turns),
        output_tokens=tuple(turn.output_tokens for turn in turns),
        curve=tuple(_curve(simulated, block_tokens)),
        curve_block_tokens=block_tokens,
        curve_sample_share=sum(turn.input_tokens for turn in simulated) / sum(turn.input_tokens for turn in turns),
        anchors=workload.preset.anchors if isinstance(workload, PresetTraffic) else (),
    )


def in_time(sessions: Sequence[SessionOutline]) -> Iterator[TurnOutline]:
    """All turns in the order in which an engine would see them, at an assumed pace of 50 tokens a second.

    Sessions that do not say when they start take turns in eight slots.
    """
    slots = [0.0] * _SLOTS
    at: list[tuple[float, int, TurnOutline]] = []
    for session in sessions:
        now_s = heapq.heappop(slots) if session.start_s is None else session.start_s
        for turn in session.turns:
            now_s += turn.think_s
            at.append((now_s, len(at), turn))
            now_s += turn.output_tokens / _PACE_TOKENS_PER_S
        if session.start_s is None:
            heapq.heappush(slots, now_s)
    at.sort(key=lambda item: item[:2])
    return (turn for _, _, turn in at)


def _timing(offsets: Iterable[float]) -> ArrivalStatistics:
    timing = ArrivalStatistics()
    try:
        timing.add_all(offsets)
        _ = timing.span_s  # looks at the offsets that still wait to be taken in
    except ValueError as cause:
        raise WorkloadError(f"sessions must come in the order of their start: {cause}") from cause
    return timing


def _arrival_figures(timing: ArrivalStatistics) -> dict[str, float]:
    if timing.span_s <= 0:
        return {}
    found = {
        "rate_per_s": timing.rate_per_s,
        "gap_cv": timing.gap_cv,
        "longest_gap_s": timing.longest_gap_s,
        **{f"dispersion_{window_s}s": timing.dispersion(window_s) for window_s in WINDOWS_S},
        "peak_to_mean_60s": timing.peak_to_mean(60),
    }
    return {name: value for name, value in found.items() if value is not None}


def _length_figures(name: str, tokens: Sequence[int]) -> dict[str, float]:
    if not tokens:
        return {}
    levels = np.percentile(tokens, _LEVELS).tolist()
    named = {f"{name}_p{level}": value for level, value in zip(_LEVELS, levels, strict=True)}
    return {f"{name}_mean": statistics.fmean(tokens), f"{name}_min": min(tokens), **named, f"{name}_max": max(tokens)}


def _session_figures(sessions: Sequence[SessionOutline]) -> dict[str, float]:
    turns = [turn for session in sessions for turn in session.turns]
    thinks = [turn.think_s for session in sessions for turn in session.turns[1:]]
    found = {
        "turns_mean": len(turns) / max(1, len(sessions)),
        "single_turn_share": sum(len(session.turns) == 1 for session in sessions) / max(1, len(sessions)),
        "input_per_output": sum(t.input_tokens for t in turns) / max(1, sum(t.output_tokens for t in turns)),
    }
    if thinks:
        found |= {"think_p50_s": statistics.median(thinks), "think_mean_s": statistics.fmean(thinks)}
    return found


def _prefix_figures(order: Sequence[TurnOutline], hits: Sequence[int]) -> dict[str, float]:
    prompt = sum(turn.input_tokens for turn in order)
    new = [turn.input_tokens - hit for turn, hit in zip(order, hits, strict=True)]
    return {
        "prompt_tokens": float(prompt),
        "prefix_bound": sum(hits) / max(1, prompt),
        "new_tokens_p50": float(np.percentile(new, 50)),
        "new_tokens_p95": float(np.percentile(new, 95)),
    }


def _bound(order: Sequence[TurnOutline]) -> list[int]:
    """Leading tokens of each prompt that an earlier one had: whole segments, as texts differ where names do."""
    known: set[int] = set()
    hits: list[int] = []
    for turn in order:
        chain, hit, leading = 0, 0, True
        for segment in turn.segments:
            chain = hash((chain, segment))
            leading = leading and chain in known
            hit += segment[1] if leading else 0
            known.add(chain)
        hits.append(min(hit, turn.input_tokens - 1))
    return hits


def _block_tokens(order: Sequence[TurnOutline]) -> int:
    """A block size, from 16 in doublings to 512, at which the sample has few enough blocks to be simulated at once."""
    total, size = sum(turn.input_tokens for turn in order), 16
    while total // size > _MOST_BLOCKS and size < _LARGEST_BLOCK:
        size *= 2
    return size


def _beginning(order: Sequence[TurnOutline], block_tokens: int) -> list[TurnOutline]:
    """The first requests: as many as the blocks that are simulated at most."""
    tokens_so_far = itertools.accumulate(turn.input_tokens for turn in order)
    return [turn for turn, tokens in zip(order, tokens_so_far, strict=True) if tokens <= _MOST_BLOCKS * block_tokens]


def _curve(order: Sequence[TurnOutline], block_tokens: int) -> Iterator[CachePoint]:
    """Hits of least-recently-used caches, from one prompt's size up to everything."""
    prompts = [list(segment_blocks(turn.segments, block_tokens)) for turn in order]
    distinct = len({name for names in prompts for name in names}) * block_tokens
    total = sum(turn.input_tokens for turn in order)
    largest = max((turn.input_tokens for turn in order), default=0)
    if not distinct or largest < block_tokens:
        return
    for capacity in np.geomspace(min(largest, distinct), distinct * 1.01, _CURVE_POINTS).tolist():
        cache = LruCache(round(capacity), block_tokens)
        for names in prompts:
            cache.add(names)
        yield CachePoint(round(capacity), cache.hit_tokens / total)
