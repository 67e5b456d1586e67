"""Compare two sides over the requests that both served: the common part of their plan.

In a closed loop the faster side gets further in the plan, to requests of other lengths. So each pair of trials of one
repeat is compared over the requests that both measured. All values of a comparison come from :func:`over_common_part`:

- latencies, attainment, failures and figures of sessions are those of the common requests;
- the rates of a closed loop are what the common requests make over the time that they took
  (:mod:`bakeoff.results.metrics.closed_loop`), and energies per token and request follow them;
- rates of an open loop, which its arrivals set, and the metrics of gaps between tokens and of memory are those of the
  whole window.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from bakeoff.results.compare.sides import AnyTrial
from bakeoff.results.export.benchmark_json import StoredTrial
from bakeoff.results.metrics import Value, under_load
from bakeoff.results.metrics.closed_loop import closed_loop_rates, cycles_ns
from bakeoff.results.metrics.requests import planned_inside
from bakeoff.results.metrics.sessions import over_requests
from bakeoff.results.metrics.trial import request_metrics
from bakeoff.results.records import Outcome, Phase, RequestRecord, Slo
from bakeoff.results.run.work import work_of
from bakeoff.results.units import NS_PER_S

Sessions = Mapping[str, Sequence[AnyTrial]]
"""Session → trials of one side at one load."""
_MIN_COMMON = 0.5
"""Smallest part of a trial's requests that stands for it: first turns are common more often than later ones."""
_MIN_TIMED = 0.9
"""Smallest part of the common requests whose cycles must be known: those that are not tend to be the longest."""
_ENERGIES = {
    "energy_per_output_token_j": "output_tokens_per_s",
    "energy_above_idle_per_output_token_j": "output_tokens_per_s",
    "energy_per_request_j": "requests_per_s",
}
"""Metric → the rate by which it divides the power."""
_Key = tuple[Phase, int | None, str, int, int, int | None, int | None, float]


class CommonTrial(StoredTrial, frozen=True):
    """A trial whose metrics and work are those of the common part.

    Attributes:
        by_cycles: whether its rates are, too.
    """

    by_cycles: bool = False


def over_common_part(a: Sessions, b: Sessions, slo: Slo) -> tuple[dict[str, list[AnyTrial]], dict[str, list[AnyTrial]]]:
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
        by_cycles = all(part.has_cycles for part in parts)
        common = {id(trial): part.over(trial, slo, by_cycles=by_cycles) for part in parts for trial in part.trials}
    of_a, of_b = (
        {session: [common.get(id(trial), trial) for trial in trials] for session, trials in side.items()}
        for side in (a, b)
    )
    return of_a, of_b


def _parts(a: Sessions, b: Sessions) -> "list[_Part]":
    """The common part of each pair, and that of the trials without a partner."""
    if not a or not b:
        return []
    every = [_Served(trial) for side in (a, b) for trials in side.values() for trial in trials]
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
    """The measured requests of one trial that ended, by identity, and their cycles by index."""

    def __init__(self, trial: AnyTrial) -> None:
        load = under_load(trial.requests)
        ended = [r for r in planned_inside(load, trial.record.window) if r.outcome is not Outcome.CANCELLED]
        counts = Counter(map(_key, ended))
        self.trial = trial
        self.requests = {key: request for request in ended if counts[key := _key(request)] == 1}
        self.cycles_ns = cycles_ns(load, ended) if trial.record.load.concurrency else {}


class _Part:
    """The requests that trials have in common.

    Args:
        members: those of the trials that are compared over it.
        every: all trials.

    Attributes:
        trials: the members.
        is_enough: whether it stands for them.
        has_cycles: whether the cycles of its requests are known.
    """

    def __init__(self, members: Sequence[_Served], every: Sequence[_Served]) -> None:
        self._members = {id(served.trial): served for served in members}
        self._keys = set.intersection(*(set(served.requests) for served in every))
        self._timed = {key for key in self._keys if all(one.requests[key].index in one.cycles_ns for one in every)}
        fewest = min(len(served.requests) for served in every)
        self.trials = [served.trial for served in members]
        self.is_enough = len(self._keys) >= max(1.0, _MIN_COMMON * fewest)
        self.has_cycles = len(self._timed) >= _MIN_TIMED * len(self._keys)

    def over(self, trial: AnyTrial, slo: Slo, *, by_cycles: bool) -> CommonTrial:
        """One of the trials over the common part."""
        served, slots = self._members[id(trial)], trial.record.load.concurrency
        requests = [request for key, request in served.requests.items() if key in self._keys]
        of_sessions = over_requests(trial.record, under_load(trial.requests), requests)
        metrics = trial.metrics | request_metrics(requests, slo) | of_sessions
        if slots and by_cycles:
            timed = [request for key, request in served.requests.items() if key in self._timed]
            took_s = sum(served.cycles_ns[request.index] for request in timed) / NS_PER_S / slots
            metrics |= closed_loop_rates(timed, took_s, slo)
            metrics |= {name: _per(rate, trial.metrics, metrics, name) for name, rate in _ENERGIES.items()}
        return CommonTrial(trial.record, metrics, trial.quality, work_of(requests), by_cycles=by_cycles)


def _key(request: RequestRecord) -> _Key:
    """What makes a request of two trials the same one.

    Positions in the window's plan are. Sessions that began before the window are chosen by the engine's pace, so their
    requests are the same only if session, turn and lengths are.
    """
    index = request.index if request.phase is Phase.MEASURED else None
    lengths = request.requested_input_tokens, request.requested_output_tokens
    return request.phase, index, request.session, request.turn, request.cycle, *lengths, request.part


def _per(rate: str, window: Mapping[str, Value], common: Mapping[str, Value], name: str) -> Value:
    """An energy divided by another rate than that of the window."""
    energy, before, after = window[name], window[rate].value, common[rate].value
    return Value(energy.value * before / after) if energy.value is not None and before and after else energy
