"""Sessions drawn from a preset, to be laid beside those of the trace."""

import itertools

import msgspec
import numpy as np

from workloads.distributions import ks_distance
from workloads.fitting.lengths import Lengths, Step
from workloads.fitting.observed import Observed
from workloads.fitting.prefixes import Bound
from workloads.presets import Preset, PresetTraffic
from workloads.rng import Seed

_FEWEST_SESSIONS, _MOST_SESSIONS, _MOST_REQUESTS = 2_000, 20_000, 100_000
_TRIED_REQUESTS = 30_000
_LIMIT_LEVELS = (0.8, 0.85, 0.875, 0.9, 0.92, 0.94, 0.96, 0.98, 1.0)


def redrawn(
    observed: Observed, preset: Preset, seed: Seed, most_requests: int = _MOST_REQUESTS
) -> tuple[Lengths, float | None]:
    """Draw sessions and look at them as the trace's were looked at.

    Args:
        observed: the trace. As many sessions as it has are drawn, though at least 2,000 and at most 20,000.
        preset: what to draw.
        seed: of the draws.
        most_requests: where sessions are long there are fewer of them.

    Returns:
        the lengths, and the prefix bound where the trace has one.
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
    """The preset with the longest prompt that makes its prompts most like the trace's.

    In a trace, sessions shrink their context now and then; in a preset they do when it reaches ``max_input_tokens``.
    So that one is set to the quantile of the trace's prompts at which lengths of all prompts, of the first ones, and
    their mean come nearest. A trace whose prompts never shrink keeps its longest.
    """
    if not observed.lengths.shrunk:
        return preset
    inputs = observed.lengths.requests.column(0)
    limits = sorted({round(float(np.quantile(inputs, level))) for level in _LIMIT_LEVELS} | {preset.max_input_tokens})
    tried = [msgspec.structs.replace(preset, max_input_tokens=limit) for limit in limits]
    unlike = [_unlikeness(observed, one, seed) for one in tried]
    return tried[unlike.index(min(unlike))]


def _unlikeness(observed: Observed, preset: Preset, seed: Seed) -> float:
    drawn, _ = redrawn(observed, preset, seed, _TRIED_REQUESTS)
    seen, made = observed.lengths.samples(), drawn.samples()
    off = drawn.means()["input_mean"] / observed.lengths.means()["input_mean"]
    return sum(ks_distance(seen[name], made[name]) for name in ("input", "first_input")) + abs(float(np.log(off)))
