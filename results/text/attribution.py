"""The attribution of a profiled trial as text."""

import math
from collections.abc import Sequence
from typing import TypeGuard

from bakeoff.results.attribution import PARTS, Attribution, Latency, Part
from bakeoff.results.attribution.bottleneck import NOTABLE_SHARE, Change, WhatIf, bottleneck, what_if
from bakeoff.results.attribution.clock import ClockCheck
from bakeoff.results.attribution.difference import Difference
from bakeoff.results.attribution.energy import EnergyPhase, PhaseEnergy
from bakeoff.results.attribution.trial import MAX_UNATTRIBUTED
from bakeoff.results.metrics import CATALOGUE, Unit
from bakeoff.results.records import Verdict
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.deviation import Deviation, Figure
from bakeoff.results.text.findings import sentences
from bakeoff.results.text.format import ABSENT, listed, percent_text, ratio_change_text, value_text
from bakeoff.results.text.roofline import limit_sentence
from bakeoff.results.trace.kernels import KernelRecord
from bakeoff.results.units import NS_PER_S

_OVERHEAD = ("output_tokens_per_s", "itl_p50_s")
_FIGURES = {
    Figure.OUTPUT_RATE: (CATALOGUE["output_tokens_per_s"].title, Unit.TOKENS_PER_SECOND),
    Figure.MEAN_E2E: ("mean E2E", Unit.SECONDS),
}
"""Title and unit."""
_NS_PER_US = 1e3
_KERNELS = 3
"""Kernels that are named."""
_CASES, _MIN_SAVING = 3, 0.01
"""Most savings that are named, and the least share of the mean that each must have."""
_UNREPORTED = (
    "vLLM does not report its steps (interference, stalls and gaps are inside prefill and decode phase), nor when it "
    "tokenised and how long a request waited for the step in progress (both are inside front end ⇄ engine)"
)


def bottleneck_sentence(attribution: Attribution) -> str:
    """Names the bottleneck, and the limit that a computing phase reaches, without a full stop.

    ``Bottleneck: decode, 53 % of the mean E2E (443 ms of 837 ms). Decode is memory-bound: 71 % of …``.
    """
    largest = bottleneck(attribution)
    if isinstance(largest, str):
        return f"nothing to attribute: {largest}"
    whole = attribution.mean_s(Latency.E2E)
    spent, total = value_text(Unit.SECONDS, largest.seconds), value_text(Unit.SECONDS, whole)
    share = percent_text(largest.share)
    sentence = f"Bottleneck: {PARTS[largest.part].title}, {share} of the mean E2E ({spent} of {total})"
    others = listed([f"{PARTS[part].title} {percent_text(share)}" for part, share in largest.others.items()])
    sentence = f"{sentence}; then {others}" if others else sentence
    return ". ".join(filter(None, [sentence, limit_sentence(attribution, largest.part)]))


def what_if_text(attribution: Attribution) -> str:
    """The largest savings: ``All else equal, the mean E2E would be 575 ms (−31 %) without interference``."""
    cases = [case for case in what_if(attribution)[:_CASES] if case.share >= _MIN_SAVING]
    texts = [
        f"{value_text(Unit.SECONDS, case.latency_s)} (−{percent_text(case.share)}) {_condition(case)}" for case in cases
    ]
    return f"All else equal, the mean E2E would be {'; '.join(texts)}." if texts else ""


def _condition(case: WhatIf) -> str:
    title = PARTS[case.part].title
    match case.change:
        case Change.REMOVED:
            return f"without {title}"
        case Change.TWICE_AS_FAST:
            return f"with {title} twice as fast"
        case Change.TWICE_THE_BANDWIDTH:
            return f"with twice the bandwidth in {title}"


def coverage_line(attribution: Attribution) -> str:
    """How much is attributed: ``unattributed: at most 2 % of the E2E of all 47 requests``."""
    most, share = percent_text(MAX_UNATTRIBUTED), attribution.attributed_share
    which = "all" if share == 1 else f"{percent_text(share, 1)} of"
    line = f"unattributed: at most {most} of the E2E of {which} {len(attribution.requests):,} requests"
    if attribution.not_recorded:
        line = f"{line}; left out of the means, because the server did not record them: {attribution.not_recorded:,}"
    return f"{line}; {attribution.missing}" if attribution.missing else line


def clock_line(clock: ClockCheck | None) -> str:
    """How well client and server agree on the time."""
    if clock is None:
        return "clock: not checked, because no request has stamps of client and server"
    least, most = (f"{bound / _NS_PER_US:+,.0f} µs".replace("-", "−") for bound in (clock.least_ns, clock.most_ns))
    if clock.residual_ns:
        return f"clock: stamps of client and server contradict each other by up to {clock.residual_ns / 1e3:,.0f} µs"
    return f"clock: all {clock.pairs:,} pairs of stamps are in order; the clocks differ by {least} to {most}"


def part_title(attribution: Attribution, part: Part) -> str:
    """Heading of a part in a profile, with an asterisk if it follows from durations."""
    return f"{PARTS[part].title}{' *' if part in attribution.derived else ''}"


def span_lines(attribution: Attribution) -> list[str]:
    """Explains the figures of an engine that exports spans, and lists what it does not report; empty for others."""
    if not attribution.spans:
        return []
    drift = f"{math.ceil(attribution.wall_drift_ns / _NS_PER_US):,} µs"
    return [
        f"* derived from durations in vLLM’s spans; their clock and the client’s kept their distance within {drift}",
        _UNREPORTED,
    ]


def cost_line(attribution: Attribution) -> str:
    """Cost of a decode step without prompts, or why it is unknown; empty without a record of steps."""
    if not attribution.steps:
        return ""
    if Part.INTERFERENCE in attribution.absent:
        return f"interference: unknown and counted as decode, because {attribution.absent[Part.INTERFERENCE]}"
    cost = attribution.cost
    if isinstance(cost, str):
        return f"a step of decodes alone: unknown, because {cost}"
    terms = (
        (cost.base_ns, ""),
        (cost.row_ns, " a computed token"),
        (1_000 * cost.context_ns, " per 1,000 tokens of context"),
    )
    sum_text = " + ".join(f"{value_text(Unit.SECONDS, ns / NS_PER_S)}{of}" for ns, of in terms if ns)
    fit = f"half of {cost.steps:,} steps within {percent_text(cost.residual_share, 1)}"
    return f"a step of decodes alone: {sum_text} ({fit})"


def energy_line(energy: PhaseEnergy | str | None) -> str:
    """Power of each phase: ``energy: prefill 640 W, 0.05 J a prompt token; decode 410 W, …``; empty without a GPU."""
    if energy is None or isinstance(energy, str):
        return f"energy by phase: unknown, because {energy}" if energy else ""
    tokens = {EnergyPhase.PREFILL: (energy.prompt_tokens, "a prompt token"),
              EnergyPhase.DECODE: (energy.output_tokens, "an output token")}  # fmt: skip
    texts: list[str] = []
    for phase, watts in energy.watts.items():
        count, unit = tokens.get(phase, (0, ""))
        per_unit = f", {value_text(Unit.JOULES, energy.joules[phase] / count)} {unit}" if count else ""
        texts.append(f"{phase.value} {watts:,.0f} W{per_unit}")
    return f"energy by phase: {'; '.join(texts)} (± {percent_text(energy.residual_share)} of an interval's energy)"


def kernel_line(records: Sequence[KernelRecord], missing: str | None) -> str:
    """Content of the profile of the engine's kernels; empty if none was requested."""
    if missing:
        return f"kernels: not recorded, because {missing}"
    if not records:
        return ""
    count = sum(len(record.kernels) for record in records)
    texts = [f"kernels: {count:,} operations of the engine behind the trial, in its trace"]
    residuals = [record.residual_ns for record in records if record.residual_ns is not None]
    if residuals:
        texts.append(f"the profiler's marks lie within {max(residuals) / _NS_PER_US:,.0f} µs of the steps")
    texts += [
        f"{percent_text(share, 1)} of the GPU's kernel time lies inside steps"
        for record in records
        if (share := record.share_in_steps()) is not None
    ]
    for record in records:
        shares = ", ".join(f"{name} {percent_text(share)}" for name, share in record.shares()[:_KERNELS])
        if (busy := record.busy_share()) is not None:
            texts.append(f"the GPU was busy {percent_text(busy)} of the time, most of it with {shares}")
        elif shares:
            texts.append(f"most of the time: {shares}")
    return "; ".join(texts)


def overhead_line(plain: Trial | None, profiled: Trial) -> str:
    """Cost of the record: ``overhead …: output 196 tok/s with it, 192 tok/s without (+2.1 %); …``."""
    if plain is None:
        return "overhead: unknown, because the plain trial is missing"
    for name, record in (("plain", plain.record), ("profiled", profiled.record)):
        if record.verdict is Verdict.INVALID:
            return f"overhead: unknown, because the {name} trial is INVALID: {sentences(record.invalidating)}"
    parts: list[str] = []
    for name in _OVERHEAD:
        metric, before, after = CATALOGUE[name], plain.metrics[name].value, profiled.metrics[name].value
        if before and after is not None:
            texts = value_text(metric.unit, after), value_text(metric.unit, before)
            change = ratio_change_text(after / before)
            parts.append(f"{metric.title} {texts[0]} with it, {texts[1]} without ({change})")
    return f"overhead of the record, one trial each: {'; '.join(parts) or 'unknown'}"


def deviation_sentence(deviation: Deviation) -> str:
    """How far a profiled trial is from the measured ones, and what to do, without a full stop.

    ``The profiled trial was 2.7 times slower than the measured one (mean E2E 1.35 s instead of 503 ms), so …``.
    """
    title, unit = _FIGURES[deviation.figure]
    factor = max(deviation.ratio, 1 / deviation.ratio)
    amount = f"{factor:.1f} times" if factor >= 2 else percent_text(abs(deviation.ratio - 1))
    direction = "slower" if deviation.is_slower else "faster"
    others, them = ("one", "it") if deviation.trials == 1 else ("ones", "them")
    values = f"{title} {value_text(unit, deviation.profiled)} instead of {value_text(unit, deviation.measured)}"
    return (
        f"The profiled trial was {amount} {direction} than the measured {others} ({values}), so this may not explain "
        f"{them}; repeat the profile on a quieter machine"
    )


def difference_sentence(difference: Difference) -> str:
    """States where a change comes from: ``c=4: mean E2E 934 ms → 812 ms (−122 ms, −13 %): interference −110 ms``."""
    before_s, after_s = difference.total_s(Latency.E2E)
    change_s = after_s - before_s
    whole = f"{value_text(Unit.SECONDS, before_s)} → {value_text(Unit.SECONDS, after_s)}"
    share = _signed_percent(change_s / before_s)
    largest = [
        f"{PARTS[part].title} {signed_text(seconds)}"
        for part, seconds in list(difference.changes_s(Latency.E2E).items())[:_CASES]
        if seconds and abs(seconds) >= NOTABLE_SHARE * abs(change_s)
    ]
    sentence = f"{difference.load}: mean E2E {whole} ({signed_text(change_s)}, {share})"
    return f"{sentence}: {listed(largest)}" if largest else sentence


def signed_text(seconds: float) -> str:
    """A change: ``+12.0 ms``, ``−340 µs``."""
    return f"{'−' if seconds < 0 else '+'}{value_text(Unit.SECONDS, abs(seconds))}"


def _signed_percent(share: float) -> str:
    return f"{100 * share:+.0f} %".replace("-", "−")


def part_rows(attribution: Attribution) -> list[tuple[Part, str, list[str]]]:
    """One row per part that takes any time or is unknown: title, and its mean and share in E2E and TTFT.

    The title of an unknown part says in a few words why it is unknown; :func:`cost_line` has the figures.
    """
    means, absent = attribution.means, attribution.absent
    parts = [
        part
        for part in attribution.parts
        if any(part in absent or round(by_part[part], 7) for by_part in means.values())
    ]
    pairs = [
        [text for latency in (Latency.E2E, Latency.TTFT) for text in _pair(attribution, latency, part)]
        for part in parts
    ]
    unknown = dict.fromkeys(absent, " (unknown: too few steady steps)")
    return [
        (part, part_title(attribution, part) + unknown.get(part, ""), texts)
        for part, texts in zip(parts, pairs, strict=True)
    ]


def _pair(attribution: Attribution, latency: Latency, part: Part) -> tuple[str, str]:
    seconds = attribution.means[latency].get(part)
    if not _takes_time(seconds):
        return ABSENT, ABSENT
    return part_text(seconds), percent_text(seconds / attribution.mean_s(latency), 1).replace("-", "−")


def part_text(seconds: float | None) -> str:
    """The time of a part; absent if it is unknown or takes none."""
    return value_text(Unit.SECONDS, seconds) if _takes_time(seconds) else ABSENT


def _takes_time(seconds: float | None) -> TypeGuard[float]:
    return seconds is not None and round(seconds, 9) != 0
