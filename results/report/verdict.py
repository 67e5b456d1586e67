"""The one sentence that a run supports, made from its data.

The metric is fixed beforehand, by the rule of :mod:`results.primary`. The best engine is compared with the next best;
where the interval holds 1, or the difference is within the client's own error, the sentence says so.
"""

import msgspec

from results.client_error import largest_error_s
from results.metrics import CATALOGUE, Better, Metric
from results.primary import primary_load, primary_metric
from results.records import RunStatus, Verdict
from results.report.format import ratio_text
from results.report.levels import Level, levels_of
from results.report.search_lines import search_sentence
from results.run import Run, Trial, by_repeat
from results.statistics import Comparison, Judgement, compare_runs

_ALPHA = 0.05
_STATE = {
    RunStatus.RUNNING: "is still going on",
    RunStatus.INTERRUPTED: "was interrupted",
    RunStatus.FAILED: "failed",
    RunStatus.INCOMPLETE: "is incomplete",
}


class VerdictLine(msgspec.Struct, frozen=True):
    """The sentence, and whether it names a winner."""

    sentence: str
    decided: bool


def verdict(run: Run) -> VerdictLine:
    """The sentence for the top of a report."""
    if run.status is not RunStatus.COMPLETE:
        done = f"{len(run.finished)} of {len(run.manifest.trials)} trials ended"
        return VerdictLine(f"No verdict: the run {_STATE[run.status]}, {done}.", decided=False)
    if run.search is not None:
        return VerdictLine(search_sentence(run.search), decided=False)
    level = primary_level(levels_of(run))
    if level is None:
        return VerdictLine("No verdict: nothing was planned.", decided=False)
    metric = CATALOGUE[primary_metric(level.load)]
    ranked = sorted(
        (cell for cell in level.cells if metric.name in cell.intervals),
        key=lambda cell: cell.intervals[metric.name].centre,
        reverse=metric.better is Better.HIGHER,
    )
    if len(ranked) < 2:
        return VerdictLine(f"No verdict: fewer than two engines have a valid trial at {level.title}.", decided=False)
    return _sentence(run, level, metric, ranked[0].engine, ranked[1].engine)


def compared(run: Run, level: Level, metric: Metric, a: str, b: str) -> Comparison:
    """B over A at one level, valid trials only."""

    def valid(engine: str) -> list[Trial]:
        key = (engine, level.workload, level.load, Verdict.VALID)
        return [t for t in run.finished if (t.record.engine, t.record.workload, t.record.load, t.record.verdict) == key]

    values_a, values_b = (by_repeat(valid(side), level.load.label, metric.name) for side in (a, b))
    error = largest_error_s(metric.name, (*valid(a), *valid(b)))
    return compare_runs(metric, level.title, values_a, values_b, interleaved=True, alpha=_ALPHA, error=error)


def primary_level(levels: list[Level]) -> Level | None:
    """The level that the verdict speaks of."""
    chief = primary_load(level.load for level in levels)
    return next((level for level in levels if level.load == chief), None)


def _sentence(run: Run, level: Level, metric: Metric, best: str, next_best: str) -> VerdictLine:
    comparison = compared(run, level, metric, next_best, best)
    ratio = comparison.ratio
    what = "output tokens/s" if metric.name == "output_tokens_per_s" else metric.title
    if ratio is None or ratio.low is None or ratio.high is None:
        return VerdictLine(f"No verdict at {level.title}: {comparison.why}.", decided=False)
    evidence = f"{ratio_text(ratio)} (95 % interval, {ratio.n} runs a side)"
    if ratio.low <= 1 <= ratio.high or comparison.judgement is Judgement.UNCLEAR:
        but = "" if ratio.low <= 1 <= ratio.high else f", but {comparison.why}"
        sentence = f"At {level.title} the data cannot tell {best} from {next_best}: {what} ratio {evidence}{but}."
        return VerdictLine(sentence, decided=False)
    if metric.better is Better.HIGHER:
        return VerdictLine(f"At {level.title}, {best} delivered {evidence} the {what} of {next_best}.", decided=True)
    return VerdictLine(f"At {level.title}, {best} had {evidence} the {what} of {next_best}.", decided=True)
