"""Why a comparison has its judgement, and how the work of two sides differs, as clauses."""

from bakeoff.results.compare.comparison import EngineComparison
from bakeoff.results.metrics import COMPARED, Metric, Unit
from bakeoff.results.run.work import WorkAspect, WorkComparison, WorkDifference
from bakeoff.results.statistics.comparison import Comparison, Evidence, Judgement, Reason, scale_of
from bakeoff.results.statistics.two_sample import Method, Scale
from bakeoff.results.text.format import factor_text, percent_text

_TEMPLATES = {
    Reason.CLIENT_ERROR: "the difference of {difference} is within the client's own error of ± {error}",
    Reason.OUTLIER: (
        "the t test finds a difference, the permutation test does not (p {permutation_p:.3f}); a run may be an outlier"
    ),
    Reason.MULTIPLICITY: "not significant after correction over {metrics} metrics (Holm: p {p_value:.3f})",
    Reason.TOO_FEW_TRIALS: "there are {trials_a} and {trials_b} trials, and each side needs {needed_trials}",
    Reason.TOO_FEW_RUNS: "there are {runs_a} and {runs_b} runs, and each side needs {needed_runs}",
    Reason.TOO_FEW_PAIRS: "needs {needed_pairs} repeats in which both sides were measured in one session",
    Reason.UNSEEN_NOISE: "it would be {seen} by the trials alone, but not under the noise that they do not show",
    Reason.ZEROS: "0 in {count_a} of {runs_a} runs of A and in {count_b} of {runs_b} of B",
    Reason.AMONG_FAILURES: "among failures in {count_a} of {runs_a} runs of A and in {count_b} of {runs_b} of B",
    Reason.NO_FAILURES: "no request failed",
    Reason.ABSENT: "absent in {absent_trials} of {trials} trials of {side}: {detail}",
    Reason.UNEQUAL_WORK: "the sides did different work, so request times cannot be compared",
    Reason.OTHER_REQUESTS: "the sides served other requests, and too few are known to be common to both",
}
_ASPECTS = {
    WorkAspect.ANSWERED: "requests answered",
    WorkAspect.DELIVERED: "output tokens delivered of those requested",
    WorkAspect.DELIVERED_QUANTILE: "output delivered, {detail} of answers",
    WorkAspect.TOKENS: "output tokens per request",
    WorkAspect.TOKENS_QUANTILE: "output tokens, {detail} of answers",
    WorkAspect.FINISH: "answers that ended by '{detail}'",
}

_OF_RUNS = {Method.BETWEEN_RUNS, Method.NOISE_FLOOR}
_LARGE_FACTOR = 1000
"""A larger change says nothing more than that the noise is too large."""


def reason_text(comparison: Comparison) -> str:
    """Why a comparison has its judgement; it may quote engines: :func:`~bakeoff.results.text.format.plain` it."""
    metric, evidence = COMPARED[comparison.metric], comparison.evidence
    if comparison.reason is Reason.INTERVAL:
        assert evidence is not None, "an interval is evidence"
        return _interval_text(comparison, evidence, scale_of(metric))
    values: dict[str, str | int | float] = dict(comparison.parameters)
    if comparison.reason is Reason.CLIENT_ERROR:
        values |= {name: _quantity(metric, float(value)) for name, value in values.items()}
    if evidence is not None:
        values["permutation_p"] = evidence.permutation_p
    return _TEMPLATES[comparison.reason].format_map(values) + _ranks_text(comparison)


def why_text(compared: EngineComparison, comparison: Comparison) -> str:
    """Like :func:`reason_text`, and how work or requests differ where that is the reason."""
    texts = {Reason.UNEQUAL_WORK: work_text, Reason.OTHER_REQUESTS: mix_text}
    if (text := texts.get(comparison.reason)) is None:
        return reason_text(comparison)
    work = compared.work_at(comparison.level, comparison.traffic_class)
    return f"{reason_text(comparison)}: {text(work)}"


def heading(at: Comparison | WorkComparison) -> str:
    """``c=8``, or ``c=8, class chat``."""
    return at_class(at.level, at.traffic_class)


def at_class(level: str, traffic_class: str | None) -> str:
    """``c=8``, or ``c=8, class chat``."""
    return level if traffic_class is None else f"{level}, class {traffic_class}"


def work_text(work: WorkComparison) -> str:
    """``requests answered: 80.0 % instead of 100.0 %; …``; empty if the work is equal."""
    return "; ".join(difference_text(difference) for difference in work.differences)


def mix_text(work: WorkComparison) -> str:
    """``they ask for 40 output tokens each instead of 30``; empty if they are alike."""
    if work.mix is None:
        return ""
    return f"they ask for {work.mix[1]:.4g} output tokens each instead of {work.mix[0]:.4g}"


def difference_text(difference: WorkDifference) -> str:
    """``requests answered: 80.0 % instead of 100.0 %``."""
    counts_tokens = difference.aspect in {WorkAspect.TOKENS, WorkAspect.TOKENS_QUANTILE}
    a, b = (f"{value:.4g}" if counts_tokens else percent_text(value, 1) for value in (difference.a, difference.b))
    return f"{_ASPECTS[difference.aspect].format(detail=difference.detail)}: {b} instead of {a}"


def band_text(band: float, scale: Scale) -> str:
    """``3 %`` of a ratio, ``0.5 pp`` of a difference of shares."""
    return f"{100 * band:.3g} %" if scale is Scale.RATIO else f"{100 * band:.3g} pp"


def change_text(change: float, scale: Scale, sign: str = "") -> str:
    """``2.9 %`` of a ratio, from twofold on ``×2.9``; ``0.29 pp`` of a difference of shares, at most 100 pp."""
    if scale is Scale.DIFFERENCE:
        return f"{sign}{100 * change:.2g} pp" if change <= 1 else "> 100 pp"
    if change < 1:
        return f"{sign}{percent_text(change, 1)}"
    factor = 1 + change
    if factor > _LARGE_FACTOR:
        return f"> ×{_LARGE_FACTOR:,}"
    return factor_text(factor)


def _ranks_text(comparison: Comparison) -> str:
    if comparison.reason not in {Reason.ZEROS, Reason.AMONG_FAILURES}:
        return ""
    if comparison.judgement is Judgement.UNCLEAR:
        return "; this may be chance"
    p_value = comparison.parameters.get("p_value")
    return "" if p_value is None else f"; the runs differ (exact test: p {p_value:.2g})"


def _interval_text(comparison: Comparison, evidence: Evidence, scale: Scale) -> str:
    confidence, no_change = f"{100 * (1 - evidence.alpha):.3g} %", 1 if scale is Scale.RATIO else 0
    judgement, effect = comparison.judgement, comparison.ratio or comparison.difference
    if judgement is Judgement.SAME:
        band = band_text(evidence.band, scale)
        return f"the whole {confidence} interval of {_runs_text(evidence)} is within ±{band}"
    if judgement is Judgement.UNCLEAR:
        if effect and effect.low is not None and effect.high is not None and not effect.low <= no_change <= effect.high:
            return f"so few runs may rank so by chance (exact test: p {evidence.p_value:.2g}); use more repeats"
        return f"the {confidence} interval contains {no_change}; {_power_text(evidence, scale)}"
    return f"the {confidence} interval of {_runs_text(evidence)} excludes {no_change}"


def _runs_text(evidence: Evidence) -> str:
    a, b = evidence.runs
    if evidence.method is Method.PAIRED:
        return f"{a} pairs"
    if evidence.method is Method.PIECES:
        return f"{a} pieces"
    if evidence.method is Method.WELCH:
        return f"{a} and {b} trials"
    floor = ", under the machine's noise floor," if evidence.method is Method.NOISE_FLOOR else ""
    return f"{a} and {b} runs made at different times{floor}"


def _power_text(evidence: Evidence, scale: Scale) -> str:
    """The smallest change that these runs can detect, and how many runs would detect the band."""
    of_pieces, of_runs = evidence.method is Method.PIECES, evidence.method in _OF_RUNS
    observed = "pieces" if of_pieces else "runs" if of_runs else "trials"
    detectable = f"these {observed} can detect a change of {change_text(evidence.smallest_effect, scale)}"
    if evidence.sought == 0:
        return detectable
    if of_pieces:
        return f"{detectable}, and those of a longer text a smaller one"
    sought = band_text(evidence.sought, scale)
    if evidence.runs_needed is None:
        return f"{detectable}; the noise is too high for {sought}"
    if of_runs:
        runs = f"{evidence.runs_needed} runs of each side, made at different times,"
    elif evidence.runs_needed > max(evidence.runs):
        runs = f"{evidence.runs_needed - max(evidence.runs)} more trials of each side"
    else:
        return detectable
    return f"{detectable}; about {runs} would detect {sought}"


def _quantity(metric: Metric, value: float) -> str:
    if metric.unit is not Unit.SECONDS:
        return f"{value:.3g} {metric.unit.value}".rstrip()
    return f"{value * 1e3:.2g} ms" if value < 0.1 else f"{value * 1e3:,.0f} ms"
