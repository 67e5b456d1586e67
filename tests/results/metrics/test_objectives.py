"""Objectives: the text, the units, what meets them."""

import math

import pytest

from bakeoff.results.errors import NotComparable
from bakeoff.results.metrics import Value, absent
from bakeoff.results.metrics.objectives import Relation, Violation, least_margin, objectives, service_level, violated
from bakeoff.results.records import Slo


def test_objectives_of_a_line_in_the_units_of_their_metrics() -> None:
    latency, pace, share = objectives("ttft_p99<500ms, itl_p50_s<=0.03,attainment >= 99%")
    assert (latency.metric, latency.relation, latency.bound) == ("ttft_p99_s", Relation.BELOW, 0.5)
    assert (pace.metric, pace.relation, pace.bound) == ("itl_p50_s", Relation.AT_MOST, 0.03)
    assert (share.metric, share.relation, share.bound) == ("attainment", Relation.AT_LEAST, 0.99)


@pytest.mark.parametrize(
    ("text", "metric", "bound"),
    [
        ("peak_host<2GiB", "peak_host_bytes", 2.0**31),
        ("output_tokens>800tok/s", "output_tokens_per_s", 800),
        ("e2e_p90<1.5e1s", "e2e_p90_s", 15),
        ("energy_per_output_token<5mJ", "energy_per_output_token_j", 0.005),
        ("failures<=0", "failures", 0),
    ],
)
def test_a_name_may_leave_its_unit_out(text: str, metric: str, bound: float) -> None:
    (objective,) = objectives(text)
    assert objective.metric == metric
    assert objective.bound == pytest.approx(bound)


@pytest.mark.parametrize(("relation", "holds"), [("<", False), ("<=", True)])
def test_the_bound_itself(relation: str, holds: bool) -> None:
    (objective,) = objectives(f"ttft_p50{relation}20ms")
    assert objective.holds(0.02) is holds
    assert objective.holds(0.019)
    assert not objective.holds(0.021)


@pytest.mark.parametrize(("relation", "holds"), [(">", False), (">=", True)])
def test_the_bound_itself_from_above(relation: str, holds: bool) -> None:
    (objective,) = objectives(f"goodput{relation}4")
    assert objective.holds(4.0) is holds
    assert objective.holds(4.1)
    assert not objective.holds(3.9)


def test_what_is_missed_comes_with_its_value() -> None:
    wanted = objectives("ttft_p50<20ms,itl_p99<30ms,e2e_p50<9s")
    late, few = Value(0.025), absent("p99 needs 662 observations")
    assert violated(wanted, {"ttft_p50_s": late, "itl_p99_s": few, "e2e_p50_s": Value(1.0)}) == [
        Violation("ttft_p50<20ms", "ttft_p50_s", late),
        Violation("itl_p99<30ms", "itl_p99_s", few),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft_p99", "'ttft_p99' is not an objective; write it like ttft_p99<500ms"),
        ("", "'' is not an objective"),
        ("ttft_p99<500ms,", "'' is not an objective"),
        ("ttft_p98<1s", "unknown metric 'ttft_p98'"),
        ("ttft_p99<500tok/s", "'tok/s' is not a unit of ttft_p99_s; use s, ms, us, µs"),
        ("ttft_p99<300", "'ttft_p99<300' has no unit; add one of s, ms, us, µs"),
        ("failures<1s", "'s' is not a unit of failures; it has no unit"),
        ("attainment>=99", "'attainment>=99' bounds a share by more than 1; write attainment>=99%"),
        ("ttft_p99>1s", "'ttft_p99>1s' bounds ttft_p99 in the wrong direction: lower is better"),
        ("goodput<1", "higher is better"),
        ("ttft_p90<-1ms", "'ttft_p90<-1ms' bounds ttft_p90 by -1; a bound must be above 0"),
        ("ttft_p99<1.2.3s", "'1.2.3' in 'ttft_p99<1.2.3s' is not a number"),
    ],
)
def test_an_invalid_objective_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(NotComparable) as raised:
        objectives(text)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_margin_is_the_log_of_bound_over_value() -> None:
    upper, lower, share = objectives("ttft_p50<200ms,output_tokens>=100,attainment>=0.9")
    assert upper.margin(0.1) == pytest.approx(math.log(2))
    assert upper.margin(0.4) == pytest.approx(-math.log(2))
    assert lower.margin(200.0) == pytest.approx(math.log(2))
    assert share.margin(0.95) is None, "a share has no noise of its own size"
    assert upper.margin(0.0) is None


def test_the_least_margin_is_known_where_every_one_is() -> None:
    wanted = objectives("ttft_p50<200ms,itl_p50<30ms")
    values = {"ttft_p50_s": Value(0.1), "itl_p50_s": Value(0.02), "attainment": Value(1.0)}
    assert least_margin(wanted, values) == pytest.approx(math.log(1.5))
    assert least_margin([*wanted, *objectives("attainment>0.9")], values) is None
    assert least_margin(wanted, {**values, "itl_p50_s": absent("no token arrived")}) is None


def test_a_name_without_a_statistic_bounds_each_request() -> None:
    requests, (trial,) = service_level(["ttft<500ms, e2e_s <= 20s", "ttft_p90<1s"])
    assert requests == Slo(ttft_s=0.5, e2e_s=20.0)
    assert (trial.metric, trial.bound) == ("ttft_p90_s", 1.0)
    assert service_level("first_visible<2s,tpot<50ms") == (Slo(first_visible_s=2.0, tpot_s=0.05), [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft<500", "'ttft<500' has no unit"),
        ("ttft>500ms", "in the wrong direction"),
        ("tpot<0ms", "a bound must be above 0"),
        ("itl<30ms", "unknown metric 'itl'"),
    ],
)
def test_a_malformed_bound_of_requests_is_refused(text: str, message: str) -> None:
    with pytest.raises(NotComparable, match=message):
        service_level(text)


def test_where_a_trial_is_bounded_a_request_is_not() -> None:
    with pytest.raises(NotComparable, match="bounds each request; bound a percentile of the trial, as in ttft_p90"):
        objectives("ttft<500ms")
