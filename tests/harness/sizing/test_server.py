"""The simulated server against known limits of queueing, and its rules one by one."""

from collections.abc import Sequence

import numpy as np
import pytest

from bakeoff.harness.errors import BadPlan
from bakeoff.harness.sizing.server import Delays, Limits, Request, Served, poisson_s, simulate

STEP_S = 0.01


class Steps:
    """Steps of equal duration, plus a time per prompt token; records its calls."""

    def __init__(self, step_s: float = STEP_S, token_s: float = 0.0) -> None:
        self._step_s, self._token_s = step_s, token_s
        self.calls: list[tuple[int, list[tuple[int, int]]]] = []

    def seconds(self, decodes: int, past: float, prompts: Sequence[tuple[int, int]] = ()) -> float:
        self.calls.append((decodes, list(prompts)))
        return self._step_s + self._token_s * sum(length for length, _ in prompts)


def test_one_request_alone_takes_its_prompt_then_a_step_for_each_further_token():
    served = simulate([Request(100, 5)], Steps(token_s=0.001), Limits())
    assert served.ttft(0.5) == pytest.approx(STEP_S + 0.1)
    assert served.itl(0.5) == STEP_S
    assert served.e2e(0.5) == pytest.approx(STEP_S + 0.1 + 4 * STEP_S)
    assert served.tpot(0.5) == pytest.approx(STEP_S)


def test_time_outside_of_steps_comes_on_top_and_varies():
    requests = [Request(100, 5, 10.0 * i) for i in range(200)]
    served = simulate(requests, Steps(token_s=0.001), Limits(), delays=Delays(request_s=0.02))
    outside = served.ttft_s - STEP_S - 0.1
    assert float(np.mean(outside)) == pytest.approx(0.02, rel=0.01)
    assert float(np.min(outside)) == pytest.approx(0.01, rel=0.05)
    assert float(np.max(outside)) == pytest.approx(0.03, rel=0.05)


def test_a_step_on_an_idle_engine_takes_longer_and_one_behind_another_does_not():
    requests = [Request(100, 5), Request(100, 5, 10.0), Request(100, 5, 10.015)]
    served = simulate(requests, Steps(), Limits(), delays=Delays(idle_s=0.004))
    alone, joining = served.ttft_s  # the first one belongs to the ramp
    assert alone == pytest.approx(STEP_S + 0.004)
    assert joining == pytest.approx(0.004 + 3 * STEP_S - 0.015)


def test_the_front_end_hands_tokens_out_one_after_another():
    """The newest request is last: of two that start together, the second gets its first token a token's time later."""
    served = simulate([Request(1, 5), Request(1, 5)], Steps(), Limits(), delays=Delays(token_s=0.001))
    assert served.ttft_s == pytest.approx([STEP_S + 0.001, STEP_S + 0.002])
    assert served.e2e_s == pytest.approx([5 * STEP_S + 0.001] * 2)


@pytest.mark.parametrize(
    ("request_s", "token_s", "ttft_s"),
    [
        (0.001, 0.0, 2 * STEP_S),  # it misses the step that begins as the last answer ends
        (0.001, 0.001, 2 * STEP_S + 0.004),  # its first token comes last of 8, the last answer's in the middle
        (0.004, 0.001, 3 * STEP_S + 0.004),  # read after 8 ms, it misses the next step, too
    ],
)
def test_in_a_closed_loop_the_front_end_reads_requests_once_the_step_is_handed_out(
    request_s: float, token_s: float, ttft_s: float
):
    requests = [Request(1, 20 + i % 7) for i in range(400)]
    served = simulate(requests, Steps(), Limits(), concurrency=8, delays=Delays(request_s, token_s))
    assert served.ttft(0.5) == pytest.approx(ttft_s, abs=0.001)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_with_one_seat_and_one_token_it_is_an_m_d_1_queue(load: float):
    """Pollaczek and Khinchine: the mean wait is r s / (2 (1 − r)) at utilisation r."""
    requests = [Request(10, 1, t) for t in poisson_s(load / STEP_S, 20_000, seed=1)]
    served = simulate(requests, Steps(), Limits(sequences=1))
    wait = float(np.mean(served.ttft_s)) - STEP_S
    assert wait == pytest.approx(load * STEP_S / (2 * (1 - load)), rel=0.06)


def test_with_endless_seats_nothing_waits_but_for_the_step_under_way():
    """Decode steps of one length: a request waits for half a step in the mean, and shares no service."""
    requests = [Request(1, 50, t) for t in poisson_s(20.0, 2_000, seed=2)]
    served = simulate(requests, Steps(), Limits(sequences=10_000))
    assert float(np.mean(served.ttft_s)) == pytest.approx(1.5 * STEP_S, rel=0.02)
    assert served.itl(0.99) == STEP_S


def test_a_closed_loop_of_b_gives_b_tokens_a_step():
    requests = [Request(1, 20 + i % 7) for i in range(400)]
    served = simulate(requests, Steps(), Limits(), concurrency=8)
    assert served.output_tokens_per_s == pytest.approx(8 / STEP_S, rel=0.02)
    assert served.running == pytest.approx(8)


def test_littles_law():
    requests = [Request(200, 30, t) for t in poisson_s(5.0, 3_000, seed=3)]
    served = simulate(requests, Steps(token_s=0.0002), Limits(sequences=64))
    in_flight = served.requests_per_s * float(np.mean(served.e2e_s))
    assert served.running * served.busy_share == pytest.approx(in_flight, rel=0.05)


def test_a_client_holds_back_requests_above_its_limit_and_their_latency_counts_from_the_plan():
    requests = [Request(1, 5), Request(1, 5, 0.001), Request(1, 5, 1.0)]
    served = simulate(requests, Steps(), Limits(), max_in_flight=1, warm_up_s=-1.0)
    assert served.ttft_s == pytest.approx([STEP_S, 6 * STEP_S - 0.001, STEP_S])
    assert served.running == 1


def test_prompts_are_cut_to_the_budget_and_decodes_go_first():
    steps = Steps()
    simulate([Request(10, 4), Request(25, 1, 0.005)], steps, Limits(step_tokens=10))
    assert steps.calls == [
        (0, [(10, 0)]),
        (1, [(9, 0)]),
        (1, [(9, 9)]),
        (1, [(7, 18)]),
    ]


def test_prompts_of_several_requests_share_a_step():
    steps = Steps()
    simulate([Request(4, 1), Request(4, 1), Request(4, 1)], steps, Limits(step_tokens=10))
    assert steps.calls == [(0, [(4, 0), (4, 0), (2, 0)]), (0, [(2, 2)])]


def test_cached_tokens_are_not_computed_but_for_the_last():
    steps = Steps()
    simulate([Request(10, 1, cached_tokens=8)], steps, Limits())
    simulate([Request(10, 1, cached_tokens=10)], steps, Limits())
    assert steps.calls == [(0, [(2, 8)]), (0, [(1, 9)])]


def test_a_request_waits_for_room_in_the_kv_cache():
    requests = [Request(10, 5), Request(10, 5)]
    together = simulate(requests, Steps(), Limits(kv_tokens=30))
    apart = simulate(requests, Steps(), Limits(kv_tokens=29))
    assert max(together.ttft_s) == pytest.approx(STEP_S)
    assert max(apart.ttft_s) == pytest.approx(6 * STEP_S)
    assert apart.peak_kv_tokens == 14
    with pytest.raises(BadPlan, match="15 tokens does not fit into a KV cache of 14 tokens"):
        simulate(requests, Steps(), Limits(kv_tokens=14))


def test_an_engine_that_plans_ahead_lets_a_request_wait_for_a_step_more():
    requests = [Request(1, 100), Request(1, 2, 0.255)]
    waits = [simulate(requests, Steps(), Limits(plans_ahead=ahead)).ttft_s[-1] for ahead in (False, True)]
    assert waits[0] == pytest.approx(0.015)  # the rest of the current step, and its own
    assert waits[1] == pytest.approx(0.025)


def test_stretches_of_decodes_are_as_long_as_single_steps_would_be():
    """Contexts grow within a stretch: the middle stands for all, exactly where durations grow evenly."""

    class Growing(Steps):
        def seconds(self, decodes: int, past: float, prompts: Sequence[tuple[int, int]] = ()) -> float:
            return 0.001 * past if decodes else 0.0

    served = simulate([Request(100, 41)], Growing(), Limits())
    assert served.e2e_s[0] == pytest.approx(0.001 * sum(range(100, 140)), rel=0.005)


def test_more_than_the_server_can_do_grows_a_backlog():
    def at(rate_per_s: float) -> Served:
        return simulate([Request(10, 1, t) for t in poisson_s(rate_per_s, 500, 4)], Steps(), Limits(sequences=1))

    assert at(50.0).backlog < 10
    assert at(200.0).backlog > 200
    assert at(200.0).ttft(0.9) > 20 * at(50.0).ttft(0.9)


def test_the_same_seed_stretches_the_same_times():
    slow, fast = (np.array(poisson_s(rate, 50, 7)) for rate in (1.0, 4.0))
    assert slow == pytest.approx(fast * 4)


def test_answers_of_one_token_have_no_itl():
    served = simulate([Request(10, 1)], Steps(), Limits())
    assert served.itl(0.5) is None
    assert served.tpot(0.5) is None
