"""Sessions drawn from a preset, measured like those of the trace."""

import itertools

import msgspec
import numpy as np

from bakeoff.workloads.distributions import ks_distance
from bakeoff.workloads.fitting.lengths import Lengths, Step
from bakeoff.workloads.fitting.observed import Observed
from bakeoff.workloads.fitting.prefixes import Bound
from bakeoff.workloads.presets import Preset, PresetTraffic
from bakeoff.workloads.rng import Seed

_FEWEST_SESSIONS, _MOST_SESSIONS, _MOST_REQUESTS = 2_000, 20_000, 100_000
_CANDIDATE_REQUESTS = 30_000
_LIMIT_LEVELS = (0.8, 0.85, 0.875, 0.9, 0.92, 0.94, 0.96, 0.98, 1.0)


def redrawn(
    observed: Observed, preset: Preset, seed: Seed, most_requests: int = _MOST_REQUESTS
) -> tuple[Lengths, float | None]:
    """Draw sessions from a preset and measure them like the trace.

    Args:
        observed: the trace. As many sessions are drawn as it has, but at least 2,000 and at most 20,000.
        preset: the preset.
        seed: of the draws.
        most_requests: limit on requests, which gives fewer sessions if they are long.

    Returns:
        The lengths, and the prefix bound if the trace has one.
    """
    lengths, bound, prefixes = Lengths(), Bound(), observed.prefixes
    sessions = min(max(len(observed.lengths.turns), _FEWEST_SESSIONS), _MOST_SESSIONS)
    for outline in itertools.islice(PresetTraffic("fit", preset).outlines(seed), sessions):
        steps: list[Step] = []
        for turn in outline.turns:
            steps.append((turn.input_tokens, turn.output_tokens, turn.think_s if steps else None))
            if prefixes:
                bound.add_segments(turn.segments, prefixes.block_tokens, turn.input_tokens)
        lengths.add(steps)
        if len(lengths.requests) >= most_requests:
            break
    return lengths, bound.share


def with_context_limit(observed: Observed, preset: Preset, seed: Seed) -> Preset:
    """The preset with the ``max_input_tokens`` that fits the trace's prompts best.

    In a trace, sessions compact their context now and then; in a preset they do so at ``max_input_tokens``. The limit
    becomes the quantile of the trace's prompts that best matches the distributions of all prompts and of first
    prompts, and their mean. If the trace's prompts never shrink, its longest prompt is the limit.
    """
    if not observed.lengths.shrunk:
        return preset
    inputs = observed.lengths.requests.column(0)
    limits = sorted({round(float(np.quantile(inputs, level))) for level in _LIMIT_LEVELS} | {preset.max_input_tokens})
    candidates = [msgspec.structs.replace(preset, max_input_tokens=limit) for limit in limits]
    mismatches = [_mismatch(observed, candidate, seed) for candidate in candidates]
    return candidates[mismatches.index(min(mismatches))]


def _mismatch(observed: Observed, preset: Preset, seed: Seed) -> float:
    drawn, _ = redrawn(observed, preset, seed, _CANDIDATE_REQUESTS)
    trace, sample = observed.lengths.samples(), drawn.samples()
    ratio = drawn.means()["input_mean"] / observed.lengths.means()["input_mean"]
    return sum(ks_distance(trace[name], sample[name]) for name in ("input", "first_input")) + abs(float(np.log(ratio)))
