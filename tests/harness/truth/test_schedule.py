"""The timetable: when things are due, what is drawn, and what is refused."""

import itertools
import math
from typing import Any

import msgspec
import pytest

from bakeoff.harness.errors import BadSchedule
from bakeoff.harness.truth import Fault, Schedule


def test_due_times_are_exact_to_the_nanosecond_however_long_the_answer():
    schedule = Schedule(ttft_s=0.5, itl_s=0.1)
    assert [schedule.due_ns(1_000, chunk) for chunk in (0, 1, 2)] == [500_001_000, 600_001_000, 700_001_000]
    assert schedule.due_ns(7, 1_000_000) == 100_000_500_000_007
    assert schedule.dues_ns(1_000, 0, 3) == [500_001_000, 600_001_000, 700_001_000]


def test_jitter_is_drawn_per_request_and_the_same_every_time():
    schedule = Schedule(ttft_s=1.0, itl_s=0.01, jitter="exponential", seed=3)
    dues_ns = schedule.dues_ns(0, 7, 5001)
    assert dues_ns[0] == 1_000_000_000
    assert schedule.dues_ns(0, 7, 5001) == dues_ns
    assert schedule.dues_ns(0, 8, 5001) != dues_ns
    assert msgspec.structs.replace(schedule, seed=4).dues_ns(0, 7, 5001) != dues_ns
    gaps_s = [(b - a) / 1e9 for a, b in itertools.pairwise(dues_ns)]
    mean = sum(gaps_s) / 5000
    assert mean == pytest.approx(0.01, rel=0.06)  # 4 standard errors of an exponential's mean
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps_s) / 5000)
    assert deviation == pytest.approx(mean, rel=0.1)  # an exponential's is its mean


def test_faults_have_their_shares_and_fall_on_the_same_requests_every_time():
    shares = {Fault.RESET: 0.2, Fault.HTTP_429: 0.1}
    schedule = Schedule(faults=shares, seed=5)
    drawn = [schedule.fault(number) for number in range(4000)]
    assert drawn.count(Fault.RESET) / 4000 == pytest.approx(0.2, abs=0.03)
    assert drawn.count(Fault.HTTP_429) / 4000 == pytest.approx(0.1, abs=0.03)
    assert set(drawn) == {None, Fault.RESET, Fault.HTTP_429}
    turned = Schedule(faults=dict(reversed(shares.items())), seed=5)
    assert [turned.fault(number) for number in range(4000)] == drawn
    assert [Schedule(faults=shares, seed=6).fault(number) for number in range(4000)] != drawn
    assert {Schedule(faults={Fault.STALL: 1.0}).fault(number) for number in range(100)} == {Fault.STALL}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ttft_s": -1}, "ttft_s must be 0 or more seconds, not -1"),
        ({"itl_s": math.nan}, "itl_s must be 0 or more seconds, not nan"),
        ({"ttft_s": math.inf}, "not inf"),
        ({"tokens_per_chunk": 0}, "tokens_per_chunk must be at least 1, not 0"),
        ({"events_per_write": -2}, "events_per_write must be at least 1, not -2"),
        ({"write_bytes": 0}, "write_bytes must be at least 1"),
        ({"jitter": "normal"}, "jitter must be one of none, exponential, not 'normal'"),
        ({"role_chunk": "late"}, "role_chunk must be one of none, with_first, early"),
        ({"usage": "maybe"}, "usage must be one of"),
        ({"faults": {"reset": 0.6, "stall": 0.5}}, "add up to 1.1"),
        ({"faults": {"reset": -0.1}}, "the share of reset must be between 0 and 1, not -0.1"),
        ({"faults": {"explode": 0.1}}, "no fault 'explode'; known: http_429, "),
        ({"stalls": ((1, 2), (2, 1))}, "stall 2:1 begins before the one before it ends"),
        ({"stalls": ((-1, 2),)}, "stall -1:2 must be two numbers of seconds"),
        ({"restart": (1, -1)}, "restart 1:-1 must be two numbers of seconds"),
    ],
)
def test_nonsense_is_refused_in_one_line(fields: dict[str, Any], words: str):
    with pytest.raises(BadSchedule) as raised:
        Schedule(**fields)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_schedule_survives_json():
    schedule = Schedule(0.1, faults={Fault.RESET: 0.5}, stalls=((1.0, 2.0),), restart=(3.0, 1.0), role_chunk="early")
    assert msgspec.json.decode(msgspec.json.encode(schedule), type=Schedule) == schedule
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"tfft_s": 1}', type=Schedule)
