"""Builds the configuration of a capacity search from the user's options and the experiment."""

import math
import re
from collections.abc import Mapping, Sequence

import msgspec

from bakeoff.harness.conduct.policies.capacity_search import pooled_count, requests_needed
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.config import Experiment
from bakeoff.results.errors import NotComparable
from bakeoff.results.log.search import Over, SearchConfig
from bakeoff.results.log.store import RunFolder
from bakeoff.results.metric import Role
from bakeoff.results.metrics import CATALOGUE, Unit
from bakeoff.results.metrics.declaration import QUANTILES
from bakeoff.results.metrics.objectives import Objective, missing_bounds, objectives
from bakeoff.results.metrics.percentiles import required_count
from bakeoff.results.records import Load
from bakeoff.results.report.search_lines import level_text
from bakeoff.results.run.run import located
from bakeoff.results.run.search_fold import search_record

_SPAN = 32.0
"""Default range around a single load: from 1/32 of it to 32 times it."""
_BETTER_UNDER_LOAD = {Unit.PER_SECOND, Unit.PER_HOUR, Unit.TOKENS_PER_SECOND, Unit.JOULES}
"""Units of metrics that improve with the load up to a point, so that bounds on them have no highest load; not of rates
that one request or session gets."""
_TIER = re.compile(r"\s*([\w.-]+)\s*=(.+)")
"""``fast=ttft_p90<1s``."""


def tiers_of(texts: Sequence[str]) -> dict[str, str]:
    """Objectives by the name of their tier.

    Args:
        texts: such as ``fast=interactivity_p90>60,ttft_p90<1s``.

    Raises:
        BadExperiment: a text has no name, or two have the same.
    """
    tiers: dict[str, str] = {}
    for text in texts:
        if (form := _TIER.fullmatch(text)) is None:
            raise BadExperiment(f"'{text}' is no tier; write --tier 'NAME=ttft_p90<1s'")
        if form[1] in tiers:
            raise BadExperiment(f"two tiers have the name {form[1]}; rename one --tier")
        tiers[form[1]] = form[2].strip()
    return tiers


def search_config(
    experiment: Experiment,
    slo: str | Mapping[str, str],
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
        experiment: its loads give the default range: from the lowest to the highest, or 1/32 to 32 times a single one.
        slo: objectives, such as ``ttft_p99<500ms,itl_p99<30ms``; or several sets of them by the name of their tier.
        over: rate or concurrency; the default is the kind of the experiment's first load.
        low: lowest level.
        high: highest level.
        around: expected answer: a level, or the folder of an earlier search.
        resolution: as in :class:`~bakeoff.results.log.search.SearchConfig`.
        alpha: as in :class:`~bakeoff.results.log.search.SearchConfig`.
        trials: as in :class:`~bakeoff.results.log.search.SearchConfig`.
        minutes: as in :class:`~bakeoff.results.log.search.SearchConfig`.

    Raises:
        BadExperiment: the options contradict each other or the experiment.
        NotComparable: ``slo`` is malformed, or ``around`` is a run without a matching search.
        RunNotFound, RunUnreadable: ``around`` is neither a number nor a readable run.
    """
    tiers = {} if isinstance(slo, str) else dict(slo)
    for text in tiers.values() or [str(slo)]:
        _check_objectives(objectives(text), experiment)
    _check_numbers(resolution=resolution, alpha=alpha, trials=trials, minutes=minutes)
    over = over or _first_kind(experiment)
    labels = [engine.name for engine in experiment.engines]
    loads = [load for load in experiment.loads if _level_of(load, over) is not None]
    levels = [level for load in loads if (level := _level_of(load, over)) is not None]
    guesses = _guesses(around, over, labels, next(iter(tiers), ""))
    low, high = _range(levels, list(guesses.values()), low, high, over)
    start = None if guesses or len(levels) != 1 or not low <= levels[0] <= high else float(levels[0])
    template = loads[0] if loads else _template(over)
    return SearchConfig(
        engines=labels, over=over, slo="" if tiers else str(slo), tiers=tiers, low=low, high=high, template=template,
        start=start, guesses=guesses, resolution=resolution, alpha=alpha, trials=trials, minutes=minutes,
    )  # fmt: skip


def with_requests_for(experiment: Experiment, config: SearchConfig) -> Experiment:
    """The experiment with trials of as many requests as are evidence for the objectives' highest percentile."""
    needed = max(map(requests_needed, config.objectives.values()))
    trial = msgspec.structs.replace(experiment.trial, min_requests=max(experiment.trial.min_requests, needed))
    return msgspec.structs.replace(experiment, trial=trial)


def search_warnings(experiment: Experiment, config: SearchConfig) -> list[str]:
    """Warnings, one line each, about trials that will be too short to be judged."""
    needed, trial = max(map(requests_needed, config.objectives.values())), experiment.trial
    levels = config.levels
    fewest = max(trial.min_requests, levels[0] * trial.duration_s)
    # the highest percentile that needs fewer requests
    counts = {label: pooled_count(required_count(q)) for label, q in reversed(QUANTILES)}
    instead = next(label for label, count in counts.items() if count < max(needed, counts["p90"]))
    remedy = f"or bound {instead}, which needs {counts[instead]}"
    lines: list[str] = []
    if trial.max_requests is not None and trial.max_requests < needed:
        lines.append(
            f"trial.max_requests is {trial.max_requests}, but an objective needs {needed} requests; raise it, {remedy}"
        )
    elif config.over is Over.CONCURRENCY and trial.min_requests < needed > required_count(0.5):
        few = f"trials may have fewer than the {needed} requests that an objective needs"
        lines.append(f"{few}; raise trial.min_requests to {needed}, {remedy}")
    elif config.over is Over.RATE and fewest < needed > required_count(0.5):
        rate = _rate_text(needed / trial.duration_s)
        few = f"trials below {rate} are skipped, because an objective needs {needed} requests"
        lines.append(f"{few} (sessions may have several); raise trial.min_requests to {needed}, {remedy}")
    if config.over is Over.RATE and config.minutes is not None and config.start:
        first_min = max(trial.min_requests / config.start, trial.duration_s) / 60
        if first_min > config.minutes:
            lasts = f"the first trial lasts {first_min:.3g} min for its {trial.min_requests} requests at"
            lines.append(f"{lasts} {_rate_text(config.start)}; raise --minutes or --low, {remedy}")
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
        metric = CATALOGUE[objective.metric]
        if metric.unit in _BETTER_UNDER_LOAD and Role.RATE_OF_ONE not in metric.roles:
            text = f"'{objective.text}' is met at high loads, not at low ones"
            raise BadExperiment(f"{text}; bound a latency, interactivity or attainment")
    if problem := missing_bounds(experiment.slo, slo):
        raise BadExperiment(problem)


def _check_numbers(*, resolution: float, alpha: float, trials: int, minutes: float | None) -> None:
    checks = (
        (0.005 <= resolution <= 0.5, f"resolution must be between 0.005 and 0.5, not {resolution}"),
        (0 < alpha < 1, f"alpha must be between 0 and 1, not {alpha}"),
        (trials >= 1, f"trials must be at least 1, not {trials}"),
        (minutes is None or minutes > 0, f"minutes must be above 0, not {minutes}"),
    )
    for is_ok, problem in checks:
        if not is_ok:
            raise BadExperiment(problem)


def _level_of(load: Load, over: Over) -> float | None:
    """Its rate or its slots; None for a load of the other kind, or of one class alone."""
    if load.only is not None:
        return None
    return load.rate_per_s if over is Over.RATE else load.concurrency


def _first_kind(experiment: Experiment) -> Over:
    kinds = [kind for load in experiment.loads for kind in Over if _level_of(load, kind) is not None]
    return kinds[0] if kinds else Over.RATE


def _template(over: Over) -> Load:
    return Load(arrival="poisson") if over is Over.RATE else Load()


def _guesses(around: str | None, over: Over, labels: Sequence[str], tier: str) -> dict[str, float]:
    """Expected answers by engine: one level for all, or the answers of an earlier search for the engines it had.

    Of a search with tiers, the answers are those for the tier of this name, or else for its first.
    """
    if around is None:
        return {}
    try:
        level = float(around)
    except ValueError:
        earlier = search_record(RunFolder.open(located(around)).read_log())
        if earlier is None or earlier.config.over is not over:
            raise NotComparable(f"{around} holds no search over the {over.value}; give a number") from None
        tier = tier if tier in earlier.config.objectives else next(iter(earlier.config.objectives))
        known = (search for search in earlier.engines if search.level and search.tier == tier)
        return {search.engine: search.level for search in known if search.engine in labels and search.level}
    return dict.fromkeys(labels, level)


def _range(
    levels: Sequence[float], guesses: Sequence[float], low: float | None, high: float | None, over: Over
) -> tuple[float, float]:
    """The lowest and highest level to search."""
    known = [*levels, *guesses]
    if over is Over.CONCURRENCY:
        for option, value in (("--low", low), ("--high", high)):
            if value is not None and not (1 <= value < math.inf and value == round(value)):
                raise BadExperiment(f"{option} {value:g} is no number of sessions; give a whole number, at least 1")
    if not known and (low is None or high is None):
        key = "rate_per_s" if over is Over.RATE else "concurrency"
        raise BadExperiment(f"the experiment has no load with {key}; give --low and --high, or --around")
    span = _SPAN if len(levels) < 2 else 1.0
    if low is None:
        low = min(levels if span == 1 else known) / span
    if high is None:
        high = max(levels if span == 1 else known) * span
    if over is Over.CONCURRENCY:
        low, high = max(1.0, float(round(low))), float(round(high))
    if not 0 < low < high < math.inf:
        raise BadExperiment(f"the range from {low:g} to {high:g} is empty; give --low and --high")
    if outside := [guess for guess in guesses if not low <= guess <= high]:
        raise BadExperiment(f"{outside[0]:g} is not between {low:g} and {high:g}; change --low, --high or --around")
    return low, high
