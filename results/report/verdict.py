"""The verdict of a run in one sentence.

The metric is fixed in advance by :mod:`bakeoff.results.compare.primary`. The best engine is compared with the second
best; if the interval contains 1, or the difference is within the client's own error, the sentence says so. As in a
gate, an engine cannot win if it died, failed requests or fell behind where the other did not, and request times are
compared only if both did the same work.

A run that was made to profile engines, rather than to compare them, has their bottlenecks instead.
"""

import shlex

import msgspec

from bakeoff.results.compare.comparison import EngineComparison, compare_sides
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.noise import caveat_text
from bakeoff.results.compare.primary import primary_load, primary_metric
from bakeoff.results.compare.sides import side_of
from bakeoff.results.compare.text import band_text, why_text
from bakeoff.results.errors import NoEvidence
from bakeoff.results.findings import is_of_surroundings
from bakeoff.results.metrics import CATALOGUE, Better, Metric
from bakeoff.results.records import RunStatus, Verdict
from bakeoff.results.report.attribution import profile_sentence
from bakeoff.results.report.search_lines import search_sentence
from bakeoff.results.report.tallies import tally_text
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.deviation import deviation_of
from bakeoff.results.run.levels import Level, engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.statistics import COMPARE_ALPHA, Judgement
from bakeoff.results.statistics.comparison import scale_of
from bakeoff.results.text.format import STATE_TEXTS, duration_text, interval_text, ratio_text, share_text

_OF_SESSIONS = ("sessions_per_hour", "session_s", "session_server_s", "session_tool_s", "interactivity_p50")


class VerdictLine(msgspec.Struct, frozen=True):
    """The verdict of a run.

    Attributes:
        sentence: the verdict in words.
        decided: whether it names a winner, or a bottleneck that nothing casts doubt on.
        is_figure: whether it is the headline figure of the only engine.
        remedy: how to get a verdict where trials are missing; empty otherwise.
    """

    sentence: str
    decided: bool
    is_figure: bool = False
    remedy: str = ""


def verdict(run: Run) -> VerdictLine:
    """Word the verdict for the top of a report, and how to get one that is missing."""
    line = _verdict(run)
    invalidating = (trial.record.invalidating for trial in run.counted)
    lacks = run.unfinished or any(findings and is_of_surroundings(findings) for findings in invalidating)
    if line.decided or line.is_figure or not lacks or run.search is not None or run.status is RunStatus.RUNNING:
        return line
    path, parent = shlex.quote(str(run.path)), shlex.quote(str(run.path.parent))
    again = f"bakeoff run {path} --resume {path} --out {parent}"
    return msgspec.structs.replace(line, remedy=f"{again} measures what is missing.")


def _verdict(run: Run) -> VerdictLine:
    engines_failed = run.status is RunStatus.FAILED and bool(run.manifest.engine_failures)
    if run.status is not RunStatus.COMPLETE and not engines_failed:
        progress = f"{len(run.finished)} of {len(run.manifest.trials)} trials ended"
        return VerdictLine(f"No verdict: the run {STATE_TEXTS[run.status]}, {progress}.", decided=False)
    if run.search is not None:
        return VerdictLine(search_sentence(run.search), decided=False)
    if run.profiled and not _compares(run):
        return _bottlenecks(run)
    level = primary_level(levels_of(run))
    if level is None:
        return VerdictLine("No verdict: nothing was planned.", decided=False)
    metric = CATALOGUE[primary_metric(level.load, {name for cell in level.cells for name in cell.intervals})]
    ranked = sorted(
        (cell for cell in level.cells if metric.name in cell.intervals),
        key=lambda cell: cell.intervals[metric.name].centre,
        reverse=metric.better is Better.HIGHER,
    )
    engines = [cell.engine for cell in ranked]
    others = [cell.engine for cell in level.cells if cell.engine not in engines]
    if len(engines) < 2:
        return _without_a_pair(run, level, metric, ranked, others)
    best, next_best = engines[:2]
    compared = _compared(run, metric, next_best, best)
    assert compared is not None, "both have valid trials"
    if compared.primary.judgement is Judgement.WORSE:  # pairs of trials say so, though a trial without a pair does not
        best, next_best = next_best, best
        compared = _compared(run, metric, next_best, best)
        assert compared is not None, "both have valid trials"
    return _failures(compared) or _sentence(compared, level, metric, best, next_best)


def _compares(run: Run) -> bool:
    """Whether several engines were measured several times each, so that a comparison can decide."""
    return len(engines_of(run)) > 1 and max(plan.repeat for plan in run.manifest.trials) > 1


def _bottlenecks(run: Run) -> VerdictLine:
    """The bottleneck of each profiled engine at the primary level; decided if nothing casts doubt on any."""
    load = primary_load(trial.record.load for trial in run.profiled)
    pairs = [pair for pair in zip(run.profiled, run.attributions, strict=True) if pair[0].record.load == load]
    texts = [profile_sentence(run, trial, attribution) for trial, attribution in pairs]
    if len(run.profiled) > 1:
        names = [f"{trial.record.load.label}, {trial.record.engine}" for trial, _ in pairs]
        texts = [f"{name}: {text}" for name, text in zip(names, texts, strict=True)]
    is_certain = all(
        trial.record.verdict is Verdict.VALID
        and attribution.unknown is None
        and deviation_of(trial, run.finished) is None
        for trial, attribution in pairs
    )
    return VerdictLine(f"{'. '.join(texts)}.", decided=is_certain)


def _without_a_pair(run: Run, level: Level, metric: Metric, measured: list[Cell], others: list[str]) -> VerdictLine:
    """The sentence where at most one engine has a valid trial: its figure if it is alone, or how others failed."""
    if not measured:
        return VerdictLine(f"No verdict: no engine has a valid trial at {level.title}.", decided=False)
    (cell,) = measured
    if not others:
        interval = cell.intervals[metric.name]
        stayed_up = all(trial.record.start_s is None for trial in run.valid_trials_of(cell))
        caveat = "; of one start, and another may differ by more" if stayed_up and interval.low is not None else ""
        known = _of_sessions(cell) or f"{metric.title} {interval_text(metric, interval)}"
        figure = f"{known} at {level.title}{caveat}"
        return VerdictLine(f"{cell.engine}: {figure}.", decided=False, is_figure=True)
    lines = [line for other in others if (line := _failures(_compared(run, metric, cell.engine, other)))]
    alone = VerdictLine(f"No verdict: only {cell.engine} has a valid trial at {level.title}.", decided=False)
    return max(lines, key=lambda line: line.decided, default=alone)


def _of_sessions(cell: Cell) -> str:
    """What agents gain from a server: sessions an hour, the speed that each sees, and its share of their time.

    Empty if the sessions have no pauses and tools of their own.
    """
    per_hour, whole, server, tools, speed = (cell.intervals.get(name) for name in _OF_SESSIONS)
    if per_hour is None or whole is None or server is None or tools is None or not tools.centre:
        return ""
    seen = "" if speed is None else f", {interval_text(CATALOGUE[_OF_SESSIONS[-1]], speed)} of each (p50)"
    spent, total = (duration_text(each.centre) for each in (server, whole))
    share = f"the server takes {share_text(server.centre, whole.centre)} of a session ({spent} of {total})"
    return f"{interval_text(CATALOGUE[_OF_SESSIONS[0]], per_hour).replace(' /h', ' sessions/h', 1)}{seen}, {share}"


def _compared(run: Run, metric: Metric, a: str, b: str) -> EngineComparison | None:
    """Compare B with A at the run's primary level; None if either never ran."""
    try:
        sides = side_of(run, a), side_of(run, b)
    except NoEvidence:
        return None
    return compare_sides(*sides, ComparisonConfig(metrics=(), primary=metric.name, alpha=COMPARE_ALPHA), check=False)


def _failures(compared: EngineComparison | None) -> VerdictLine | None:
    """The sentence if B failed where A did not, or may have; None otherwise."""
    if compared is None:
        return None
    texts = {
        judgement: [tally_text(t, compared.a, compared.b) for t in compared.tallies if t.judgement is judgement]
        for judgement in (Judgement.WORSE, Judgement.UNCLEAR)
    }
    if worse := texts[Judgement.WORSE]:
        return VerdictLine(f"{compared.a} served the load, {compared.b} failed: {'; '.join(worse)}.", decided=True)
    if doubts := texts[Judgement.UNCLEAR]:
        return VerdictLine(f"No verdict: {'; '.join(doubts)}.", decided=False)
    return None


def primary_level(levels: list[Level]) -> Level | None:
    """The level that the verdict is about."""
    load = primary_load(level.load for level in levels)
    return next((level for level in levels if level.load == load), None)


def _sentence(compared: EngineComparison, level: Level, metric: Metric, best: str, next_best: str) -> VerdictLine:
    comparison = compared.primary
    ratio = comparison.ratio
    title = "output tokens/s" if metric.name == "output_tokens_per_s" else metric.title
    if ratio is None or ratio.low is None or ratio.high is None:
        return VerdictLine(f"No verdict at {level.title}: {why_text(compared, comparison)}.", decided=False)
    factor, evidence = ratio_text(ratio), f"(95 % interval, {ratio.n} trials a side)"
    caveat = f"; {text}" if (text := caveat_text(comparison)) else ""
    if comparison.judgement is Judgement.SAME:
        band = band_text(compared.config.band_of(metric), scale_of(metric))
        sentence = (
            f"At {level.title}, {best} and {next_best} have the same {title} within {band}: ratio {factor} "
            f"{evidence}{caveat}."
        )
        return VerdictLine(sentence, decided=False)
    if comparison.judgement is not Judgement.BETTER:
        but = "" if ratio.low <= 1 <= ratio.high else f", but {why_text(compared, comparison)}"
        sentence = (
            f"At {level.title} the data cannot tell {best} from {next_best}: {title} ratio {factor} "
            f"{evidence}{but}{caveat}."
        )
        return VerdictLine(sentence, decided=False)
    verb = "delivered" if metric.better is Better.HIGHER else "had"
    return VerdictLine(
        f"At {level.title}, {best} {verb} {factor} the {title} of {next_best} {evidence}{caveat}.", decided=True
    )
