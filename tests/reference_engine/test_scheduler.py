import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reference_engine.errors import EngineBugError, RequestError
from reference_engine.request import FinishReason
from tests.reference_engine.stepping import Bench, RememberingRunner, beginnings, next_token, request


@pytest.fixture
def bench(fake_runner):
    return lambda script=(), **settings: Bench(fake_runner(script), **settings)


def test_a_request_is_prefilled_once_and_then_decodes_one_token_a_step(bench):
    b = bench()
    b.add(request("a", prompt=5, output=3))
    assert b.steps(3) == [[("a", 0, 5)], [("a", 5, 1)], [("a", 6, 1)]]
    assert not b.engine.has_work
    assert b.pool.num_used == 0


def test_a_long_prompt_is_cut_into_chunks_that_fill_what_the_decodes_leave(bench):
    b = bench(tokens=8)
    b.add(request("short", prompt=2, output=9))
    b.step()
    b.add(request("long", prompt=20, output=2))
    assert b.steps(4) == [
        [("short", 2, 1), ("long", 0, 7)],
        [("short", 3, 1), ("long", 7, 7)],
        [("short", 4, 1), ("long", 14, 6)],
        [("short", 5, 1), ("long", 20, 1)],
    ]


def test_newcomers_are_admitted_in_order_and_only_up_to_max_num_seqs(bench):
    b = bench(seqs=2)
    b.add(request("a"), request("b"), request("c"))
    report = b.step()
    assert [name for name, _, _ in b.runner.steps[-1]] == ["a", "b"]
    assert (report.running, report.waiting) == (2, 1)


def test_the_youngest_is_preempted_recomputed_and_loses_no_token(bench):
    b = bench(blocks=4, size=4, tokens=32)
    old, young = request("old", prompt=8, output=6), request("young", prompt=7, output=6)
    b.add(old, young)
    b.step()
    assert b.pool.num_free == 0
    report = b.step()  # old needs a third block and takes young's
    assert report.preemptions == 1
    assert b.runner.steps[-1] == [("old", 8, 1)]
    assert young.num_computed == 0
    while b.engine.has_work:
        b.step()
    assert (old.num_output, young.num_output) == (6, 6)
    # Young's two prompt blocks were computed again together with the token it had already made.
    assert ("young", 0, 8) in [chunk for step in b.runner.steps for chunk in step]
    assert young.token_ids[7:] == list(range(7, 13))


def test_a_victim_that_was_planned_already_gives_its_budget_back(bench):
    b = bench(blocks=6, size=4, tokens=12)
    first = request("prefilling", prompt=16, output=4)
    b.add(first)
    b.step()
    b.add(request("decoding", prompt=4, output=9))
    b.steps(2)
    while b.engine.has_work:
        b.step()
        assert sum(length for _, _, length in b.runner.steps[-1]) <= 12


def test_static_batching_closes_the_batch_until_its_last_member_has_finished(bench):
    b = bench(policy="static", seqs=2)
    b.add(request("a", output=2), request("b", output=4), request("c", output=1))
    reports = [b.step() for _ in range(5)]
    assert [[name for name, _, _ in step] for step in b.runner.steps] == [["a", "b"], ["a", "b"], ["b"], ["b"], ["c"]]
    assert [report.running for report in reports] == [2, 2, 2, 0, 0]  # a keeps its place until b has finished


def test_continuous_batching_fills_the_free_place_at_once(bench):
    b = bench(policy="continuous", seqs=2)
    b.add(request("a", output=2), request("b", output=4), request("c", output=1))
    names = [[name for name, _, _ in step] for step in b.steps(4)]
    assert names == [["a", "b"], ["a", "b"], ["b", "c"], ["b"]]


def test_a_preempted_member_may_return_to_its_static_batch(bench):
    b = bench(policy="static", blocks=4, size=4, seqs=2, tokens=32)
    b.add(request("old", prompt=8, output=6), request("young", prompt=7, output=6), request("later", output=1))
    while b.engine.has_work:
        b.step()
    order = [name for step in b.runner.steps for name, _, _ in step]
    assert order.index("later") > max(i for i, name in enumerate(order) if name in {"old", "young"})


def test_cancelling_frees_waiting_and_running_requests(bench):
    b = bench(seqs=1)
    b.add(request("running"), request("waiting"))
    b.step()
    b.engine.cancel("waiting")
    b.engine.cancel("running")
    b.engine.cancel("never heard of")
    assert not b.engine.has_work
    assert b.pool.num_used == 0


def test_a_stop_token_ends_a_request_but_not_before_min_tokens(bench):
    b = bench(script=[9, 5, 9])
    b.add(request("a", output=8, min_tokens=2, stop_token_ids=frozenset({9})))
    reasons = [b.step().outputs[0].finish_reason for _ in range(3)]
    assert reasons == [None, None, FinishReason.STOP]


def test_reports_carry_times_and_token_counts(bench):
    b = bench(tokens=8)
    b.add(request("a", prompt=12, output=2))
    b.now = 2.5
    first, second = b.step(), b.step()
    assert (first.queue_times_s, first.prompt_tokens, first.computed_tokens) == ([2.5], 0, 8)
    assert (second.queue_times_s, second.prompt_tokens, second.computed_tokens) == ([], 12, 4)


def test_what_can_never_fit_is_refused_with_the_numbers(bench):
    b = bench(blocks=4, size=4)
    with pytest.raises(RequestError, match=r"10 prompt tokens and 8 output tokens .* 4 KV blocks of 4 tokens"):
        b.add(request("a", prompt=10, output=8))
    b.add(request("exactly", prompt=10, output=7))  # the last token needs no place
    while b.engine.has_work:
        b.step()


def test_waiting_forever_is_a_bug_that_speaks_up(bench):
    b = bench(blocks=1, size=4)
    b.scheduler.add(request("too long", prompt=5))
    with pytest.raises(EngineBugError, match="can never be admitted"):
        b.engine.step()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    blocks=st.integers(6, 20),
    size=st.sampled_from([1, 4, 16]),
    seqs=st.integers(1, 6),
    policy=st.sampled_from(["continuous", "static"]),
    caching=st.booleans(),
)
def test_a_thousand_random_steps_leak_no_block_and_mix_up_no_contents(seed, blocks, size, seqs, policy, caching):
    runner = RememberingRunner(size, VOCABULARY)
    b = Bench(runner, blocks=blocks, size=size, seqs=seqs, tokens=8, policy=policy, caching=caching)
    check_random_life(b, seed)


def test_a_random_life_reaches_hits_evictions_and_preemptions():
    b = Bench(RememberingRunner(2, VOCABULARY), blocks=12, size=2, seqs=4, tokens=8, caching=True)
    totals = check_random_life(b, seed=1)
    assert min(totals.values()) > 50, totals


VOCABULARY = 2  # few tokens, so that prompts often begin alike


def check_random_life(b, seed, steps=1000):
    rng = random.Random(seed)
    room = b.pool.num_blocks * b.pool.block_size
    live, made = {}, 0
    totals = {"cached_tokens": 0, "evicted_blocks": 0, "preemptions": 0}
    for _ in range(steps):
        if rng.random() < 0.4:
            prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, max(1, room // 2)))]
            if made % 2:
                prompt = [1] * len(prompt)  # all of one family
            one = request(str(made), prompt=prompt, output=rng.randint(1, max(1, room - len(prompt))))
            made += 1
            live[one.request_id] = one
            b.add(one)
        if live and rng.random() < 0.15:
            name = rng.choice(list(live))
            b.engine.cancel(name)
            del live[name]
        if rng.random() < 0.01:
            b.engine.reset_prefix_cache()
        report = b.step()
        assert report.computed_tokens <= 8
        for name in totals:
            totals[name] += getattr(report, name)
        for output in report.outputs:
            one = live[output.request_id]
            assert output.token.token_id == next_token(beginnings(one.token_ids[:-1]), VOCABULARY)
            if output.finish_reason:
                del live[output.request_id]
        assert report.running + report.waiting == len(live)
    for name in live:
        b.engine.cancel(name)
    b.engine.check_integrity()
    assert b.pool.num_used == 0
    return totals
