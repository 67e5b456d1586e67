"""GPU energy by phase: what prefill, decode and waiting draw, from the energy counter and the engine's steps.

NVML's counter advances about ten times a second, and a step takes milliseconds. So each interval between two readings
holds several phases: E = P_prefill · t_prefill + P_decode · t_decode + P_idle · t_idle. These powers are fitted over
all intervals of the window by non-negative least squares (Lawson and Hanson 1974). The proportions of the phases must
change from interval to interval; where they hardly do, there is no number.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec
import numpy as np
from scipy.optimize import nnls

from bakeoff.results.attribution.steps import Steps
from bakeoff.results.metrics.series import series
from bakeoff.results.records import TelemetryRecord, Window
from bakeoff.results.units import NS_PER_S

MIN_INTERVALS = 30
"""Intervals between readings of the counter within the window. A slow driver is read every 400 ms: 12 s."""
MIN_PHASE_S = 0.5
"""A phase that lasts less within the window has no power of its own."""
MAX_CONDITION = 50.0
"""Largest condition number of the normalised times; above it the proportions hardly change."""


class EnergyPhase(StrEnum):
    """What the GPU does."""

    PREFILL = "prefill"
    DECODE = "decode"
    IDLE = "idle"


class PhaseEnergy(msgspec.Struct, frozen=True):
    """Energy of a trial's window by phase.

    Attributes:
        watts: mean power of each phase; phases that hardly occur are missing.
        joules: of each of these phases within the window.
        prompt_tokens: computed within the window.
        output_tokens: made by decodes within the window.
        residual_share: root of the mean square error of an interval's energy, as a share of its mean.
    """

    watts: dict[EnergyPhase, float]
    joules: dict[EnergyPhase, float]
    prompt_tokens: int
    output_tokens: int
    residual_share: float


def phase_energy(steps: Steps, telemetry: Sequence[TelemetryRecord], window: Window) -> PhaseEnergy | str | None:
    """Energy by phase; the reason where it cannot be told; None without a GPU.

    Args:
        steps: of the only engine process.
        telemetry: samples with ``energy_j`` of sources named ``gpu…``.
        window: of the trial.
    """
    readings = _readings(telemetry, window)
    if readings is None:
        return None
    times_ns, joules = readings
    if not steps.records:
        return "the engine recorded no step"
    if steps.excess_missing is not None:
        return f"steps with decodes and prompts cannot be divided: {steps.excess_missing}"
    if len(times_ns) <= MIN_INTERVALS:
        return f"the energy counter has {len(times_ns)} readings in the window; {MIN_INTERVALS + 1} are needed"
    used_j = np.diff(joules)
    by_phase = _phase_seconds(steps, times_ns)
    kept = [phase for phase in EnergyPhase if by_phase[phase].sum() >= MIN_PHASE_S]
    columns = np.stack([by_phase[phase] for phase in kept], axis=1)
    if np.linalg.cond(columns / np.linalg.norm(columns, axis=0)) > MAX_CONDITION:
        return "prefill and decode take turns too evenly to tell their power apart; profile a lower load"
    watts, residual = nnls(columns, used_j)
    inside = (steps.end_ns > times_ns[0]) & (steps.end_ns <= times_ns[-1])
    return PhaseEnergy(
        watts=dict(zip(kept, watts.tolist(), strict=True)),
        joules={phase: float(power * by_phase[phase].sum()) for phase, power in zip(kept, watts, strict=True)},
        prompt_tokens=int(steps.prompt_tokens[inside].sum()),
        output_tokens=int(steps.output_tokens[inside].sum()),
        residual_share=float(residual / np.sqrt(len(used_j)) / used_j.mean()),
    )


def has_energy(telemetry: Sequence[TelemetryRecord], window: Window) -> bool:
    """Whether a GPU's energy counter was read."""
    return _readings(telemetry, window) is not None


def _readings(telemetry: Sequence[TelemetryRecord], window: Window) -> tuple[np.ndarray, np.ndarray] | None:
    """Times at which the counters moved, and the sum over GPUs; None without a counter."""
    sources = sorted({record.source for record in telemetry if record.source.startswith("gpu")})
    counters = [series([record for record in telemetry if record.source == source], "energy_j") for source in sources]
    known = [pair for pair in counters if pair is not None]
    if not known:
        return None
    times_ns, first = known[0]
    moved = np.flatnonzero(np.diff(first)) + 1
    times_ns = times_ns[moved]
    times_ns = times_ns[(times_ns >= window.start_ns) & (times_ns < window.end_ns)]
    return times_ns, np.sum([np.interp(times_ns, at, values) for at, values in known], axis=0)


def _phase_seconds(steps: Steps, times_ns: np.ndarray) -> dict[EnergyPhase, np.ndarray]:
    """Seconds of each phase in each interval between two times."""
    duration_ns = (steps.end_ns - steps.start_ns).astype(np.float64)
    prefill_ns = np.where(steps.decode_tokens > 0, steps.excess_ns, duration_ns)
    busy_s = np.diff(_spent_ns(steps, duration_ns, times_ns)) / NS_PER_S
    prefill_s = np.maximum(0.0, np.diff(_spent_ns(steps, prefill_ns, times_ns)) / NS_PER_S)
    decode_s = busy_s - prefill_s
    idle_s = np.maximum(0.0, np.diff(times_ns) / NS_PER_S - busy_s)
    return {EnergyPhase.PREFILL: prefill_s, EnergyPhase.DECODE: decode_s, EnergyPhase.IDLE: idle_s}


def _spent_ns(steps: Steps, by_step_ns: np.ndarray, times_ns: np.ndarray) -> np.ndarray:
    """Time spent in a phase until each instant: evenly within a step, none between steps."""
    total_ns = np.concatenate([[0.0], np.cumsum(by_step_ns)])
    edges_ns = np.stack([steps.start_ns, steps.end_ns], axis=1).ravel()
    spent_ns = np.stack([total_ns[:-1], total_ns[1:]], axis=1).ravel()
    return np.interp(times_ns, edges_ns, spent_ns)
