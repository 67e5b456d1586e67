"""The highest load at which each engine of an experiment keeps its objectives.

Engines take turns of a few trials, each on a fresh start, so that a drift of the machine falls on all of them alike and
the spread between starts shows in the answers. What a search leaves is an ordinary run folder, whose plan grew with it,
and ``search.json``.
"""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engines.secrets import masked
from harness.errors import BadExperiment
from harness.experiment.config import Experiment
from harness.run import conducted, create_run
from harness.seeker import Notebook, Seeker, Watcher, requests_needed
from harness.stage import Prepared, staged
from results.errors import NotComparable
from results.metrics import CATALOGUE, Unit
from results.metrics.catalogue import QUANTILES
from results.metrics.percentiles import required_count
from results.objectives import Objective, objectives
from results.records import Load, Slo
from results.report.search_lines import level_text
from results.search import Over, SearchRecord
from results.statistics.bisection import Bisection, levels_between
from results.store import RunFolder

_SPAN = 32.0
"""How far a search may go from a single load, up or down."""
_ANY = math.inf
_RISING = {Unit.PER_SECOND, Unit.TOKENS_PER_SECOND, Unit.JOULES}
"""Metrics that get better with the load, to a point: no highest load keeps a bound on them."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for, and how much it may cost.

    Attributes:
        over: which load.
        wanted: the objectives.
        template: the rest of the load's fields.
        levels: loads that may be tried, rising.
        start: where to begin; None for the lowest.
        guesses: where each engine's answer is expected, by label.
        resolution: to which share, up or down, the answer is to be known.
        alpha: share of searches whose interval may fail to hold the truth.
        trials: at most so many for each engine.
        minutes: likewise, starts included; None for any length. The trial that is under way is finished.
    """

    over: Over
    wanted: Sequence[Objective]
    template: Load
    levels: Sequence[float]
    start: float | None = None
    guesses: dict[str, float] = {}
    resolution: float = 0.05
    alpha: float = 0.05
    trials: int = 20
    minutes: float | None = None

    def load_at(self, level: float) -> Load:
        """The load of a level."""
        if self.over is Over.RATE:
            return msgspec.structs.replace(self.template, rate_per_s=level)
        return msgspec.structs.replace(self.template, concurrency=round(level))


def terms_of(
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
) -> Terms:
    """The terms of a search, from what a user says and what the experiment holds.

    Args:
        experiment: whose loads bound the search where the user does not: several by the least and the greatest, one by
            a thirty-second and thirty-two times it.
        slo: objectives in one line of text.
        over: which load; the default is that of the experiment's first one.
        low: lowest level.
        high: highest level.
        around: a level near which the answers are expected, or the folder of an earlier search.
        resolution: as in :class:`Terms`.
        alpha: likewise.
        trials: likewise.
        minutes: likewise.

    Raises:
        BadExperiment: they contradict each other or the experiment.
        NotComparable: an objective is none.
        RunNotFound, RunUnreadable: ``around`` is no run.
    """
    wanted = objectives(slo)
    _check_objectives(wanted, experiment)
    _check_numbers(resolution=resolution, alpha=alpha, trials=trials, minutes=minutes)
    over = over or _first_kind(experiment)
    loads = [load for load in experiment.loads if _level_of(load, over) is not None]
    given = [level for load in loads if (level := _level_of(load, over)) is not None]
    guesses = _guesses(around, over, [side.shown for side in experiment.engines])
    least, most = _ends(given, list(guesses.values()), low, high, over)
    start = None if guesses or len(given) != 1 or not least <= given[0] <= most else given[0]
    return Terms(
        over=over, wanted=wanted, template=loads[0] if loads else _template(over),
        levels=_levels(least, most, resolution, over), start=start, guesses=guesses,
        resolution=resolution, alpha=alpha, trials=trials, minutes=minutes,
    )  # fmt: skip


def forewarnings(experiment: Experiment, terms: Terms) -> list[str]:
    """What can be known beforehand of trials that will not do, a line each."""
    need, trial = requests_needed(terms.wanted), experiment.trial
    least = max(trial.min_requests, terms.levels[0] * trial.duration_s)
    instead = next(label for label, q in reversed(QUANTILES) if required_count(q) < max(need, required_count(0.9)))
    remedy = f"or bound {instead}, which needs {required_count(dict(QUANTILES)[instead])}"
    lines: list[str] = []
    if trial.max_requests is not None and trial.max_requests < need:
        lines.append(
            f"trial.max_requests is {trial.max_requests}, an objective needs {need} requests; raise it, {remedy}"
        )
    elif terms.over is Over.CONCURRENCY and trial.min_requests < need > required_count(0.5):
        few = f"a trial may have fewer than the {need} requests that an objective needs"
        lines.append(f"{few}; raise trial.min_requests to that, {remedy}")
    elif terms.over is Over.RATE and least < need > required_count(0.5):
        rate = _near(need / trial.duration_s)
        few = f"below {rate} a trial has fewer than the {need} sessions that an objective needs, if each is one request"
        lines.append(f"{few}: such rates are left out; raise trial.min_requests to that, {remedy}")
    if terms.over is Over.RATE and (trial.max_requests or _ANY) < terms.levels[-1] * trial.duration_s:
        rate = _near((trial.max_requests or _ANY) / trial.duration_s)
        lines.append(
            f"above {rate} windows are shorter than trial.duration_s: trial.max_requests is {trial.max_requests}"
        )
    return lines


def _near(rate: float) -> str:
    return level_text(Over.RATE, float(f"{rate:.3g}"))


def create_search(experiment: Experiment, root: Path) -> RunFolder:
    """Make the folder of a search, named after the experiment; its plan is empty as yet.

    Raises:
        NotWritable: the folder cannot be made.
    """
    return create_run(msgspec.structs.replace(experiment, name=f"{experiment.name}-search"), root, plan=[])


async def search(experiment: Experiment, run: RunFolder, watcher: Watcher, terms: Terms) -> None:
    """Search each engine of ``experiment`` into ``run``; afterwards its ``search.json`` holds the answers.

    Its status is ``complete``, or ``failed`` when an engine did not start or was lost. An engine that died under a load
    did not keep the objectives there, and is started again.

    Raises:
        EngineError, WorkloadError: the model, an engine's options or the traffic are wrong.
        CancelledError: interrupted; what was measured is kept and marked.
    """
    notebook = Notebook(run, _record(terms))

    async def measure(prepared: Prepared) -> str | None:
        return await _measured(prepared, notebook, watcher, terms)

    await conducted(experiment, run, watcher, measure, redraw=True)


async def _measured(prepared: Prepared, notebook: Notebook, watcher: Watcher, terms: Terms) -> str | None:
    labels = [side.shown for side in prepared.experiment.engines]
    # What is wrong with the traffic shows before anything is started.
    await prepared.world.in_thread(prepared.planner.traffic, terms.load_at(terms.levels[-1]), 1, labels[0])
    seekers = [_seeker(label, prepared, notebook, watcher, terms) for label in labels]
    async with staged(prepared, notebook.run, watcher) as stage:
        for turn in itertools.count(1):
            searching = [seeker for seeker in seekers if not seeker.has_ended]
            for seeker in searching if turn % 2 else searching[::-1]:
                seeker.begin_turn()
                await stage.play(seeker.label, turn, seeker)
                if seeker.label in stage.given_up:
                    seeker.lost(masked(stage.given_up[seeker.label]))
            if not searching:
                break
        for seeker in seekers:
            for repeat in sorted({plan.repeat for plan in seeker.plans}):
                await stage.check(seeker.label, [plan for plan in seeker.plans if plan.repeat == repeat])
        return "; ".join(stage.given_up.values()) or None


def _seeker(label: str, prepared: Prepared, notebook: Notebook, watcher: Watcher, terms: Terms) -> Seeker:
    bisection = Bisection(
        terms.levels, resolution=terms.resolution, alpha=terms.alpha, start=terms.start, guess=terms.guesses.get(label)
    )
    return Seeker(
        label, bisection, terms.wanted, terms.load_at,
        experiment=prepared.experiment, planner=prepared.planner, notebook=notebook, watcher=watcher,
        world=prepared.world,
    )  # fmt: skip


def _record(terms: Terms) -> SearchRecord:
    return SearchRecord(
        over=terms.over,
        objectives=[one.text for one in terms.wanted],
        low=terms.levels[0],
        high=terms.levels[-1],
        resolution=terms.resolution,
        alpha=terms.alpha,
        trials=terms.trials,
        minutes=terms.minutes,
        guesses=terms.guesses,
    )


def _check_objectives(wanted: Sequence[Objective], experiment: Experiment) -> None:
    for one in wanted:
        if CATALOGUE[one.metric].unit in _RISING:
            raise BadExperiment(f"'{one.text}' is met at high loads, not at low ones; bound a latency or attainment")
        if one.metric == "attainment" and experiment.slo == Slo():
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
        earlier = RunFolder.open(Path(around)).read_search()
        if earlier is None or earlier.over is not over:
            raise NotComparable(f"{around} holds no search over the {over.value}; give a number") from None
        return {one.engine: one.level for one in earlier.engines if one.level and one.engine in labels}
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


def _levels(low: float, high: float, resolution: float, over: Over) -> list[float]:
    levels = levels_between(low, high, resolution)
    return levels if over is Over.RATE else sorted({float(round(level)) for level in levels})
