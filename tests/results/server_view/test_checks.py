"""Checks of the engine's counters against a trial."""

import pytest

from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import warning
from bakeoff.results.records import Outcome, TelemetryRecord
from bakeoff.results.requests import Requests
from bakeoff.results.server_view import Fall, fall, tokens_disagree
from tests.results.handmade import request
from tests.results.readings import failed, reading


def course(*levels: float, name: str = "output_tokens_total") -> list[TelemetryRecord]:
    return [reading(t_s, **{name: level}) for t_s, level in enumerate(levels)]


def test_counters_that_only_rise_never_fell():
    assert fall(course(0, 10, 10, 500)) is None
    assert fall([]) is None
    assert fall([reading(0, running=5, ttft_s_sum=2.0), reading(1, running=0, ttft_s_sum=1.0)]) is None  # no counters


def test_a_restart_is_the_deepest_fall():
    telemetry = [
        reading(0, output_tokens_total=1000, ttft_s_count=20),
        failed(1, "ConnectionRefusedError"),
        reading(2, output_tokens_total=30, ttft_s_count=1),
        reading(3, output_tokens_total=80, ttft_s_count=3),
    ]
    assert fall(telemetry) == Fall("output_tokens_total", 1000, 30, several=False)


def test_a_counter_that_is_back_at_once_is_another_servers():
    assert fall(course(1000, 40, 1010, 20)) == Fall("output_tokens_total", 1010, 20, several=True)


def test_a_restart_after_which_the_engine_made_as_much_again_is_still_one():
    restart = fall(course(1000, 0, 300, 600, 900, 1200))
    assert restart is not None
    assert not restart.several


def marked(before: float, after: float) -> list[TelemetryRecord]:
    return [reading(0, "before", output_tokens_total=before), reading(9, "after", output_tokens_total=after)]


HUNDRED = [request(0, [1, 2], [50, 50])]


@pytest.mark.parametrize("made", [99, 100, 101])
def test_token_counts_that_agree_are_no_news(made: int):
    assert tokens_disagree(marked(7, 7 + made), Requests(HUNDRED)) is None


@pytest.mark.parametrize("made", [50, 102])
def test_an_engine_that_counted_other_tokens_than_the_client_is_a_warning(made: int):
    assert tokens_disagree(marked(7, 7 + made), Requests(HUNDRED)) == warning(
        FindingCode.COUNTERS_DISAGREE, engine_tokens=made, client_tokens=100
    )


def test_where_one_count_is_not_known_nothing_is_said():
    assert tokens_disagree([], Requests(HUNDRED)) is None
    assert tokens_disagree(marked(0, 500), Requests()) is None
    assert tokens_disagree(marked(0, 500), Requests([*HUNDRED, request(0, outcome=Outcome.TIMEOUT)])) is None
