import pytest

from bakeoff.reference_engine.core.request import FinishReason
from bakeoff.reference_engine.errors import EngineBugError, QueueFullError, RequestError
from bakeoff.reference_engine.kv_cache.block_table import Visible
from tests.reference_engine.stepping import Bench, RememberingRunner, request


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


def test_beside_decodes_prompts_are_cut_to_a_smaller_step(bench):
    b = bench(tokens=20, seqs=9, least_piece=9, max_mixed_tokens=8)
    b.add(request("short", prompt=2, output=9), request("long", prompt=18, output=2))
    assert b.steps(1) == [[("short", 0, 2), ("long", 0, 18)]]  # no decodes yet
    b.add(request("late", prompt=9, output=9))
    assert b.steps(2) == [
        [("short", 2, 1), ("long", 18, 1), ("late", 0, 6)],
        [("short", 3, 1), ("late", 6, 3)],
    ]
    b.add(*[request(f"{number}", prompt=1, output=9) for number in range(3)])
    b.step()
    b.add(request("beside five decodes", prompt=18))
    assert b.steps(1)[0][-1] == ("beside five decodes", 0, 15)  # decodes that leave less than half count no more
    b = bench(tokens=20, seqs=9, max_mixed_tokens=8)
    b.add(request("short", prompt=2, output=9))
    b.step()
    b.add(request("a", prompt=9, output=9), request("b", prompt=9, output=9))
    assert b.steps(1)[0][1:] == [("a", 0, 9), ("b", 0, 9)]  # two smaller steps would not hold both


def test_a_prompt_does_not_begin_with_a_short_piece_beside_another(bench):
    b = bench(tokens=10, least_piece=4)
    b.add(request("a", prompt=7), request("b", prompt=9), request("c", prompt=2))
    assert b.steps(3) == [
        [("a", 0, 7)],  # 3 of b's tokens would be too few, and c comes later
        [("a", 7, 1), ("b", 0, 9)],
        [("a", 8, 1), ("b", 9, 1), ("c", 0, 2)],
    ]
    b = bench(tokens=10, seqs=8, least_piece=4)
    decoding = [request(f"{number}", prompt=1, output=9) for number in range(8)]
    b.add(*decoding[:7])
    b.step()
    b.add(request("late", prompt=9))
    assert b.steps(1)[0][-1] == ("late", 0, 3)  # beside decodes alone it does
    b = bench(tokens=10, least_piece=4)
    drafting = request("drafting", prompt=1, output=9)
    b.add(drafting)
    b.step()
    drafting.draft_token_ids = [7] * 6
    b.add(request("late", prompt=9))
    assert b.steps(1) == [[("drafting", 1, 7), ("late", 0, 3)]]  # and beside drafts, which are no prompt


def test_newcomers_are_admitted_in_order_and_only_up_to_max_num_seqs(bench):
    b = bench(seqs=2)
    b.add(request("a"), request("b"), request("c"))
    report = b.step()
    assert [name for name, _, _ in b.runner.steps[-1]] == ["a", "b"]
    assert (report.running, report.waiting) == (2, 1)


def test_the_youngest_is_preempted_recomputed_and_loses_no_token(bench):
    b = bench(blocks=4, size=4, tokens=32, headroom_tokens=0)
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
    assert [report.used_blocks for report in reports] == [2, 4, 4, 0, 0]  # a keeps its blocks until b has finished


def test_continuous_batching_fills_the_free_place_at_once(bench):
    b = bench(policy="continuous", seqs=2)
    b.add(request("a", output=2), request("b", output=4), request("c", output=1))
    names = [[name for name, _, _ in step] for step in b.steps(4)]
    assert names == [["a", "b"], ["a", "b"], ["b", "c"], ["b"]]


def test_a_preempted_member_is_the_first_of_the_next_static_batch(bench):
    b = bench(policy="static", blocks=4, size=4, seqs=2, tokens=32, headroom_tokens=0)
    b.add(request("old", prompt=8, output=6), request("young", prompt=7, output=6), request("later", output=1))
    while b.engine.has_work:
        b.step()
    order = [name for step in b.runner.steps for name, _, _ in step]
    assert order.index("later") > max(i for i, name in enumerate(order) if name == "old")
    first = next(step for step in b.runner.steps if "later" in {name for name, _, _ in step})
    assert [name for name, _, _ in first] == ["young", "later"]  # it kept its place in the queue


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


def test_a_newcomer_waits_where_a_running_request_soon_needs_the_last_blocks(bench):
    b = bench(blocks=4, tokens=32)
    b.add(request("old", prompt=8, output=6), request("young", prompt=7, output=6))
    reports = b.finish()
    assert sum(report.preemptions for report in reports) == 0
    assert [[name for name, _, _ in step] for step in b.runner.steps] == [["old"]] * 6 + [["young"]] * 6


@pytest.mark.parametrize(("output", "admitted"), [(9, False), (5, True)])
def test_blocks_that_a_running_request_can_never_fill_are_not_kept_for_it(bench, output, admitted):
    b = bench(blocks=5, tokens=32)
    b.add(request("old", prompt=8, output=output), request("young", prompt=8, output=2))
    assert (b.step().running == 2) is admitted  # one block is left


def test_a_request_alone_is_admitted_into_the_last_block(bench):
    b = bench(blocks=4, tokens=32)
    reports = b.finish(request("first", prompt=16, output=1), request("second", prompt=15, output=2))
    assert [report.running for report in reports] == [0, 1, 0]


def test_a_preempted_request_comes_back_when_the_others_have_room_to_grow(bench):
    b = bench(blocks=8, tokens=32, headroom_tokens=4)
    old, young = request("old", prompt=12, output=17), request("young", prompt=12, output=17)
    b.add(old, young)
    reports = [b.step() for _ in range(17)]
    assert [step for step, report in enumerate(reports) if report.preemptions] == [5]
    assert [step for step in range(17) if "young" in {name for name, _, _ in b.runner.steps[step]}] == [0, 1, 2, 3, 4]
    b.finish()
    assert (old.num_output, young.num_output, b.engine.preemptions) == (17, 17, 1)


def test_nothing_is_kept_free_for_a_request_that_the_newcomer_may_preempt(bench):
    b = bench(blocks=7, tokens=32)
    b.add(request("low", prompt=8, output=9, priority=1))
    b.step()
    b.add(request("high", prompt=16, output=1))
    report = b.step()
    assert (report.preemptions, {name for name, _, _ in b.runner.steps[-1]}) == (0, {"low", "high"})


def test_blocks_of_a_less_important_request_are_headroom_for_the_others(bench):
    b = bench(blocks=8, tokens=32)
    b.add(request("high", prompt=8, output=9), request("low", prompt=4, output=2, priority=1))
    b.step()
    b.add(request("newcomer", prompt=12, output=1))
    report = b.step()
    assert (report.preemptions, {name for name, _, _ in b.runner.steps[-1]}) == (0, {"high", "low", "newcomer"})


def test_static_batches_are_padded_to_their_longest_and_members_that_have_ended_are_computed_on():
    runner = RememberingRunner(4, 50)
    b = Bench(runner, policy="static", seqs=3)
    b.add(request("a", prompt=9, output=1), request("b", prompt=4, output=3), request("c", prompt=20, output=2))
    b.steps(3)
    assert runner.steps == [[("a", 0, 9), ("b", 0, 4), ("c", 0, 20)], [("b", 4, 1), ("c", 20, 1)], [("b", 5, 1)]]
    assert runner.padding == [(11, 16), (1,), (1, 1)]


def test_cancelling_the_last_member_of_a_static_batch_frees_those_that_had_ended(bench):
    b = bench(policy="static", seqs=2)
    b.add(request("short", output=1), request("long", output=50), request("later", output=1))
    b.steps(2)
    b.engine.cancel("long")
    assert [name for name, _, _ in b.steps(1)[0]] == ["later"]
    assert b.pool.num_used == 0


def test_without_chunking_a_prompt_is_computed_in_one_piece_and_waits_until_it_fits(bench):
    b = bench(policy="no_chunking", tokens=10)
    b.add(request("a", prompt=6, output=9), request("b", prompt=6, output=9), request("long", prompt=25, output=9))
    assert b.steps(3) == [
        [("a", 0, 6)],
        [("a", 6, 1), ("b", 0, 6)],
        [("b", 6, 1), ("a", 7, 1), ("long", 0, 25)],  # longer than any budget: alone beside the decodes
    ]


def test_a_swapped_request_comes_back_and_computes_nothing_again():
    runner = RememberingRunner(4, 50)
    b = Bench(runner, blocks=4, tokens=32, host=4, headroom_tokens=0)
    old, young = request("old", prompt=8, output=6), request("young", prompt=7, output=6)
    b.add(old, young)
    b.step()
    report = b.step()
    assert (report.preemptions, report.swaps, b.scheduler.cache.is_swapped(young), young.num_computed) == (
        1,
        1,
        True,
        7,
    )
    b.finish()
    computed = [chunk for step in runner.steps for chunk in step if chunk[0] == "young"]
    assert computed == [("young", 0, 7), *(("young", 7 + i, 1) for i in range(5))]
    assert b.groups[0].host.num_used == 0


def test_where_host_memory_is_full_a_request_is_computed_again(bench):
    b = bench(blocks=4, tokens=32, host=1, headroom_tokens=0)
    old, young = request("old", prompt=8, output=6), request("young", prompt=7, output=6)
    b.add(old, young)
    b.step()
    report = b.step()
    assert (report.preemptions, report.swaps, young.num_computed) == (1, 0, 0)
    b.finish()
    assert young.num_output == 6


def test_the_more_important_goes_first_and_takes_the_place_of_the_less_important(bench):
    b = bench(seqs=2)
    b.add(request("low", output=9, priority=1), request("lower", output=9, priority=2))
    b.step()
    b.add(request("same", priority=1), request("high", priority=0))
    report = b.step()
    assert [name for name, _, _ in b.runner.steps[-1]] == ["low", "high"]  # lower has made way, same has not
    assert (report.preemptions, report.running, report.waiting) == (1, 2, 2)


def test_nobody_is_overtaken_for_longer_than_the_patience_allows(bench):
    """A stream of important requests that fills the engine by itself, and one that is less important by two levels."""
    b = bench(seqs=1, patience_steps=10)
    b.add(patient := request("patient", output=2, priority=2))
    for number in range(100):
        b.add(request(f"important {number}", output=2))
        b.steps(2)
        if patient.num_output:
            break
    # It is overtaken by those that arrive in 2 levels of 10 steps, each of which runs for 2 steps.
    assert 20 <= 2 * number <= 24


def test_more_than_may_wait_are_refused(bench):
    b = bench(max_waiting=2, seqs=1)
    b.add(request("a"), request("b"), request("c"))  # one of them need not wait
    refused = pytest.raises(QueueFullError, match="3 requests are waiting already, no more than 2 may; try again later")
    with refused as refusal:
        b.add(request("d"))
    assert refusal.value.status == 429
    b.step()
    with pytest.raises(QueueFullError, match="2 requests are waiting already"):
        b.add(request("d"))
    b.steps(3)
    b.add(request("d"))


def test_siblings_share_the_prompt_and_part_where_they_write():
    runner = RememberingRunner(4, 50)
    b = Bench(runner, seqs=3)
    b.add(leader := request("a", prompt=10, output=4, n=3))
    siblings = list(leader.siblings)
    report = b.step()
    assert runner.steps == [[("a", 0, 10)]]
    assert [output.request_id for output in report.outputs] == ["a", "a/1", "a/2"]
    assert (report.running, b.pool.num_used) == (3, 3)
    b.step()
    # Two of the three got a copy of the half-full block, the last one writes into the original.
    assert (b.pool.num_used, runner.copies) == (5, 2)
    b.finish()
    assert {tuple(sequence.token_ids[10:]) for sequence in (leader, *siblings)} != {tuple(leader.token_ids[10:])}
    assert [sequence.num_output for sequence in (leader, *siblings)] == [4, 4, 4]


def test_room_and_what_is_in_it_are_counted_once_for_siblings(bench):
    b = bench(seqs=3)
    b.add(request("a", prompt=10, output=4, n=3))
    first, second = b.step(), b.step()
    assert first.occupancy[:2] == (12, 10)
    assert second.occupancy[:2] == (20, 8 + 3 * 3)


def test_contiguous_memory_is_held_for_the_longest_and_mostly_empty(bench):
    b = bench(blocks=50, run=25)
    b.add(request("a", prompt=10, output=3))
    reports = [b.step() for _ in range(3)]
    assert [report.occupancy for report in reports] == [(100, 10, 2, 0), (100, 11, 1, 0), (0, 0, 0, 0)]


def test_siblings_need_seats_together(bench):
    b = bench(seqs=3)
    b.add(request("a", output=9), request("b", output=3, n=3), request("c", output=3))
    b.steps(3)
    assert {name for step in b.runner.steps for name, _, _ in step} == {"a"}
    with pytest.raises(RequestError, match="4 answers to one prompt are more than the 3 sequences"):
        b.add(request("d", n=4))


def test_what_one_newcomer_was_promised_is_not_free_for_the_next():
    b = Bench(RememberingRunner(4, 50), blocks=6, tokens=32, caching=True)
    b.add(request("r", prompt=[1, 2, 3, 4, 5, 6, 7, 8], output=9, priority=1))
    b.steps(2)
    b.add(request("found", prompt=[1, 2, 3, 4, 5, 6, 7, 8, 9]), request("large", prompt=20))
    report = b.step()
    # Two of the three blocks of "r" were promised to "found": if "r" went, "large" would find three, not five.
    assert (report.running, report.waiting, report.preemptions) == (2, 1, 0)
    b.finish()


def test_forks_that_go_together_free_what_they_share():
    b = Bench(RememberingRunner(4, 50), blocks=6, tokens=26)
    b.add(request("a", prompt=16, output=5, n=2, priority=1))
    assert b.step().used_blocks == 4
    b.add(request("large", prompt=24, output=1))
    report = b.step()
    assert (report.running, report.waiting, report.preemptions) == (0, 2, 2)
    assert b.runner.steps[-1] == [("large", 0, 24)]
    b.finish()


def test_cancelling_before_the_prompt_is_computed_cancels_the_siblings_too(bench):
    b = bench(tokens=4, seqs=4)
    b.add(request("a", prompt=10, n=3))
    b.step()
    b.engine.cancel("a")
    assert not b.engine.has_work
    assert b.pool.num_used == 0


def test_what_has_left_the_window_of_all_layers_is_free_again():
    window = (Visible(window=6, sinks=2),)
    runner = RememberingRunner(4, 50, window)
    b = Bench(runner, blocks=6, tokens=8, visible=window)
    b.engine.core.limits = b.engine.limits.__class__(1000, 1000, 4, 10_000)
    b.add(sequence := request("a", prompt=60, output=20))
    used = [b.step().used_blocks for _ in range(20)]
    assert max(used) <= 6  # 80 tokens in all
    b.finish()
    assert sequence.num_output == 20
