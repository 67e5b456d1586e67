"""What a capacity search is asked, from what a user says and what the experiment holds."""

import math
from collections.abc import Sequence
from pathlib import Path

from harness.conduct.policies.capacity_search import requests_needed
from harness.errors import BadExperiment
from harness.experiment.config import Experiment
from results.errors import NotComparable
from results.metrics import CATALOGUE, Unit
from results.metrics.catalogue import QUANTILES
from results.metrics.percentiles import required_count
from results.objectives import Objective, objectives
from results.records import Load, Slo
from results.report.search_lines import level_text
from results.search import Over, SearchConfig
from results.search_fold import search_record
from results.store import RunFolder

_SPAN = 32.0
"""How far a search may go from a single load, up or down."""
_RISING = {Unit.PER_SECOND, Unit.TOKENS_PER_SECOND, Unit.JOULES}
"""Units of metrics that get better with the load, to a point: no highest load meets a bound on them."""


def search_config(
    experiment: Experiment,
    slo: str,
    *,
    over: Over | None = None,
    low: float | None = None,
    high: float | None = None,
    around: str | None = None,
    resolution: float = 0.05,
    alpha: float = 0.05,
    trials: int = 20,
    minutes: float | None = None,
) -> SearchConfig:
    """The configuration of a search.

    Args:
        experiment: whose loads bound the search where the user does not: several by the least and the greatest, one by
            a thirty-second and thirty-two times it.
        slo: objectives in one line of text.
        over: which load; the default is that of the experiment's first one.
        low: lowest level.
        high: highest level.
        around: a level near which the answers are expected, or the folder of an earlier search.
        resolution: as in :class:`~results.search.SearchConfig`, as the other three.
        alpha: see there.
        trials: see there.
        minutes: see there.

    Raises:
        BadExperiment: they contradict each other or the experiment.
        NotComparable: an objective is none.
        RunNotFound, RunUnreadable: ``around`` is no run.
    """
    _check_objectives(objectives(slo), experiment)
    _check_numbers(resolution=resolution, alpha=alpha, trials=trials, minutes=minutes)
    over = over or _first_kind(experiment)
    labels = [engine.shown for engine in experiment.engines]
    loads = [load for load in experiment.loads if _level_of(load, over) is not None]
    levels = [level for load in loads if (level := _level_of(load, over)) is not None]
    guesses = _guesses(around, over, labels)
    least, most = _ends(levels, list(guesses.values()), low, high, over)
    start = None if guesses or len(levels) != 1 or not least <= levels[0] <= most else float(levels[0])
    return SearchConfig(
        engines=labels, over=over, slo=slo, low=least, high=most, template=loads[0] if loads else _template(over),
        start=start, guesses=guesses, resolution=resolution, alpha=alpha, trials=trials, minutes=minutes,
    )  # fmt: skip


def forewarnings(experiment: Experiment, config: SearchConfig) -> list[str]:
    """What can be known beforehand of trials that cannot be judged, a line each."""
    needed, trial = requests_needed(config.objectives), experiment.trial
    levels = config.levels
    least = max(trial.min_requests, levels[0] * trial.duration_s)
    instead = next(label for label, q in reversed(QUANTILES) if required_count(q) < max(needed, required_count(0.9)))
    remedy = f"or bound {instead}, which needs {required_count(dict(QUANTILES)[instead])}"
    lines: list[str] = []
    if trial.max_requests is not None and trial.max_requests < needed:
        lines.append(
            f"trial.max_requests is {trial.max_requests}, an objective needs {needed} requests; raise it, {remedy}"
        )
    elif config.over is Over.CONCURRENCY and trial.min_requests < needed > required_count(0.5):
        few = f"a trial may have fewer than the {needed} requests that an objective needs"
        lines.append(f"{few}; raise trial.min_requests to that, {remedy}")
    elif config.over is Over.RATE and least < needed > required_count(0.5):
        rate = _rate_text(needed / trial.duration_s)
        few = f"below {rate} a trial has fewer than the {needed} sessions that an objective needs"
        lines.append(
            f"{few}, if each is one request: such rates are left out; raise trial.min_requests to that, {remedy}"
        )
    max_requests = trial.max_requests or math.inf
    if config.over is Over.RATE and max_requests < levels[-1] * trial.duration_s:
        rate = _rate_text(max_requests / trial.duration_s)
        lines.append(
            f"above {rate} windows are shorter than trial.duration_s: trial.max_requests is {trial.max_requests}"
        )
    return lines


def _rate_text(rate: float) -> str:
    return level_text(Over.RATE, float(f"{rate:.3g}"))


def _check_objectives(slo: Sequence[Objective], experiment: Experiment) -> None:
    for objective in slo:
        if CATALOGUE[objective.metric].unit in _RISING:
            text = f"'{objective.text}' is met at high loads, not at low ones"
            raise BadExperiment(f"{text}; bound a latency or attainment")
        if objective.metric == "attainment" and experiment.slo == Slo():
            raise BadExperiment("attainment needs bounds for each request; set [slo] in the experiment")


def _check_numbers(*, resolution: float, alpha: float, trials: int, minutes: float | None) -> None:
    checks = (
        (0.005 <= resolution <= 0.5, f"resolution must lie between 0.005 and 0.5, not {resolution}"),
        (0 < alpha < 1, f"alpha must lie between 0 and 1, not {alpha}"),
        (trials >= 1, f"trials must be at least 1, not {trials}"),
        (minutes is None or minutes > 0, f"minutes must be above 0, not {minutes}"),
    )
    for good, complaint in checks:
        if not good:
            raise BadExperiment(complaint)


def _level_of(load: Load, over: Over) -> float | None:
    return load.rate_per_s if over is Over.RATE else load.concurrency


def _first_kind(experiment: Experiment) -> Over:
    kinds = [kind for load in experiment.loads for kind in Over if _level_of(load, kind) is not None]
    return kinds[0] if kinds else Over.RATE


def _template(over: Over) -> Load:
    return Load(arrival="poisson") if over is Over.RATE else Load()


def _guesses(around: str | None, over: Over, labels: Sequence[str]) -> dict[str, float]:
    """A number for all engines, or the answers of an earlier search for those that it had."""
    if around is None:
        return {}
    try:
        level = float(around)
    except ValueError:
        earlier = search_record(RunFolder.open(Path(around)).read_log())
        if earlier is None or earlier.config.over is not over:
            raise NotComparable(f"{around} holds no search over the {over.value}; give a number") from None
        return {search.engine: search.level for search in earlier.engines if search.level and search.engine in labels}
    return dict.fromkeys(labels, level)


def _ends(
    given: Sequence[float], guesses: Sequence[float], low: float | None, high: float | None, over: Over
) -> tuple[float, float]:
    """The ends of the range."""
    known = [*given, *guesses]
    if not known and (low is None or high is None):
        key = "rate_per_s" if over is Over.RATE else "concurrency"
        raise BadExperiment(f"the experiment has no load with {key}; give --low and --high, or --around")
    span = _SPAN if len(given) < 2 else 1.0
    if low is None:
        low = min(given if span == 1 else known) / span
    if high is None:
        high = max(given if span == 1 else known) * span
    if over is Over.CONCURRENCY:
        low, high = max(1.0, float(round(low))), float(round(high))
    if not 0 < low < high:
        raise BadExperiment(f"the range from {low:g} to {high:g} is empty; give --low and --high")
    if outside := [guess for guess in guesses if not low <= guess <= high]:
        raise BadExperiment(f"{outside[0]:g} does not lie between {low:g} and {high:g}; change --low or --high")
    return low, high
