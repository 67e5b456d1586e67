"""Compare two sides over the requests that both served: the common part of their plan.

In a closed loop the faster side gets further in the plan, to requests of other lengths. So each pair of trials of one
repeat is compared over the requests that both measured. All values of a comparison come from :func:`over_common_part`:

- latencies, attainment and failures are those of the common requests;
- the rates of a closed loop are what the common requests make over the time that they took
  (:mod:`results.metrics.closed_loop`), and energies per token and request follow them;
- rates of an open loop, which its arrivals set, and the metrics of gaps between tokens and of memory are those of the
  whole window.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from results.benchmark_json import StoredTrial
from results.metrics import Value, under_load
from results.metrics.closed_loop import closed_loop_rates, cycles_ns
from results.metrics.throughput import planned_inside
from results.metrics.trial import request_metrics
from results.records import Outcome, Phase, RequestRecord, Slo
from results.sides import AnyTrial
from results.units import NS_PER_S
from results.work import work_of

Sessions = Mapping[str, Sequence[AnyTrial]]
"""Session → trials of one side at one load."""
_MIN_COMMON = 0.5
"""Smallest part of a trial's requests that stands for the trial."""
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
    requests in common that every trial of both sides served: every repeat sends requests of the same lengths. Trials
    without a log of their requests, or with hardly any in common, are returned as they are.

    Args:
        a: valid trials of one side at one load.
        b: those of the other.
        slo: of the experiment.
    """
    pairs = _pairs(a, b)
    common = {id(trial): part for pair in pairs for trial, part in zip(pair, _common(pair, slo), strict=True)}
    alone = [trial for trials in (*a.values(), *b.values()) for trial in trials if id(trial) not in common]
    if alone and a and b:
        every = [trial for trials in (*a.values(), *b.values()) for trial in trials]
        parts = dict(zip(map(id, every), _common(every, slo), strict=True))
        common |= {id(trial): parts[id(trial)] for trial in alone}
    of_a, of_b = (
        {session: [common.get(id(trial), trial) for trial in trials] for session, trials in side.items()}
        for side in (a, b)
    )
    return of_a, of_b


def _pairs(a: Sessions, b: Sessions) -> list[tuple[AnyTrial, AnyTrial]]:
    pairs: list[tuple[AnyTrial, AnyTrial]] = []
    for session in a.keys() & b.keys():
        by_repeat = {trial.record.repeat: trial for trial in b[session]}
        pairs += [(trial, by_repeat[trial.record.repeat]) for trial in a[session] if trial.record.repeat in by_repeat]
    return pairs


class _Served(msgspec.Struct, frozen=True):
    """Measured requests of one trial that ended, by identity, and their cycles by index."""

    requests: dict[_Key, RequestRecord]
    cycles_ns: dict[int, int]


def _common(trials: Sequence[AnyTrial], slo: Slo) -> list[AnyTrial]:
    """The trials over the requests that all of them served."""
    served = [_served(trial) for trial in trials]
    keys = set.intersection(*(set(of_trial.requests) for of_trial in served))
    if len(keys) < max(1.0, _MIN_COMMON * min(len(of_trial.requests) for of_trial in served)):
        return list(trials)
    timed = {key for key in keys if all(of.requests[key].index in of.cycles_ns for of in served)}
    if len(timed) < _MIN_TIMED * len(keys):
        timed.clear()
    return [_over(trial, of_trial, keys, timed, slo) for trial, of_trial in zip(trials, served, strict=True)]


def _served(trial: AnyTrial) -> _Served:
    load = under_load(trial.requests)
    ended = [r for r in planned_inside(load, trial.record.window) if r.outcome is not Outcome.CANCELLED]
    counts = Counter(map(_key, ended))
    requests = {key: request for request in ended if counts[key := _key(request)] == 1}
    return _Served(requests, cycles_ns(load, ended) if trial.record.load.concurrency else {})


def _key(request: RequestRecord) -> _Key:
    """What makes a request of two trials the same one.

    Positions in the window's plan are. Sessions that began before the window are chosen by the engine's pace, so their
    requests are the same only if session, turn and lengths are.
    """
    index = request.index if request.phase is Phase.MEASURED else None
    lengths = request.requested_input_tokens, request.requested_output_tokens
    return request.phase, index, request.session, request.turn, request.cycle, *lengths, request.part


def _over(trial: AnyTrial, served: _Served, keys: set[_Key], timed: set[_Key], slo: Slo) -> CommonTrial:
    requests = [request for key, request in served.requests.items() if key in keys]
    metrics = trial.metrics | request_metrics(requests, slo)
    slots = trial.record.load.concurrency
    if slots and timed:
        of_rates = [request for key, request in served.requests.items() if key in timed]
        took_s = sum(served.cycles_ns[request.index] for request in of_rates) / NS_PER_S / slots
        metrics |= closed_loop_rates(of_rates, took_s, slo)
        metrics |= {name: _per(rate, trial.metrics, metrics, name) for name, rate in _ENERGIES.items()}
    return CommonTrial(trial.record, metrics, trial.quality, work_of(requests), by_cycles=bool(timed))


def _per(rate: str, window: Mapping[str, Value], common: Mapping[str, Value], name: str) -> Value:
    """An energy divided by another rate than that of the window."""
    energy, before, after = window[name], window[rate].value, common[rate].value
    return Value(energy.value * before / after) if energy.value is not None and before and after else energy
