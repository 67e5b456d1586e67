"""Compare two engines, after checking that conditions were equal and that both did the same work.

Metrics are compared over the requests that both sides served (:mod:`bakeoff.results.compare.common_part`).

One metric at one load is primary, fixed before any data is seen. Others are guardrails, whose judgements are corrected
for multiplicity; the rest are judged by themselves and decide no gate. How the sides were measured decides which noise
applies. Trials of one run were interleaved and are compared as such. If a run reused trials of an earlier one, only
repeats with both trials in one session are paired. Sides of different runs carry the noise between runs
(:mod:`bakeoff.results.statistics.between_runs`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bakeoff.results.compare.common_part import BothSessions, CommonTrial, of_class, over_common_part
from bakeoff.results.compare.comparability import difference, request_difference, series_of
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.primary import primary_load, primary_metric
from bakeoff.results.compare.reliability import Tally, tallies
from bakeoff.results.compare.sides import (
    AnyTrial,
    Side,
    absent_addresses,
    absent_levels,
    apart_s,
    compared_value,
    labels,
    measured_requests,
    starts_unseen,
)
from bakeoff.results.errors import NoEvidence, NotComparable
from bakeoff.results.metric import Metric, Role
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.metrics.catalogue import names_of
from bakeoff.results.metrics.client_error import largest_error_s
from bakeoff.results.metrics.declaration import Needs
from bakeoff.results.metrics.quality import QualitySummary, pooled
from bakeoff.results.records import Load, Slo
from bakeoff.results.run.work import WorkComparison, compare_work
from bakeoff.results.statistics import Comparison, Judgement, compare_runs, compare_sessions, guardrails
from bakeoff.results.statistics.between_runs import MIN_RUNS, NoiseFloor
from bakeoff.results.statistics.change_points import change_points
from bakeoff.results.statistics.comparison import Criteria, Parameters, Reason, of_effect, scale_of
from bakeoff.results.statistics.pooling import Others, Runs, Trials
from bakeoff.results.statistics.two_sample import MIN_PAIRS, Scale
from bakeoff.results.statistics.unseen import Unseen

_FOLLOW_PACE = frozenset(names_of(Role.FOLLOWS_PACE))
_FEW = 10.0
"""Requests that meet the SLO in a mean trial, below which some trial may have none by chance: e^-10 is 0.005 %."""


class EngineComparison(msgspec.Struct, frozen=True):
    """Two engines compared, B against A.

    Attributes:
        a: heading of the baseline.
        b: heading of the candidate.
        primary: comparison of the primary metric.
        comparisons: the primary comparison and the guardrails, level by level.
        answers: level → token match of A's and of B's answers; None where no answer was compared with the reference.
        config: configuration of the comparison.
        work: level → comparison of the work.
        tallies: how often each engine failed trials or starts.
        class_work: comparisons of the work of each class of the traffic.
        absent: load level that one side has and the other lacks → the side that lacks it, A or B.
        absent_addresses: likewise, of several addresses of an engine.
        apart_s: time between the first and the last run; None for one run, or if it is not known.
    """

    a: str
    b: str
    primary: Comparison
    comparisons: list[Comparison]
    answers: dict[str, tuple[QualitySummary | None, QualitySummary | None]]
    config: ComparisonConfig
    work: dict[str, WorkComparison] = {}
    tallies: list[Tally] = []
    class_work: list[WorkComparison] = []
    absent: dict[str, str] = {}
    absent_addresses: dict[str, str] = {}
    apart_s: float | None = None

    @property
    def works(self) -> list[WorkComparison]:
        """The comparisons of the work of all requests and of each class."""
        return [*self.work.values(), *self.class_work]

    def work_at(self, level: str, traffic_class: str | None) -> WorkComparison:
        """The comparison of the work of a class at a level, or of all requests."""
        return next(work for work in self.works if (work.level, work.traffic_class) == (level, traffic_class))

    @property
    def guardrails(self) -> list[Comparison]:
        """The comparisons that count in a gate's outcome besides the primary one."""
        return [one for one in self.comparisons if one is not self.primary and one.is_guardrail]


def compare_sides(a: Side, b: Side, config: ComparisonConfig | None = None, *, check: bool = True) -> EngineComparison:
    """Compare B with A at every load level that was planned for both.

    Args:
        a: the baseline.
        b: the candidate.
        config: configuration of the comparison.
        check: whether to require equal conditions, traffic and weights; engines of one run may serve a model in
            different formats.

    Raises:
        NotComparable: traffic, weights or conditions differ.
        NoEvidence: they have no load level in common.
    """
    config = config or ComparisonConfig()
    shared = _shared(a, b)
    if check:
        _check(a, b, shared)
    main = primary_load(shared)
    if main is None:
        levels = (", ".join(load.label for load in side.loads) or "none" for side in (a, b))
        raise NoEvidence("the two sides have no load level in common: A has {}; B has {}".format(*levels))
    pairs = {load.label: _pair(a, b, load.label, config, loads=len(shared)) for load in shared}
    together = [load.label for load in shared if load.only is None]
    of_classes = {
        name: {label: _class_pair(pairs[label], name, slo, loads=len(shared)) for label in together}
        for name, slo in a.run.manifest.classes.items()
    }
    chosen = config.primary or primary_metric(main, _known(pairs[main.label]))
    primary = _compared(pairs[main.label], CATALOGUE[chosen], pairs)
    others = [
        msgspec.structs.replace(
            _compared(own[load.label], CATALOGUE[name], own), is_guardrail=config.is_guardrail(name)
        )
        for load in shared
        for own in (pairs, *(of_classes.values() if load.only is None else ()))
        for name in _names(own[load.label], load, config)
        if not (own is pairs and load is main and name == chosen)
    ]
    guarded = guardrails(others, config.alpha)
    return EngineComparison(
        *labels(a, b),
        primary=primary,
        comparisons=[
            one
            for load in shared
            for one in (*([primary] if load is main else []), *(one for one in guarded if one.level == load.label))
        ],
        class_work=[pair.work for own in of_classes.values() for pair in own.values()],
        answers={level: (_answers(pair.trials[0]), _answers(pair.trials[1])) for level, pair in pairs.items()},
        config=config,
        work={level: pair.work for level, pair in pairs.items()},
        tallies=tallies(a.records, b.records, pairs, alpha=config.alpha, failures_a=a.failures, failures_b=b.failures),
        absent=absent_levels(a, b),
        absent_addresses=absent_addresses(a, b),
        apart_s=apart_s((a, b)),
    )


def _shared(a: Side, b: Side) -> list[Load]:
    """Loads planned for both with any finished trial, even if all of B's trials are INVALID."""
    planned = {load.label for load in b.loads}
    ended = {record.load.label for record in (*a.records, *b.records)}
    return [load for load in a.loads if load.label in planned & ended]


def _check(a: Side, b: Side, shared: Sequence[Load]) -> None:
    if unequal := difference([run.manifest for run in (*a.runs, *b.runs)]):
        raise NotComparable(f"the two sides differ in {unequal}; measure both under equal conditions")
    records = [*a.records, *b.records]
    weights = {record.engine_description.model_sha256 for record in records if record.engine_description}
    if len(weights) > 1:
        raise NotComparable("the two sides served different weights; give both the same model")
    if unequal := None if a.runs == b.runs else request_difference(records):
        raise NotComparable(f"the two sides differ in {unequal}; send both the same requests")
    for level in (load.label for load in shared):
        if len({(record.workload, record.workload_sha256) for record in records if record.load.label == level}) > 1:
            raise NotComparable(
                f"at {level} the two sides were sent different traffic; use the same workload, seed and limits"
            )


class _Pair(msgspec.Struct, frozen=True):
    """Both sides at one load.

    Attributes:
        sides: A and B.
        level: label of the load.
        sessions: valid trials of each side at the load, by session, over their common part.
        trials: the same in one list.
        work: comparison of the work.
        config: configuration of the comparison.
        traffic_class: the class of the traffic whose requests count; None for all.
    """

    sides: tuple[Side, Side]
    level: str
    sessions: BothSessions
    trials: tuple[list[AnyTrial], list[AnyTrial]]
    work: WorkComparison
    config: ComparisonConfig
    traffic_class: str | None = None


def _pair(a: Side, b: Side, level: str, config: ComparisonConfig, *, loads: int) -> _Pair:
    sessions = over_common_part(a.valid_sessions(level), b.valid_sessions(level), a.run.manifest.slo)
    return _pair_of((a, b), level, sessions, config, alpha=config.alpha / loads)


def _class_pair(pair: _Pair, traffic_class: str, slo: Slo, *, loads: int) -> _Pair:
    of_a, of_b = (side.valid_sessions(pair.level) for side in pair.sides)
    sessions, alpha = of_class(of_a, of_b, traffic_class, slo), pair.config.alpha / loads
    return _pair_of(pair.sides, pair.level, sessions, pair.config, alpha=alpha, traffic_class=traffic_class)


def _pair_of(
    sides: tuple[Side, Side],
    level: str,
    sessions: BothSessions,
    config: ComparisonConfig,
    *,
    alpha: float,
    traffic_class: str | None = None,
) -> _Pair:
    trials_a, trials_b = ([trial for session in side.values() for trial in session] for side in sessions)
    works_a, works_b = ([trial.work for trial in trials] for trials in (trials_a, trials_b))
    work = compare_work(level, works_a, works_b, band=config.work_band, alpha=alpha)
    work = msgspec.structs.replace(work, traffic_class=traffic_class)
    return _Pair(sides, level, sessions, (trials_a, trials_b), work, config, traffic_class)


def _known(pair: _Pair) -> set[str]:
    """Names of the metrics that any trial has."""
    trials = [trial for side in pair.trials for trial in side]
    return {name for name in CATALOGUE if any(trial.metrics[name].value is not None for trial in trials)}


def _names(pair: _Pair, load: Load, config: ComparisonConfig) -> list[str]:
    """Metrics to compare; a class has only those of single requests."""
    names = config.names_at(load, _known(pair))
    return names if pair.traffic_class is None else [name for name in names if CATALOGUE[name].needs is Needs.PLANNED]


def _answers(trials: Sequence[AnyTrial]) -> QualitySummary | None:
    records = [trial.quality for trial in trials]
    return pooled(sample for record in records if record for sample in record.samples)


def _compared(pair: _Pair, metric: Metric, pairs: Mapping[str, _Pair]) -> Comparison:
    """Compare a metric at one load; ``pairs`` has all loads."""
    return msgspec.structs.replace(_judged(pair, metric, pairs), traffic_class=pair.traffic_class)


def _judged(pair: _Pair, metric: Metric, pairs: Mapping[str, _Pair]) -> Comparison:
    for trials, side in zip(pair.trials, "AB", strict=True):
        reasons = [trial.metrics[metric.name].reason for trial in trials if compared_value(trial, metric.name) is None]
        if reasons:
            parameters: Parameters = {"side": side, "absent_trials": len(reasons), "trials": len(trials)}
            parameters["detail"] = reasons[0] or ""
            return of_effect(metric, pair.level, None, Judgement.UNCLEAR, Reason.ABSENT, parameters=parameters)
    comparison = _measured(pair, metric, pairs)
    if Role.PER_TOKEN in metric.roles or (pair.work.is_equal and pair.work.mix is None):
        return comparison
    reason = Reason.OTHER_REQUESTS if pair.work.is_equal else Reason.UNEQUAL_WORK
    return msgspec.structs.replace(comparison, judgement=Judgement.UNCLEAR, reason=reason, parameters={})


def _measured(pair: _Pair, metric: Metric, pairs: Mapping[str, _Pair]) -> Comparison:
    """Compare with the test that fits the way in which the sides were measured."""
    criteria, level = _criteria(pair, metric), pair.level
    own, loads, metrics = _values(pair, metric.name), *_sharing_noise(pair, metric.name, pairs)
    of_a, of_b = own
    if of_a.keys() == of_b.keys() and len(of_a) == 1:
        values_a, values_b = _in_one_session(own)
        return compare_runs(
            metric, level, values_a, values_b, interleaved=True, criteria=criteria,
            others=Others[Trials]([_in_one_session(one) for one in loads], [_in_one_session(one) for one in metrics]),
            unseen=_of_starts(pair, metric),
        )  # fmt: skip
    common = _common(own)
    if len(common) >= MIN_PAIRS:
        of_loads, of_metrics = (
            [_in_pairs(one, common) for one in kind if _common(one) == common] for kind in (loads, metrics)
        )
        paired_a, paired_b = _in_pairs(own, common)
        return compare_runs(
            metric, level, paired_a, paired_b, interleaved=True, only_pairs=True, criteria=criteria,
            others=Others[Trials](of_loads, of_metrics), unseen=_of_starts(pair, metric),
        )  # fmt: skip
    runs_a, runs_b = _in_runs(own)
    baseline = _since_last_step(runs_a)
    floor = _floor(pair, metric.name) if len(baseline) < MIN_RUNS else None
    in_loads, in_metrics = ([_in_runs(one, newest=len(baseline)) for one in kind] for kind in (loads, metrics))
    return compare_sessions(
        metric, level, baseline, runs_b, floor=floor, unseen_sd=pair.config.unseen_sd, criteria=criteria,
        others=Others[Runs](in_loads, in_metrics),
    )  # fmt: skip


def _criteria(pair: _Pair, metric: Metric) -> Criteria:
    return Criteria(
        alpha=pair.config.alpha,
        band=pair.config.band_of(metric),
        error=largest_error_s(metric.name, (*pair.trials[0], *pair.trials[1])),
        min_error=_min_error(pair, metric),
        detect=pair.config.detect,
        zeros_by_chance=metric.name == "goodput_per_s" and sum(map(_met, pair.trials[0])) < _FEW * len(pair.trials[0]),
    )


def _of_starts(pair: _Pair, metric: Metric) -> Unseen | None:
    """The noise between starts that the trials do not show; None if all had a start of their own."""
    sd = pair.config.unseen_sd if scale_of(metric) is Scale.RATIO else None
    return starts_unseen(pair.sessions, sd, lambda: _floor(pair, metric.name))


_Values = tuple[dict[str, dict[int, float]], dict[str, dict[int, float]]]
"""Session → repeat → value, of A and of B."""


def _sharing_noise(pair: _Pair, name: str, pairs: Mapping[str, _Pair]) -> tuple[list[_Values], list[_Values]]:
    """The metric at other loads, and those that follow from the same times at all loads, in the same sessions.

    They do not depend on what the user asks to compare, so every command judges a metric alike.
    """
    own = [side.keys() for side in _values(pair, name)]

    def at(other: _Pair, names: Iterable[str]) -> list[_Values]:
        every = [_values(other, other_name) for other_name in names]
        return [values for values in every if [side.keys() for side in values] == own]

    related = _FOLLOW_PACE - {name} if name in _FOLLOW_PACE else ()
    loads = [values for other in pairs.values() if other is not pair for values in at(other, [name])]
    return loads, [values for other in pairs.values() for values in at(other, sorted(related))]


def _values(pair: _Pair, name: str) -> _Values:
    of_a, of_b = (_by_session(sessions, name) for sessions in pair.sessions)
    return of_a, of_b


def _in_one_session(values: _Values) -> Trials:
    (of_a,), (of_b,) = (side.values() for side in values)
    return of_a, of_b


def _common(values: _Values) -> list[tuple[str, int]]:
    """Session and repeat of the trials that both sides have."""
    of_a, of_b = values
    return sorted((session, repeat) for session in of_a for repeat in of_a[session] if repeat in of_b.get(session, {}))


def _in_pairs(values: _Values, common: Sequence[tuple[str, int]]) -> Trials:
    of_a, of_b = ({number: side[session][repeat] for number, (session, repeat) in enumerate(common)} for side in values)
    return of_a, of_b


def _in_runs(values: _Values, newest: int = 0) -> Runs:
    """The values run by run, of A those of the newest runs only; 0 for all."""
    runs_a, runs_b = ([list(of_run.values()) for of_run in side.values()] for side in values)
    return runs_a[-newest:], runs_b


def _by_session(sessions: Mapping[str, Sequence[AnyTrial]], name: str) -> dict[str, dict[int, float]]:
    """Session → repeat → value."""
    return {
        session: {trial.record.repeat: value for trial in trials if (value := compared_value(trial, name)) is not None}
        for session, trials in sessions.items()
    }


def _min_error(pair: _Pair, metric: Metric) -> float:
    """Lower bound of a count's standard error: one request per trial; for failures, one over all trials.

    Goodput is compared as a ratio to the requests that met the SLO, the other counts to all requests.
    """
    if metric.name == "right_share":
        return _score_error(pair)
    counts_at_a_bound = Role.COUNTS_AT_A_BOUND in metric.roles
    if not (counts_at_a_bound or metric.name == "failures") or not all(pair.trials):
        return 0.0
    trials = [trial for side in pair.trials for trial in side]
    if metric.name == "requests_per_s" and all(isinstance(trial, CommonTrial) and trial.has_rates for trial in trials):
        return 0.0  # no request lies at the edge of a window
    counted = _met if metric.name == "goodput_per_s" else measured_requests
    requests = [sum(map(counted, trials)) for trials in pair.trials]
    if counts_at_a_bound:
        requests = [count / len(trials) for count, trials in zip(requests, pair.trials, strict=True)]
    return 1 / max(1.0, min(requests))


def _score_error(pair: _Pair) -> float:
    """Standard error of the difference of two shares of right answers.

    Every repeat asks the same questions, so repeats show no part of the luck in which questions were asked: the error
    is that of one trial's questions, each side binomial. An answer that no rounding changes is right in every repeat.
    """
    variance, least = 0.0, 0.0
    for trials in pair.trials:
        shares = [share for trial in trials if (share := trial.metrics["right_share"].value) is not None]
        questions = sum(trial.work.scored for trial in trials) / max(1, len(trials))
        if not shares or not questions:
            return 0.0
        share = sum(shares) / len(shares)
        variance += share * (1 - share) / questions
        least = max(least, 1 / questions)
    return max(math.sqrt(variance), least)


def _met(trial: AnyTrial) -> float:
    """Number of requests that met the SLO; 0 if it is unknown."""
    return measured_requests(trial) * (trial.metrics["attainment"].value or 0.0)


def _since_last_step(runs: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]:
    """The runs after the baseline's last change point; earlier ones belong to another level."""
    means = [sum(values) / len(values) for values in runs]
    if not all(mean > 0 for mean in means):
        return runs
    steps = change_points(means)
    return runs[steps[-1].index :] if steps else runs


def _floor(pair: _Pair, name: str) -> NoiseFloor | None:
    candidate = pair.sides[1]
    if not pair.trials[1] or pair.traffic_class is not None:
        return None  # floors are of all requests
    cells = {cell.series: cell for side in pair.sides for cell in side.known_floors()}
    cell = cells.get(series_of(candidate.run.manifest, pair.trials[1][0].record))
    return cell.of(name) if cell else None
