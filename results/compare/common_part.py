"""Compare two sides over the requests that both served: the common part of their plan.

In a closed loop the faster side gets further in the plan, to requests of other lengths. So each pair of trials of one
repeat is compared over the requests that both measured. All values of a comparison come from :func:`over_common_part`:

- latencies, attainment, failures and figures of sessions are those of the common requests;
- the rates of a closed loop are those of the common requests (:mod:`bakeoff.results.metrics.closed_loop`), and energies
  per token and request follow them;
- rates of an open loop, which its arrivals set, and the metrics of gaps between tokens and of memory are those of the
  whole window.

The same goes for the requests of one class of the traffic, which have only the metrics of single requests.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bakeoff.results.columns import UNKNOWN, Ints
from bakeoff.results.compare.sides import AnyTrial
from bakeoff.results.export.benchmark_json import StoredTrial
from bakeoff.results.metrics import CATALOGUE, Value, absent
from bakeoff.results.metrics.closed_loop import is_in_long_run
from bakeoff.results.metrics.declaration import TrialData
from bakeoff.results.metrics.trial import data_over, long_run_metrics, request_metrics
from bakeoff.results.records import Phase, Slo
from bakeoff.results.requests import Requests
from bakeoff.results.run.work import work_of

Sessions = Mapping[str, Sequence[AnyTrial]]
"""Session → trials of one side at one load."""
BothSessions = tuple[dict[str, list[AnyTrial]], dict[str, list[AnyTrial]]]
"""Those of A and of B."""
_MIN_COMMON = 0.5
"""Smallest part of a trial's requests that stands for it: first turns are common more often than later ones."""
_ENERGIES = {
    "energy_per_output_token_j": "output_tokens_per_s",
    "energy_above_idle_per_output_token_j": "output_tokens_per_s",
    "energy_per_request_j": "requests_per_s",
}
"""Metric → the rate by which it divides the power."""
_NO_REQUEST, _NO_LOG = (
    dict.fromkeys(CATALOGUE, absent(reason))
    for reason in ("no request of the class in the window has it", "the file does not hold the requests of a class")
)
"""The metrics of a class's trial, unless its requests have them."""


class CommonTrial(StoredTrial, frozen=True):
    """A trial whose metrics and work are those of the common part.

    Attributes:
        has_rates: whether its rates are, too.
    """

    has_rates: bool = False


def over_common_part(a: Sessions, b: Sessions, slo: Slo) -> BothSessions:
    """Give the trials of both sides the metrics of their common part.

    Trials of one repeat of one session are a pair. Those without a partner, and all of different runs, have the
    requests in common that every trial of both sides served: every repeat sends requests of the same lengths. If any
    trials have no log of their requests, or too few in common, all are returned as they are.

    Args:
        a: valid trials of one side at one load.
        b: those of the other.
        slo: of the experiment.
    """
    parts = _parts(a, b)
    common: dict[int, CommonTrial] = {}
    if all(part.is_enough for part in parts):
        members = [(part.data(trial, slo), trial) for part in parts for trial in part.trials]
        with_rates = all(is_in_long_run(data) for data, _ in members)
        common = {id(trial): _over(data, trial, with_rates=with_rates) for data, trial in members}
    return _mapped(a, b, lambda trial: common.get(id(trial), trial))


def of_class(a: Sessions, b: Sessions, traffic_class: str, slo: Slo) -> BothSessions:
    """Give the trials of both sides the metrics of single requests, over the requests of one class.

    They are those that :func:`over_common_part` would compare; all of the class if too few are common.

    Args:
        a: valid trials of one side at one load.
        b: those of the other.
        traffic_class: name of the class.
        slo: of the class.
    """
    parts = _parts(a, b, traffic_class)
    if all(part.is_enough for part in parts):
        served = {id(trial): part.requests_of(trial) for part in parts for trial in part.trials}
    else:
        every = (trial for side in (a, b) for trials in side.values() for trial in trials)
        served = {id(trial): _Served(trial, traffic_class).requests for trial in every}
    return _mapped(a, b, lambda trial: _with_requests(trial, served[id(trial)], slo))


def _mapped(a: Sessions, b: Sessions, new: Callable[[AnyTrial], AnyTrial]) -> BothSessions:
    """Both sides with each trial replaced."""
    of_a, of_b = ({session: [new(trial) for trial in trials] for session, trials in side.items()} for side in (a, b))
    return of_a, of_b


def _with_requests(trial: AnyTrial, requests: Requests, slo: Slo) -> CommonTrial:
    """A trial of these requests alone."""
    metrics = request_metrics(requests, slo) if len(requests) else {}
    others = _NO_REQUEST if len(trial.requests) else _NO_LOG
    return CommonTrial(trial.record, {**others, **metrics}, trial.quality, work_of(requests))


def _parts(a: Sessions, b: Sessions, traffic_class: str | None = None) -> "list[_Part]":
    """The common part of each pair, and that of the trials without a partner."""
    if not a or not b:
        return []
    every = [_Served(trial, traffic_class) for side in (a, b) for trials in side.values() for trial in trials]
    served = {id(one.trial): one for one in every}
    pairs = [
        [served.pop(id(trial)) for trial in {id(of_a): of_a, id(of_b): of_b}.values()]  # once, if they are the same
        for session in a.keys() & b.keys()
        for of_a in a[session]
        for of_b in b[session]
        if of_a.record.repeat == of_b.record.repeat
    ]
    parts = [_Part(pair, pair) for pair in pairs]
    return [*parts, _Part(list(served.values()), every)] if served else parts


class _Served:
    """The measured requests of one trial that ended, and whose identity no other has.

    Attributes:
        trial: the trial.
        load: its requests under load.
        requests: those that count.
        keys: their identity, in ascending order.
        places: the position in ``requests`` of each key.
    """

    def __init__(self, trial: AnyTrial, traffic_class: str | None = None) -> None:
        self.trial = trial
        self.load = Requests(trial.requests).under_load
        inside = self.load.planned_inside(trial.record.window)
        requests = inside.take(~inside.is_cancelled)
        is_all = traffic_class is None
        self.requests = requests if is_all else requests.take(requests.equal("traffic_class", traffic_class))
        keys, places, counts = np.unique(_keys(self.requests), return_index=True, return_counts=True)
        self.keys, self.places = keys[counts == 1], places[counts == 1]

    def places_of(self, keys: Ints) -> Ints:
        """Positions in ``requests`` of some of the keys, in the order of the requests."""
        return np.sort(self.places[np.searchsorted(self.keys, keys)])


class _Part:
    """The requests that trials have in common.

    Args:
        members: those of the trials that are compared over it.
        every: all trials.

    Attributes:
        trials: the members.
        is_enough: whether it stands for them.
    """

    def __init__(self, members: Sequence[_Served], every: Sequence[_Served]) -> None:
        self._members = {id(served.trial): served for served in members}
        self._keys = functools.reduce(np.intersect1d, (served.keys for served in every))
        fewest = min(len(served.keys) for served in every)
        self.trials = [served.trial for served in members]
        self.is_enough = len(self._keys) >= max(1.0, _MIN_COMMON * fewest)

    def requests_of(self, trial: AnyTrial) -> Requests:
        """The common requests, as one of the trials served them."""
        served = self._members[id(trial)]
        return served.requests.take(served.places_of(self._keys))

    def data(self, trial: AnyTrial, slo: Slo) -> TrialData:
        """One of the trials, of which the common requests count."""
        return data_over(trial.record, self._members[id(trial)].load, self.requests_of(trial), slo)


def _over(data: TrialData, trial: AnyTrial, *, with_rates: bool) -> CommonTrial:
    """A trial over the common part."""
    metrics = trial.metrics | request_metrics(data.inside, data.slo) | long_run_metrics(data, with_rates=with_rates)
    if with_rates:
        metrics |= {name: _per(rate, trial.metrics, metrics, name) for name, rate in _ENERGIES.items()}
    return CommonTrial(trial.record, metrics, trial.quality, work_of(data.inside), has_rates=with_rates)


def _keys(requests: Requests) -> Ints:
    """What makes a request of two trials the same one, as a hash of 64 bits.

    Positions in the window's plan are. Sessions that began before the window are chosen by the engine's pace, so their
    requests are the same only if session, turn and lengths are.
    """
    positions = np.where(requests.equal("phase", Phase.MEASURED), requests.ints("index"), UNKNOWN).tolist()
    names = ("phase", "session", "turn", "cycle", "requested_input_tokens", "requested_output_tokens", "part")
    identities = zip(positions, *map(requests.values, names), strict=True)
    return np.fromiter(map(hash, identities), dtype=np.int64, count=len(requests))


def _per(rate: str, window: Mapping[str, Value], common: Mapping[str, Value], name: str) -> Value:
    """An energy divided by another rate than that of the window."""
    energy, before, after = window[name], window[rate].value, common[rate].value
    return Value(energy.value * before / after) if energy.value is not None and before and after else energy
