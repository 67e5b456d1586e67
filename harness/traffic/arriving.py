"""The sessions of an open loop by the times of their starts: of one arrival process, or of one for each class."""

import itertools
import math
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from bakeoff.harness.experiment.config import Experiment, TrafficClass
from bakeoff.results.records import Load
from bakeoff.workloads import PlannedSession, Seed, Tokenizer, Workload, arrival, plan_open
from bakeoff.workloads.arrivals import Arrival, Constant, Delayed
from bakeoff.workloads.types import SupportsReach

_ENDLESS = 1 << 62


class _Stream(NamedTuple):
    """Sessions that start by one process.

    Attributes:
        classes: names of theirs; None for all.
        process: of their starts.
        seed: suffix of the seed of the process, which is independent of the others'.
    """

    classes: frozenset[str] | None
    process: Arrival
    seed: str = ""


def arriving(
    experiment: Experiment, load: Load, tokenizer: Tokenizer, seed: Seed, *, duration_s: float, reach_s: float
) -> Iterator[PlannedSession]:
    """Sessions of an open loop; of a class alone those that it has among the others, at the same times.

    Args:
        experiment: has the classes.
        load: the level.
        tokenizer: the model's.
        seed: of this part of the load.
        duration_s: of the load; infinite for sessions without end.
        reach_s: turns that come later are left out.
    """
    together = experiment.load_with(load) or load
    plans = [
        plan_open(
            within(experiment.source(stream.classes), reach_s), stream.process, tokenizer, seed,
            duration_s=math.inf, count=_ENDLESS, starts=stream.seed,
        )
        for stream in _streams(experiment, together, seed)
    ]  # fmt: skip
    in_time = itertools.takewhile(lambda planned: (planned.offset_s or 0.0) < duration_s, _merged(plans))
    return (planned for planned in in_time if load.only in {None, planned.session.traffic_class})


def _streams(experiment: Experiment, load: Load, seed: Seed) -> list[_Stream]:
    """The processes of a load: its own one for all classes that have none, each at its share of the rate."""
    name, options, rate = load.arrival or "poisson", load.arrival_options, load.rate_per_s or 0.0
    chosen = [each for each in experiment.classes if load.only in {None, each.name}]
    whole = sum(each.weight for each in chosen)
    plain = [each for each in chosen if each.arrival is None]
    own = [each for each in chosen if each.arrival is not None]
    streams = [
        _Stream(
            frozenset({each.name}),
            _in_phase(arrival(each.arrival or name, rate * each.weight / whole, each.arrival_options), each.name, seed),
            f"/{each.name}",
        )
        for each in own
    ]
    if plain or not own:
        share = sum(each.weight for each in plain) / whole if own else 1.0
        streams.insert(0, _Stream(_names(plain), arrival(name, rate * share, options)))
    return streams


def _in_phase(process: Arrival, name: str, seed: Seed) -> Arrival:
    """The process, at a random phase if its arrivals are evenly spaced: those of several classes would coincide."""
    if not isinstance(process, Constant):
        return process
    return Delayed(process, seed.draws("phase", name).uniform() / process.rate_per_s)


def _names(classes: Sequence[TrafficClass]) -> frozenset[str] | None:
    return frozenset(each.name for each in classes) or None


def _merged(plans: Sequence[Iterator[PlannedSession]]) -> Iterator[PlannedSession]:
    """The sessions of all plans in order of time, until one has no more."""
    heads: list[tuple[float, int, PlannedSession]] = []

    def read(number: int) -> None:
        for planned in itertools.islice(plans[number], 1):
            heappush(heads, (planned.offset_s or 0.0, number, planned))

    for number in range(len(plans)):
        read(number)
    while len(heads) == len(plans):
        _, number, planned = heappop(heads)
        yield planned
        read(number)


def within(source: Workload, reach_s: float) -> Workload:
    """The workload without turns later than ``reach_s``, if it can leave them out."""
    return source.within(reach_s) if isinstance(source, SupportsReach) else source
