"""Sessions in the long run: worked by hand, and against sessions that are timed twice, with answers and without."""

import random
from collections.abc import Sequence

import msgspec
import pytest

from bakeoff.results.metrics import trial_metrics
from bakeoff.results.metrics.closed_loop import delays
from bakeoff.results.metrics.declaration import TrialData
from bakeoff.results.metrics.requests import sessions_of
from bakeoff.results.metrics.throughput import share_inside
from bakeoff.results.metrics.trial import data_over, long_run_metrics
from bakeoff.results.metrics.values import Value
from bakeoff.results.records import Load, Outcome, Phase, RequestRecord, Slo, TrafficRecord, TrialRecord, Window
from bakeoff.results.requests import Requests
from bakeoff.results.units import NS_PER_S
from tests.results.handmade import MS, request, trial

S = 1000
CLOSED, OPEN = Load(concurrency=4), Load(rate_per_s=0.5, arrival="poisson")


def call(index: int, turn: int, planned_s: float, ended_s: float, **changes: object) -> RequestRecord:
    made = request(planned_s * S, [ended_s * S], [10], index=index)
    return msgspec.structs.replace(made, turn=turn, **changes)  # type: ignore[arg-type]


def planned(load: Load, *, turns: float = 8.0, tool_s: float | None = 30.0) -> TrialRecord:
    traffic = TrafficRecord(
        sha256="", sessions=1, requests=1, prompt_tokens=1, output_tokens=1, repeated_tokens=0, block_tokens=16,
        turns=turns, session_tool_s=tool_s,
    )  # fmt: skip
    return msgspec.structs.replace(trial(load, issue_end=100 * S), traffic=traffic)


def of(record: TrialRecord, requests: Sequence[RequestRecord]) -> dict[str, Value]:
    return trial_metrics(record, requests, [], Slo())


def delays_s(requests: Sequence[RequestRecord]) -> dict[int, float]:
    data = TrialData(Requests(requests), Window(0, 1), Slo(), share_inside)
    return {index: delay_ns / NS_PER_S for index, delay_ns in delays(data).items()}


CONVERSATION = [
    call(0, 0, 0, 2, session="a"),
    call(1, 1, 12, 13, session="a"),
    call(2, 2, 90, 93, session="a", outcome=Outcome.HTTP_ERROR, chunk_tokens=[0]),
    call(8, 0, 5, 7, session="b"),
]


def test_a_session_is_its_pauses_in_the_plan_and_its_answers_in_the_window() -> None:
    """Four requests took 2, 1, 3 and 2 s, so eight took 16 s, beside the 30 s that the plan has of pauses.

    Four slots start 4 / 46 sessions per second, of whose requests three quarters succeed; 7.5 tokens a request are 60 a
    session. The 77 s of pause in the window say nothing.
    """
    known = of(planned(CLOSED), CONVERSATION)
    assert {name: known[name].value for name in ("session_s", "session_tool_s", "session_server_s")} == {
        "session_s": 46.0, "session_tool_s": 30.0, "session_server_s": 16.0
    }  # fmt: skip
    assert known["session_stretch"].value == pytest.approx(46 / 30)
    assert known["sessions_per_hour"].value == pytest.approx(3600 * 4 / 46 * 0.75)
    assert known["tokens_per_s_per_session"].value == pytest.approx(8 * 7.5 / 46)


def test_an_open_loop_starts_sessions_at_its_rate() -> None:
    known = of(planned(OPEN), CONVERSATION)
    assert known["session_s"].value == 46.0
    assert known["sessions_per_hour"].value == 3600 * 0.5 * 0.75


def test_where_agents_work_at_once_the_last_to_end_delays_the_session() -> None:
    """With answers at once, the calls would end at 0, 1, 1, 3 and 2 s, and the session at 3 instead of 12 s."""
    tree = [
        call(0, 0, 0, 2, parents=()),
        call(1, 1, 3, 6, parents=(0,), agent="a"),
        call(2, 2, 3, 9, parents=(0,), agent="b"),
        call(3, 3, 11, 12, parents=(1, 2)),
        call(4, 4, 4, 5, parents=(0,), agent="background"),
    ]
    assert delays_s(tree) == {0: 2.0, 4: 1.0, 1: 1.0, 2: 3.0, 3: 2.0}
    assert sum(delays_s(tree).values()) == 12 - 3


def test_delays_of_a_whole_session_are_its_duration_less_that_with_answers_at_once() -> None:
    rng = random.Random(1)
    for _ in range(200):
        calls: list[tuple[tuple[int, ...], float, float]] = []
        for number in range(rng.randint(1, 9)):
            parents = tuple(sorted(rng.sample(range(number), rng.randint(1, min(number, 3))))) if number else ()
            calls.append((parents, rng.uniform(0, 5) if number else 0.0, rng.expovariate(0.5)))
        ends_s = [0.0] * len(calls)
        pauses_s = [0.0] * len(calls)
        requests: list[RequestRecord] = []
        for number, (parents, pause_s, answer_s) in enumerate(calls):
            start_s = max((ends_s[parent] for parent in parents), default=0.0) + pause_s
            ends_s[number] = start_s + answer_s
            pauses_s[number] = max((pauses_s[parent] for parent in parents), default=0.0) + pause_s
            requests.append(call(number, number, start_s, ends_s[number], parents=parents))
        rng.shuffle(requests)
        assert sum(delays_s(requests).values()) == pytest.approx(max(ends_s) - max(pauses_s), abs=1e-6)


def test_a_session_that_began_before_the_load_is_compared_from_then_on() -> None:
    """Calls 7 and 8 waited for calls that no log has; call 9 waits for both, a second after the later one."""
    begun = [
        call(-5, 7, 1, 4, parents=(5,), phase=Phase.RAMP),
        call(-4, 8, 6, 8, parents=(3, 6), phase=Phase.RAMP),
        call(-3, 9, 9, 10, parents=(7, 8), phase=Phase.RAMP),
    ]
    assert delays_s(begun) == {-5: 3.0, -4: -1.0, -3: 1.0}, "from 1 to 10 s, where pauses alone end at 7 s"


def test_a_trace_may_be_in_a_trial_several_times() -> None:
    """Of a session of 40 turns: from turn 3 on without turn 4, from turn 30 on, and twice from the start."""
    several = [
        call(-99, 3, 0, 1, phase=Phase.RAMP),
        call(-98, 5, 2, 3, parents=(3,), phase=Phase.RAMP),
        call(-63, 30, 0, 2, phase=Phase.RAMP),
        call(-62, 31, 4, 5, phase=Phase.RAMP),
        call(-53, 0, 3, 7, phase=Phase.RAMP),
        call(0, 0, 10, 15),
        call(40, 0, 11, 18, cycle=1),
    ]
    assert [len(session) for session in sessions_of(reversed(several))] == [2, 2, 1, 1, 1]
    assert delays_s(several) == {-99: 1.0, -98: 1.0, -63: 2.0, -62: 1.0, -53: 4.0, 0: 5.0, 40: 7.0}


@pytest.mark.parametrize(
    ("record", "requests", "reason"),
    [
        (trial(CLOSED, issue_end=100 * S), CONVERSATION, "the run does not say how its sessions were planned"),
        (planned(CLOSED, turns=1.0), CONVERSATION, "no session has several requests"),
        (
            planned(OPEN, tool_s=None), CONVERSATION,
            "sessions have no long run under a load that changes, and none is stored by earlier versions",
        ),
        (planned(CLOSED), [call(0, 0, 200, 201)], "no request was planned inside the window"),
        (planned(CLOSED, tool_s=0.0), [call(0, 0, 1, 1)], "the sessions took no time"),
    ],
)  # fmt: skip
def test_without_sessions_there_is_a_reason(
    record: TrialRecord, requests: Sequence[RequestRecord], reason: str
) -> None:
    known = of(record, requests)
    for name in ("sessions_per_hour", "session_s", "session_tool_s", "session_server_s", "tokens_per_s_per_session"):
        assert known[name].reason == reason


def test_without_pauses_there_is_no_stretch() -> None:
    assert of(planned(CLOSED, tool_s=0.0), CONVERSATION)["session_stretch"].reason == "sessions have no pauses"


def over(requests: Sequence[RequestRecord]) -> dict[str, Value]:
    data = data_over(planned(CLOSED), Requests(CONVERSATION), Requests(requests), Slo())
    return long_run_metrics(data, with_rates=False)


def test_a_part_of_the_requests_keeps_the_delays_that_they_have_in_the_whole_load() -> None:
    """The second and the third request took 1 and 3 s: eight of them take 16 s, and those of their own 24 s."""
    part = over(CONVERSATION[1:3])
    assert (part["session_server_s"].value, part["session_s"].value) == (16.0, 46.0)
    assert over(CONVERSATION[2:3])["session_server_s"].value == 24.0
    assert CONVERSATION[1].planned_ns == 12_000 * MS
