"""Figures of the classes of the traffic as texts: their SLOs, goodput and fairness."""

from collections.abc import Sequence

from bakeoff.results.metric import Unit
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.run.groups import Fairness, Interference, RequestGroup
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import ABSENT, listed, percent_text, ratio_text, value_text

METRICS = ("ttft_p50_s", "tpot_p50_s", "e2e_p50_s", "attainment")
"""Metrics of a class's requests."""
FAIRNESS_CAPTION = "fairness: Jain's index of the classes' attainments; 1 if all are equal, 1/n if one gets everything"
_BOUNDS = {"ttft_s": "TTFT", "first_visible_s": "first visible", "tpot_s": "TPOT", "e2e_s": "E2E"}


def goodput_text(group: RequestGroup) -> str:
    """Requests per second that met the class's SLO."""
    return value_text(Unit.PER_SECOND, group.goodput_per_s) if group.goodput_per_s is not None else ABSENT


def bounds_of(run: Run) -> list[str]:
    """The SLO of each class: ``class chat: TTFT ≤ 500 ms``."""
    lines: list[str] = []
    for name, slo in run.manifest.classes.items():
        bounds = [
            f"{title} ≤ {value_text(Unit.SECONDS, bound)}"
            for field, title in _BOUNDS.items()
            if (bound := getattr(slo, field)) is not None
        ]
        lines.append(f"class {name}: {', '.join(bounds) or 'no SLO'}")
    return lines


def fairness_lines(found: Sequence[Fairness]) -> list[str]:
    """``c=8, vllm: fairness 0.941; worst class batch, 52 % met its SLO``."""
    return [f"{each.level}, {each.engine}: {_text(each)}" for each in found]


def interference_lines(found: Sequence[Interference]) -> list[str]:
    """``poisson 20/s, vllm: batch among the others: TTFT p50 1.32× [1.20, 1.45], E2E p50 1.1× of alone``."""
    return [
        f"{each.level}, {each.engine}: {each.name} among the others: "
        + ", ".join(f"{CATALOGUE[name].title} {ratio_text(ratio)}" for name, ratio in each.ratios.items())
        + " of alone"
        for each in found
        if each.ratios
    ]


def _text(fairness: Fairness) -> str:
    if fairness.missing:
        return f"fairness unknown: no request of {listed(fairness.missing)} was planned inside the windows"
    if fairness.index is None:
        return "fairness unknown: no request met its SLO"
    worst = f"worst class {fairness.worst}, {percent_text(fairness.attainment)} met its SLO"
    return f"fairness {fairness.index:.3f}; {worst}"
