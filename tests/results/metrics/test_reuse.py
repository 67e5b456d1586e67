"""Generated tokens that the next call of their conversation finds in the cache."""

from bakeoff.results.metrics.reuse import reuses
from bakeoff.results.records import Outcome, Phase, RequestRecord
from bakeoff.results.requests import Requests


def request(turn: int, prompt: int, output: int, cached: int | None, **fields: object) -> RequestRecord:
    values = {"index": turn, "phase": Phase.MEASURED, "session": "s", "planned_ns": turn, "ended_ns": turn + 1}
    counts = {"prompt_tokens": prompt, "output_tokens": output, "cached_tokens": cached}
    return RequestRecord(**{**values, "turn": turn, "outcome": Outcome.OK, **counts, **fields})  # type: ignore[arg-type]


def found(*requests: RequestRecord) -> list[tuple[int, int]]:
    return [tuple(reuse) for reuse in reuses(Requests(requests), Requests(requests))]


def test_what_is_cached_beyond_the_previous_prompt_was_generated():
    assert found(request(0, 100, 20, 0), request(1, 150, 30, 96), request(2, 200, 5, 176)) == [(20, 0), (30, 26)]


def test_no_more_is_reused_than_was_generated():
    assert found(request(0, 100, 20, 0), request(1, 150, 30, 144)) == [(20, 20)]


def test_agents_and_cycles_do_not_mix():
    child = request(1, 40, 10, 0, agent="a", index=7)
    again = request(1, 150, 10, 100, cycle=1, index=8)
    assert found(request(0, 100, 20, 0), child, again, request(2, 150, 30, 110)) == [(20, 10)]


def test_sessions_of_one_name_in_ramp_and_window_do_not_mix():
    ramp = [
        request(turn, 100 + 50 * turn, 20, 0, phase=Phase.RAMP, index=-9 + turn, planned_ns=turn) for turn in (0, 1)
    ]
    again = request(0, 100, 30, 0, phase=Phase.RAMP, index=-4, planned_ns=3)
    followed = request(1, 150, 30, 110, phase=Phase.RAMP, index=-3, planned_ns=4)
    window = [request(turn, 100 + 50 * turn, 40, 96, planned_ns=2 + 3 * turn) for turn in (0, 1)]
    assert found(*ramp, again, followed, *window) == [(20, 0), (30, 10), (40, 0)]


def test_compacted_histories_failed_calls_and_silent_engines_tell_nothing():
    assert found(request(0, 100, 20, 0), request(1, 50, 5, 48)) == []
    assert found(request(0, 100, 20, 0, outcome=Outcome.TIMEOUT), request(1, 150, 5, 48)) == []
    assert found(request(0, 100, 20, None), request(1, 150, 5, None)) == []
