"""How near prefill and decode of a profiled trial come to the machine's limits, as text."""

from bakeoff.results.attribution import PARTS, Attribution
from bakeoff.results.attribution.bottleneck import PhaseLimit, phase_limit
from bakeoff.results.attribution.catalogue import Part
from bakeoff.results.attribution.roofline import Bound, Ceiling, PhaseWork, Roofline
from bakeoff.results.metrics import Unit
from bakeoff.results.text.format import percent_text, rate_text, value_text


def limit_sentence(attribution: Attribution, part: Part) -> str:
    """The limit of a part: ``Decode is memory-bound: 71 % of the measured bandwidth``; empty if it is unknown."""
    limit = phase_limit(attribution, part)
    if limit is None:
        return ""
    title = PARTS[part].title
    if not limit.work.at_power_cap:
        held = _BOUNDS[limit.bound]
    elif limit.bound is Bound.NEITHER:
        held = "held back by the power cap"
    else:
        held = f"{_BOUNDS[limit.bound]} at the power cap"
    return f"{title[0].upper()}{title[1:]} is {held}: {_reached(limit)}"


_OVERHEAD_GPU = "launches, the step loop, kernels below the limits"
_OVERHEAD_CPU = "the step loop, kernels below the limits, fewer free cores or threads than were measured"
_BOUNDS = {Bound.MEMORY: "memory-bound", Bound.COMPUTE: "compute-bound", Bound.NEITHER: "bound by neither limit"}


def _reached(limit: PhaseLimit) -> str:
    ceiling = limit.ceiling
    mbu, mfu = percent_text(limit.work.mbu(ceiling)), percent_text(limit.work.mfu(ceiling))
    match limit.bound:
        case Bound.MEMORY:
            return f"{mbu} of the measured bandwidth"
        case Bound.COMPUTE:
            return f"{mfu} of the measured products in {ceiling.dtype}"
        case Bound.NEITHER:
            reached = f"{mbu} of the measured bandwidth and {mfu} of the products in {ceiling.dtype}"
            if limit.work.at_power_cap:
                return reached
            return f"{reached}; the rest is overhead: {_OVERHEAD_CPU if ceiling.is_cpu else _OVERHEAD_GPU}"


def limit_lines(roofline: Roofline | str | None) -> list[str]:
    """Work of each phase with MBU and MFU, then the limits; the reason if something is unknown; no lines for None."""
    if roofline is None:
        return []
    if isinstance(roofline, str):
        return [f"distance from the limit: unknown, because {roofline}"]
    ceiling = None if isinstance(roofline.ceiling, str) else roofline.ceiling
    lines = [f"{phase.value}: {_work_text(work, ceiling)}" for phase, work in roofline.phases.items()]
    if ceiling is None:
        return [*lines, f"MBU and MFU: unknown, because {roofline.ceiling}"]
    lines.append(f"limits of {ceiling_text(ceiling)}; {_critical_text(roofline)}")
    if any(work.exceeds(ceiling) for work in roofline.phases.values()):
        lines.append(
            "a phase exceeds its limit: run bakeoff lab machine again while nothing else runs, and profile again; a "
            "model that fits the caches exceeds the bandwidth of the memory, too"
        )
    return lines


def ceiling_text(ceiling: Ceiling) -> str:
    """The limits: ``cpu (2 threads): 39.1 GB/s, 268 GFLOP/s in bfloat16``."""
    device = f"{ceiling.devices} × {ceiling.device}" if ceiling.devices > 1 else ceiling.device
    if ceiling.threads is not None:
        device = f"{device} ({ceiling.threads:,} thread{'' if ceiling.threads == 1 else 's'})"
    rates = rate_text(ceiling.bytes_per_s, "B/s"), rate_text(ceiling.flops_per_s, "FLOP/s")
    return f"{device}: {rates[0]}, {rates[1]} in {ceiling.dtype}"


def _work_text(work: PhaseWork, ceiling: Ceiling | None) -> str:
    mbu = f" (MBU {percent_text(work.mbu(ceiling))})" if ceiling else ""
    mfu = f" (MFU {percent_text(work.mfu(ceiling))})" if ceiling else ""
    read, computed = rate_text(work.bytes / work.seconds, "B/s"), rate_text(work.flops_per_s, "FLOP/s")
    spent = value_text(Unit.SECONDS, work.seconds)
    return f"{read}{mbu}, {computed}{mfu}, {work.intensity:.3g} operations a byte; {work.steps:,} steps in {spent}"


def _critical_text(roofline: Roofline) -> str:
    context = f"with {roofline.context_tokens:,.0f} tokens of context"
    if roofline.critical_batch is None:
        return f"decode {context} is memory-bound in any batch"
    return f"decode {context} is compute-bound from a batch of {roofline.critical_batch:,} on (critical batch)"
