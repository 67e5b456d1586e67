"""Capacities per GPU and per megawatt, from the answers of a capacity search.

Power is that of the GPUs, from their energy counters over the windows of the trials at the capacity. The rest of the
machine, cooling and losses are not in it.
"""

import math
import statistics
from collections.abc import Sequence

import msgspec

from bakeoff.results.log.search import EngineSearch
from bakeoff.results.metrics import Value, absent
from bakeoff.results.metrics.energy import energy
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.gpus import gpus_used
from bakeoff.results.run.run import Run

_WATTS_PER_MEGAWATT = 1e6


class Share(msgspec.Struct, frozen=True):
    """A capacity divided by a number, with the ends of its interval divided by the same number.

    Attributes:
        level: most probable; None if the capacity may be above the range.
        low: lower end; None if it may be below the range.
        high: upper end; None if the capacity may be above the range.
    """

    level: float | None
    low: float | None
    high: float | None


class Capacity(msgspec.Struct, frozen=True):
    """The capacity of one engine for one tier per GPU and per megawatt.

    Attributes:
        engine: label.
        tier: of the objectives; empty for the only one.
        gpus: number of GPUs that the engine uses.
        power_w: mean power of the sampled GPUs in the trials whose level lies in the interval, else nearest to it.
        per_gpu: None if the number is unknown.
        per_megawatt: None if the power is unknown.
    """

    engine: str
    tier: str
    gpus: Value
    power_w: Value
    per_gpu: Share | None = None
    per_megawatt: Share | None = None


def capacities(run: Run) -> list[Capacity]:
    """One entry for each engine and tier of a search that has a level; empty for a run that is no search."""
    searches = run.search.engines if run.search else []
    trials = {trial.record.id: trial for trial in run.finished} if searches else {}
    return [_capacity(run, search, trials) for search in searches if search.has_level and search.level is not None]


def _capacity(run: Run, search: EngineSearch, trials: dict[str, Trial]) -> Capacity:
    used = gpus_used(run, search.engine)
    gpus = absent("no start of the engine showed which GPUs it takes") if used is None else Value(float(used))
    power_w = _power_w(search, trials)
    return Capacity(
        search.engine,
        search.tier,
        gpus,
        power_w,
        _share(search, gpus.value),
        _share(search, None if power_w.value is None else power_w.value / _WATTS_PER_MEGAWATT),
    )


def _share(search: EngineSearch, divisor: float | None) -> Share | None:
    if divisor is None:
        return None
    low = None if search.low is None else search.low / divisor
    if search.open_above or search.level is None or search.high is None:
        return Share(None, low, None)
    return Share(search.level / divisor, low, search.high / divisor)


def _power_w(search: EngineSearch, trials: dict[str, Trial]) -> Value:
    """Mean power at the capacity, over the trials that are evidence."""
    low, level, high = search.low or 0.0, search.level or 0.0, search.high or math.inf
    judged = [(attempt.level, trials[attempt.trial]) for attempt in search.judged if attempt.trial in trials]
    inside = [trial for tried, trial in judged if low <= tried <= high]
    if not inside:
        nearest = min((abs(math.log(tried / level)) for tried, _ in judged), default=0.0)
        inside = [trial for tried, trial in judged if abs(math.log(tried / level)) == nearest]
    return _mean_w(inside)


def _mean_w(trials: Sequence[Trial]) -> Value:
    """Mean over the trials that have an energy; else why the first has none."""
    totals = [(energy(trial.telemetry, trial.window).total_j, trial.window.length_s) for trial in trials]
    watts = [joules.value / length_s for joules, length_s in totals if joules.value is not None]
    if watts:
        return Value(statistics.fmean(watts))
    return totals[0][0] if totals else absent("no trial at the capacity has ended")
