"""How far prefill and decode of a profiled trial are from the machine's limits.

The roofline model (Williams et al. 2009): a step takes at least its bytes over the memory bandwidth, and at least its
operations over the products per second. MBU and MFU are the shares of the two that a phase reached. A step with prompt
tokens counts as prefill with all its work, decodes beside the prompt included, because it reads the weights once.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

import msgspec
import numpy as np

from bakeoff.results.attribution.catalogue import Part
from bakeoff.results.attribution.steps import Steps
from bakeoff.results.log.step_costs import BatchCost, TrialCosts
from bakeoff.results.machine.ceilings import READ, Ceilings
from bakeoff.results.metrics.machine import POWER_CAP
from bakeoff.results.metrics.series import moved
from bakeoff.results.records import TelemetryRecord, Window
from bakeoff.results.units import NS_PER_S

BOUND_SHARE = 0.3
"""A phase is bound by the nearer limit if that accounts for at least this share of its time: of less, a machine with
twice that limit saves less than 15 %."""
EXCEEDED_SHARE = 1.05
"""Share of a limit above which the limit was measured too low."""
MIN_STEPS = 3
"""Steps within the window below which a phase is left out."""
MIN_SAMPLES = 10
"""Samples of a GPU's throttle reasons within a phase below which its power cap is unknown."""
CAPPED_SHARE = 0.5
"""Share of a phase at the power cap above which the cap counts as sustained."""
CPU = "cpu"
"""Device of host processors; others are named ``cuda:0``, …"""
_COST_MISSING = "the trial was measured before costs of steps were stored; measure again"


class StepPhase(StrEnum):
    """What a step computes."""

    PREFILL = "prefill"
    """At least one prompt token."""
    DECODE = "decode"
    """Decodes only."""


PHASE_OF = {Part.PREFILL: StepPhase.PREFILL, Part.DECODE: StepPhase.DECODE}
"""The phase behind a part of the latency."""


class Bound(StrEnum):
    """Which limit decides how long a phase takes."""

    MEMORY = "memory"
    COMPUTE = "compute"
    NEITHER = "neither"


class Ceiling(msgspec.Struct, frozen=True):
    """The limits of the devices that computed.

    Attributes:
        device: ``cpu``, ``cuda:0``, …
        name: of the processor.
        devices: number that compute together; the rates are those of all of them.
        dtype: data type of the products, by torch's name.
        bytes_per_s: memory bandwidth.
        flops_per_s: products.
        bytes_range: 10th percentile and maximum of the measurement; None if it was not recorded.
        flops_range: the same of the products.
        threads: of the host that computed in the measurement; None on a GPU, or if it was not recorded.
    """

    device: str
    name: str
    devices: int
    dtype: str
    bytes_per_s: float
    flops_per_s: float
    bytes_range: tuple[float, float] | None = None
    flops_range: tuple[float, float] | None = None
    threads: int | None = None

    @property
    def is_cpu(self) -> bool:
        """Whether host processors computed."""
        return self.device == CPU

    @property
    def ridge(self) -> float:
        """Operations per byte at which both limits take the same time."""
        return self.flops_per_s / self.bytes_per_s


class PhaseWork(msgspec.Struct, frozen=True):
    """The steps of one phase within the window.

    Attributes:
        steps: their number.
        seconds: their duration.
        bytes: their memory traffic.
        flops: their operations.
        sequences: mean number of sequences of a step.
        at_power_cap: whether any GPU was at its power cap for most of the time; None if that is unknown.
    """

    steps: int
    seconds: float
    bytes: float
    flops: float
    sequences: float
    at_power_cap: bool | None = None

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes

    @property
    def flops_per_s(self) -> float:
        """Operations per second that the phase reached."""
        return self.flops / self.seconds

    def mbu(self, ceiling: Ceiling) -> float:
        """Model bandwidth utilisation: bytes / seconds / bandwidth."""
        return self.bytes / self.seconds / ceiling.bytes_per_s

    def mfu(self, ceiling: Ceiling) -> float:
        """Model FLOPs utilisation: operations / seconds / products per second."""
        return self.flops_per_s / ceiling.flops_per_s

    def bound(self, ceiling: Ceiling) -> Bound:
        """The nearer limit, where it accounts for at least :data:`BOUND_SHARE` of the time."""
        mbu, mfu = self.mbu(ceiling), self.mfu(ceiling)
        if max(mbu, mfu) < BOUND_SHARE:
            return Bound.NEITHER
        return Bound.MEMORY if mbu >= mfu else Bound.COMPUTE

    def exceeds(self, ceiling: Ceiling) -> bool:
        """Whether the phase was faster than a limit, beyond the error of its measurement."""
        return max(self.mbu(ceiling), self.mfu(ceiling)) > EXCEEDED_SHARE

    def bandwidth_gain(self, ceiling: Ceiling, factor: float = 2.0) -> float:
        """Share of the time that ``factor`` times the bandwidth saves, if all above the longer limit stays.

        A phase that exceeds a limit, because its data fits a cache, takes all its time for it.
        """
        memory, compute = self.mbu(ceiling), self.mfu(ceiling)
        longest = max(memory, compute)
        return (longest - max(memory / factor, compute)) / max(1.0, longest)


class Roofline(msgspec.Struct, frozen=True):
    """The distance of a trial from the limits.

    Attributes:
        phases: those with at least :data:`MIN_STEPS` steps in the window.
        ceiling: the limits, or why they are unknown.
        context_tokens: mean tokens in the cache of a decoding sequence.
        critical_batch: smallest batch whose decode of this context is compute-bound; None if no batch is, or if the
            limits are unknown.
    """

    phases: dict[StepPhase, PhaseWork]
    ceiling: Ceiling | str
    context_tokens: float
    critical_batch: int | None


def roofline_of(
    steps: Sequence[Steps],
    costs: TrialCosts | str | None,
    ceilings: Sequence[Ceilings] | str,
    window: Window,
    telemetry: Sequence[TelemetryRecord] = (),
) -> Roofline | str:
    """Compute the distance of a trial from the limits; the reason where its bytes and operations are unknown.

    Args:
        steps: of each engine process.
        costs: of the same steps, or why they cannot be read; None of a trial without them.
        ceilings: of the machine's devices, or why they cannot be read; empty if they were not measured.
        window: of the trial.
        telemetry: samples with ``throttle_reasons``, and ``power_cap_s`` where the driver counts it, of sources named
            ``gpu…``.
    """
    if not steps:
        return "the engine recorded no steps"
    if costs is None:
        return _COST_MISSING
    if isinstance(costs, str):
        return costs
    if costs.missing is not None:
        return costs.missing
    if [len(part.records) for part in steps] != [len(part) for part in costs.steps]:
        return "the costs of the steps are not those of the step log"
    works = {phase: _work(phase, steps, costs, window, telemetry) for phase in StepPhase}
    ceiling = _ceiling(costs, ceilings, len(steps))
    critical = None if isinstance(ceiling, str) else critical_batch(costs.decode, ceiling)
    return Roofline(
        {phase: work for phase, work in works.items() if work.steps >= MIN_STEPS and work.bytes > 0},
        ceiling,
        costs.context_tokens,
        critical,
    )


def critical_batch(decode: Sequence[BatchCost], ceiling: Ceiling) -> int | None:
    """Smallest batch whose decode is compute-bound, by linear interpolation; None if none is.

    Args:
        decode: costs by ascending batch. Between two of them they are linear, except of experts, nearly.
        ceiling: the limits.
    """
    excess_s = [cost.flops / ceiling.flops_per_s - cost.bytes / ceiling.bytes_per_s for cost in decode]
    known = list(zip(decode, excess_s, strict=True))
    if known and known[0][1] >= 0:
        return known[0][0].batch
    for (low, below_s), (high, above_s) in pairwise(known):
        if above_s >= 0:
            return math.ceil(low.batch + (high.batch - low.batch) * below_s / (below_s - above_s) - 1e-9)
    return None


def _work(
    phase: StepPhase, steps: Sequence[Steps], costs: TrialCosts, window: Window, telemetry: Sequence[TelemetryRecord]
) -> PhaseWork:
    chosen = [_inside(part, window) & ((part.prompt_tokens > 0) == (phase is StepPhase.PREFILL)) for part in steps]
    totals, count, sequences = np.zeros(3), 0, 0
    for part, of_part, kept in zip(steps, costs.steps, chosen, strict=True):
        totals[:2] += np.array(of_part, dtype=np.float64).reshape(-1, 2)[kept].sum(axis=0)
        totals[2] += (part.end_ns - part.start_ns)[kept].sum() / NS_PER_S
        count += int(kept.sum())
        sequences += sum(len(part.records[index].chunks) for index in np.flatnonzero(kept))
    bytes_, flops, seconds = totals.tolist()
    at_cap = _at_cap(steps, chosen, telemetry, window)
    return PhaseWork(count, seconds, bytes_, flops, sequences / max(1, count), at_cap)


def _inside(steps: Steps, window: Window) -> np.ndarray:
    """Which steps lie within the window and compute anything."""
    computes = (steps.prompt_tokens + steps.decode_tokens) > 0
    return computes & (steps.start_ns >= window.start_ns) & (steps.end_ns <= window.end_ns)


def _at_cap(
    steps: Sequence[Steps], chosen: Sequence[np.ndarray], telemetry: Sequence[TelemetryRecord], window: Window
) -> bool | None:
    """Whether any GPU was at its power cap for most of the chosen steps; None if that is known of no GPU."""
    by_gpu: dict[str, list[TelemetryRecord]] = {}
    for record in telemetry:
        if record.source.startswith("gpu"):
            by_gpu.setdefault(record.source, []).append(record)
    known = [
        share for records in by_gpu.values() if (share := _capped_share(steps, chosen, records, window)) is not None
    ]
    return max(known) > CAPPED_SHARE if known else None


def _capped_share(
    steps: Sequence[Steps], chosen: Sequence[np.ndarray], records: Sequence[TelemetryRecord], window: Window
) -> float | None:
    """Share of the chosen steps in which one GPU was at its power cap; None with too few samples.

    The driver's counter covers several steps between two readings, so samples tell the phases apart; no more of them
    count than the counter moved in the window.
    """
    masks = [
        (record.t_ns, mask)
        for record in records
        if window.holds(record.t_ns) and isinstance(mask := record.values.get("throttle_reasons"), int)
    ]
    in_phase = [bool(mask & POWER_CAP) for t_ns, mask in masks if _computes(steps, chosen, t_ns)]
    if len(in_phase) < MIN_SAMPLES:
        return None
    capped: float = sum(in_phase)
    counted_s = moved(records, "power_cap_s", window).value
    if counted_s is not None:
        capped = min(capped, len(masks) * counted_s / window.length_s)
    return capped / len(in_phase)


def _computes(steps: Sequence[Steps], chosen: Sequence[np.ndarray], t_ns: int) -> bool:
    """Whether any engine process is in one of the chosen steps."""
    for part, kept in zip(steps, chosen, strict=True):
        index = int(np.searchsorted(part.start_ns, t_ns, side="right")) - 1
        if index >= 0 and kept[index] and t_ns < part.end_ns[index]:
            return True
    return False


def _ceiling(costs: TrialCosts, ceilings: Sequence[Ceilings] | str, processes: int) -> Ceiling | str:
    if isinstance(ceilings, str):
        return ceilings
    device = next((each for each in ceilings if each.device.partition(":")[0] == costs.device), None)
    if device is None:
        return "the limits of this machine were not measured; run bakeoff lab machine, then bakeoff report"
    if costs.dtype not in device.flops_per_s:
        return f"bakeoff lab machine does not measure products in {costs.dtype}"
    if processes > 1 and costs.device == CPU:
        return "several engine processes share the memory of one machine"
    return Ceiling(
        device=device.device,
        name=device.name,
        devices=costs.devices,
        dtype=costs.dtype,
        bytes_per_s=device.read_bytes_per_s * costs.devices,
        flops_per_s=device.flops_per_s[costs.dtype] * costs.devices,
        bytes_range=_scaled(device.spread.get(READ), costs.devices),
        flops_range=_scaled(device.spread.get(costs.dtype), costs.devices),
        threads=device.threads,
    )


def _scaled(measured: tuple[float, float] | None, devices: int) -> tuple[float, float] | None:
    return None if measured is None else (measured[0] * devices, measured[1] * devices)
