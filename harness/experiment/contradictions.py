"""Contradictions within an experiment, and values out of range."""

import math
from collections.abc import Iterator

from bakeoff.harness.experiment.config import (
    MAX_PLANNED,
    MAX_WORKERS,
    Experiment,
    TrialConfig,
    is_steady,
)
from bakeoff.harness.experiment.faults import (
    overlap_of,
    problem_of_engine,
    problem_of_fault,
    problem_of_starts,
)
from bakeoff.harness.rules.rule_set import Start
from bakeoff.results.errors import NotComparable
from bakeoff.results.metrics.objectives import missing_bounds, objectives
from bakeoff.results.records import Cache, Load, Slo
from bakeoff.workloads import VARYING_ARRIVALS

_TRANSPORTS = ("http", "aiohttp")
_MAX_SLOTS = 100_000
"""Most live sessions of a load: each needs a socket, and a prompt that is planned before the load."""
_MAX_RATE_PER_S = 100_000.0
_MAX_TIME_WARP = 1e6


def problem_of_experiment(experiment: Experiment) -> str | None:
    """The first contradiction or value out of range; None if there is none."""
    for load in experiment.loads:
        if problem := _load_problem(load) or _plan_problem(load, experiment.trial):
            return problem
    if problem := _rules_problem(experiment) or _faults_problem(experiment) or _slo_problem(experiment):
        return problem
    labels = [engine.name for engine in experiment.engines]
    levels = [load.label for load in experiment.loads]
    for engine in experiment.engines:
        if unknown := [label for label in engine.loads if label not in levels]:
            return f"engine '{engine.name}' has the load '{unknown[0]}', which is none of {', '.join(levels)}"
    own_arrivals = [each for each in experiment.classes if each.arrival is not None]
    checks = (
        (_is_name(experiment.name), "name may only have letters, digits, '.', '-' and '_', and not begin with '.'"),
        (bool(labels), "engines is empty; give at least one [[engines]]"),
        (len(set(labels)) == len(labels), f"two engines share a label ({', '.join(labels)}); set label"),
        (all(map(_is_name, labels)), "a label may only have letters, digits, '.', '-' and '_', and not begin with '.'"),
        (bool(experiment.loads), "loads is empty; give at least one [[loads]]"),
        (experiment.repeats >= 1, "repeats must be at least 1"),
        (experiment.trial.duration_s > 0, "trial.duration_s must be above 0"),
        (0 <= experiment.trial.max_foreign_share <= 1, "trial.max_foreign_share must be between 0 and 1"),
        (experiment.trial.warm_up_s >= 0, "trial.warm_up_s must not be negative"),
        (experiment.client.workers >= 1, "client.workers must be at least 1"),
        (experiment.client.workers <= MAX_WORKERS, f"client.workers must be at most {MAX_WORKERS}"),
        (all(_is_bound(experiment.slo)), "each bound of slo must be a number of seconds above 0"),
        (_is_cluster(experiment.client.ray), "client.ray must be 'auto' or the host:port of a Ray cluster's head"),
        (experiment.client.transport in _TRANSPORTS, f"client.transport must be one of {', '.join(_TRANSPORTS)}"),
        (
            len(experiment.client.cores) in {0, experiment.client.workers},
            "client.cores must name one core for each of client.workers",
        ),
        (experiment.quality.samples >= 0, "quality.samples must not be negative"),
        (experiment.quality.limit_s > 0, "quality.limit_s must be above 0"),
        (experiment.trial.ramp_s >= 0, "trial.ramp_s must not be negative"),
        (
            experiment.trial.max_window_s >= experiment.trial.duration_s,
            "trial.max_window_s must be at least trial.duration_s",
        ),
        (
            experiment.trial.max_requests is None or experiment.trial.max_requests >= 1,
            "trial.max_requests must be at least 1",
        ),
        (len(set(levels)) == len(levels), "two loads are equal; remove one"),
        (
            len({each.name for each in experiment.classes}) == len(experiment.classes),
            "two classes have the same name; rename one",
        ),
        (
            all(_is_name(each.name) for each in experiment.classes),
            "the name of a class may only have letters, digits, '.', '-' and '_', and not begin with '.'",
        ),
        (
            not (
                strange := {load.only for load in experiment.loads}
                - {None, *(each.name for each in experiment.classes)}
            ),
            f"a load has only = '{min(map(str, strange), default='')}', which is no class; name one of [[classes]]",
        ),
        (
            any(load.only is None for load in experiment.loads),
            "every load is of one class alone; leave out only, or the other classes",
        ),
        (
            not experiment.classes or all(load.arrival != "workload" for load in experiment.loads),
            "classes have no arrivals of a workload; give the load an arrival process, such as poisson",
        ),
        (
            not own_arrivals or all(load.concurrency is None and is_steady(load) for load in experiment.loads),
            "classes with an arrival of their own need an open loop of one rate; give each load arrival = 'poisson'",
        ),
        (
            not (varying := [each.arrival for each in own_arrivals if each.arrival in {*VARYING_ARRIVALS, "workload"}]),
            f"a class cannot have the arrival '{next(iter(varying), '')}', which has no steady rate; use the load's",
        ),
        (
            all(each.arrival is not None or not each.arrival_options for each in experiment.classes),
            "arrival_options of a class belong to its arrival; give it, too",
        ),
        (all(all(_is_bound(each.slo)) for each in experiment.classes), "each bound of slo must be a number above 0"),
        (
            len({share.name for share in experiment.workload.models}) == len(experiment.workload.models),
            "workload.models names a model twice; add its weights",
        ),
        (
            not experiment.profile or not any(len(engine.replica_labels) > 1 for engine in experiment.engines),
            "an engine with several urls or replicas cannot be profiled; give one server",
        ),
        (experiment.profile or not experiment.kernels, "kernels belong to profiled trials; set profile = true"),
    )
    return next((problem for is_ok, problem in checks if not is_ok), None)


def _slo_problem(experiment: Experiment) -> str | None:
    """What is wrong with the bounds of requests and trials."""
    if not experiment.request.stream and experiment.slo not in {Slo(), Slo(e2e_s=experiment.slo.e2e_s)}:
        return "answers that are not streamed have an e2e alone; bound that, or let them be streamed"
    try:
        required = [each for text in experiment.objectives for each in objectives(text)]
    except NotComparable as error:
        return f"objectives: {error}"
    return missing_bounds(experiment.slo, required)


def _is_bound(slo: Slo) -> Iterator[bool]:
    """For each bound that is set: whether a request can meet it."""
    values: list[float | None] = [getattr(slo, name) for name in slo.__struct_fields__]
    return (0 < value < math.inf for value in values if value is not None)


def _plan_problem(load: Load, trial: TrialConfig) -> str | None:
    """Refuse a load whose plan takes hours: nothing would be heard of the run in that time."""
    if load.rate_per_s is None:
        return None
    planned = load.rate_per_s * (trial.ramp_s + trial.duration_s)
    if trial.max_requests is not None:
        planned = min(planned, trial.max_requests)
    if planned <= MAX_PLANNED:
        return None
    return (
        f"rate_per_s {load.rate_per_s:g} for {trial.ramp_s + trial.duration_s:g} s is a plan of more than "
        f"{MAX_PLANNED:,} requests; lower rate_per_s or trial.duration_s"
    )


def _faults_problem(experiment: Experiment) -> str | None:
    """The first reason why faults cannot be caused as the experiment says; None if they can."""
    faults, names = experiment.faults, [engine.name for engine in experiment.engines]
    unknown = [fault.engine for fault in faults if fault.engine not in {None, *names}]
    kills, closed = any(fault.action.kills for fault in faults), any(load.concurrency for load in experiment.loads)
    checks = (
        (not unknown, f"faults: there is no engine '{next(iter(unknown), None)}'; choose from {', '.join(names)}"),
        (
            not faults or all(map(is_steady, experiment.loads)),
            "faults need a load that does not change by itself; give an arrival such as poisson",
        ),
        (
            not (kills and closed),
            "faults: slots of a closed loop would try a dead replica again at once, for ever; give rate_per_s",
        ),
        (not (faults and experiment.profile), "faults disturb what a profile shows; leave one of them out"),
    )
    problems = [problem for is_ok, problem in checks if not is_ok]
    problems += filter(None, (problem_of_fault(fault, experiment.trial.duration_s) for fault in faults))
    for engine in experiment.engines:
        own, trials = experiment.faults_of(engine), experiment.repeats * len(engine.loads or experiment.loads)
        problems += filter(None, (problem_of_engine(fault, engine.name, engine, trials) for fault in own))
        problems += filter(None, [problem_of_starts(own, engine.name, engine), overlap_of(own)])
    return next(iter(problems), None)


def _rules_problem(experiment: Experiment) -> str | None:
    rules = experiment.rules_of_play
    if rules.start is Start.LONG_RUN:
        return None
    if any(load.concurrency is None for load in experiment.loads):
        return f"rules '{rules.name}' keep a number of sessions alive; give each load concurrency"
    if experiment.trial.cache is not Cache.COLD:
        return f"rules '{rules.name}' say what the cache holds; leave out trial.cache"
    return None


def _load_problem(load: Load) -> str | None:
    slots, rate, cap = load.concurrency, load.rate_per_s, load.max_in_flight
    is_recorded = load.arrival == "workload"
    checks = (
        (rate is None or rate > 0, f"rate_per_s must be above 0, not {rate}"),
        (rate is None or rate <= _MAX_RATE_PER_S, f"rate_per_s must be at most {_MAX_RATE_PER_S:g}, not {rate}"),
        (slots is None or slots <= _MAX_SLOTS, f"concurrency must be at most {_MAX_SLOTS}, not {slots}"),
        (slots is not None or load.arrival or rate is None, "a load with rate_per_s needs arrival, such as 'poisson'"),
        ((slots is None) != (load.arrival is None), "a load has either concurrency or rate_per_s with arrival"),
        (slots is None or slots >= 1, f"concurrency must be at least 1, not {slots}"),
        (slots is None or rate is None, "rate_per_s belongs to a load with arrival, not to one with concurrency"),
        (slots is not None or is_recorded or rate is not None, f"arrival '{load.arrival}' needs rate_per_s"),
        (load.time_warp is None or is_recorded, "time_warp belongs to a load with arrival = 'workload'"),
        (load.time_warp is None or rate is None, "a load has either time_warp or rate_per_s"),
        (load.time_warp is None or load.time_warp > 0, f"time_warp must be above 0, not {load.time_warp}"),
        (
            load.time_warp is None or load.time_warp <= _MAX_TIME_WARP,
            f"time_warp must be at most {_MAX_TIME_WARP:g}, not {load.time_warp}",
        ),
        (not load.arrival_options or not (is_recorded or slots), "arrival_options belong to a named arrival process"),
        (cap is None or slots is None, "max_in_flight belongs to a load with arrival"),
        (cap is None or cap >= 1, f"max_in_flight must be at least 1, not {cap}"),
    )
    return next((problem for is_ok, problem in checks if not is_ok), None)


def _is_cluster(address: str | None) -> bool:
    host, _, port = (address or "auto").rpartition(":")
    return address in {None, "", "auto"} or (bool(host) and "/" not in host and port.isdecimal())


def _is_name(text: str) -> bool:
    return bool(text) and text.replace("-", "").replace("_", "").replace(".", "").isalnum() and text[0] != "."
