"""Which tokens are computed when prompts begin alike: scheduler, tables and pool together, around a fake runner."""

import random

import pytest

from bakeoff.reference_engine.errors import EngineBugError
from tests.reference_engine.stepping import Bench, RememberingRunner, request

PROMPT = [7, 1, 8, 2, 8, 1, 8, 2, 8, 4]  # ten tokens in blocks of four


@pytest.fixture
def bench(fake_runner):
    """An engine with prefix caching, blocks of four tokens."""
    return lambda script=(), **settings: Bench(fake_runner(script), **({"caching": True} | settings))


def computed(reports):
    return sum(report.computed_tokens for report in reports)


@pytest.mark.parametrize(
    ("tokens", "tail"),
    [
        (PROMPT, ("b", 9, 1)),  # the whole prompt is known, but the next token follows from its last one
        (PROMPT[:9], ("b", 8, 1)),
        (PROMPT[:8], ("b", 7, 1)),
        (PROMPT[:4], ("b", 3, 1)),
        (PROMPT[:3], ("b", 2, 1)),
    ],
)
def test_the_second_identical_prompt_computes_only_its_last_token(bench, tokens, tail):
    b = bench()
    b.finish(request("a", tokens, output=1))
    b.finish(second := request("b", tokens, output=1))
    assert b.runner.steps == [[("a", 0, len(tokens))], [tail]]
    assert second.num_cached_tokens == tail[1]


@pytest.mark.parametrize(("common", "cached"), [(0, 0), (3, 3), (4, 4), (7, 7), (8, 8), (9, 9)])
def test_a_common_beginning_is_found_to_the_token(bench, common, cached):
    b = bench()
    b.finish(request("a", PROMPT))
    b.finish(second := request("b", PROMPT[:common] + [99] * (10 - common)))
    assert second.num_cached_tokens == cached


def test_the_same_tokens_behind_another_beginning_are_not_found(bench):
    b = bench()
    b.finish(request("a", [1, 1, 1, 1, 2, 2, 2, 2, 3]))
    b.finish(second := request("b", [9, 9, 9, 9, 2, 2, 2, 2, 3]))
    b.finish(third := request("c", [2, 2, 2, 2, 3]))
    assert (second.num_cached_tokens, third.num_cached_tokens) == (0, 0)


def test_running_requests_share_the_blocks_of_what_they_have_in_common(bench):
    b = bench()
    b.add(first := request("a", PROMPT, output=9))
    b.step()
    b.add(second := request("b", PROMPT, output=9))
    b.step()
    blocks, other_blocks = (b.scheduler.cache.blocks_of(sequence).blocks[0] for sequence in (first, second))
    assert blocks[:2] == other_blocks[:2]
    assert blocks[2] != other_blocks[2]
    assert b.pool.num_used == 4
    b.engine.cancel("a")
    b.step()
    assert b.pool.num_used == 3


def test_requests_of_one_step_compute_alike_prompts_each_for_itself(bench):
    b = bench(tokens=32)
    b.finish(first := request("a", PROMPT), second := request("b", PROMPT))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 0)
    b.finish(three := request("c", PROMPT))
    assert three.num_cached_tokens == 9


def test_newcomers_find_what_a_prompt_under_way_has_behind_it(bench):
    b = bench(tokens=10)
    long_prompt = [*range(45)]
    b.add(first := request("a", long_prompt, output=1))
    b.step()
    b.add(second := request("b", long_prompt, output=1))
    b.steps(4)
    assert b.runner.steps[-1] == [("a", 40, 5), ("b", 40, 5)]
    assert (first.num_output, second.num_cached_tokens) == (1, 40)


def test_only_computed_tokens_are_found_after_an_abort(bench):
    b = bench(tokens=6)
    b.add(request("a", PROMPT))
    b.step()
    b.engine.cancel("a")
    b.finish(second := request("b", PROMPT))
    assert second.num_cached_tokens == 6


def test_blocks_filled_by_decoding_are_found_by_the_next_turn(bench):
    b = bench()
    b.finish(first := request("a", PROMPT, output=7))
    # 17 tokens are known, the last of them was sampled and never computed.
    b.finish(second := request("b", [*first.token_ids, 5, 6], output=1))
    assert second.num_cached_tokens == 16
    b.finish(third := request("c", [*first.token_ids[:16], 5], output=1))
    assert third.num_cached_tokens == 16


def test_a_preempted_request_finds_its_own_blocks_and_counts_them_only_at_first(bench):
    b = bench(blocks=5, tokens=32, headroom_tokens=0)
    b.finish(request("earlier", PROMPT[:5], output=1))
    old, young = request("old", [9] * 8, output=4), request("young", PROMPT, output=3)
    b.add(old, young)
    b.step()
    assert (young.num_cached_tokens, young.num_computed, b.pool.num_free) == (4, 10, 0)
    report = b.step()  # old needs a third block and takes young's last one
    assert (report.preemptions, report.evicted_blocks, young.num_computed) == (1, 1, 0)
    reports = b.finish()
    assert ("young", 8, 3) in [chunk for step in b.runner.steps for chunk in step]
    assert young.num_cached_tokens == 4
    assert [report.cached_tokens for report in reports] == [0] * len(reports)
    assert young.num_output == 3


@pytest.mark.parametrize("policy", ["continuous", "static"])
def test_both_policies_find_cached_prompts(bench, policy):
    b = bench(policy=policy, seqs=2)
    requests = [request(str(number), PROMPT, output=2) for number in range(4)]
    b.finish(*requests)
    assert [sequence.num_cached_tokens for sequence in requests] == [0, 0, 9, 9]


def test_of_one_sequence_the_end_is_evicted_before_the_beginning(bench):
    b = bench(blocks=5)
    b.finish(request("a", PROMPT, output=3))  # three full blocks
    assert b.finish(request("other", [9] * 12, output=1))[0].evicted_blocks == 1
    b.finish(again := request("b", PROMPT, output=1))
    assert again.num_cached_tokens == 8


def test_what_was_used_last_stays_longest(bench):
    b = bench(blocks=6)
    b.finish(request("a", [1] * 5, output=1))
    b.finish(request("b", [2] * 5, output=1))
    b.finish(request("a again", [1] * 5, output=1))
    b.finish(request("other", [3] * 20, output=1))  # takes five of six blocks
    b.finish(a := request("a once more", [1] * 5, output=1))
    assert a.num_cached_tokens == 4


def test_a_newcomer_without_room_changes_nothing(bench):
    b = bench(blocks=6, tokens=32)
    b.finish(request("a", PROMPT, output=1), request("b", [5] * 4, output=1))
    b.add(request("running", [9] * 9, output=4))
    b.step()
    free = [*b.pool._empty, *b.pool._cached]
    b.add(waiting := request("waiting", [*PROMPT[:8], *[6] * 12], output=1))  # two blocks found, three more needed
    b.step()
    assert b.scheduler.num_waiting == 1
    assert [*b.pool._empty, *b.pool._cached] == free
    assert (waiting.num_cached_tokens, [*b.scheduler.cache.blocks_of(waiting).blocks[0]], waiting.num_computed) == (
        None,
        [],
        0,
    )
    b.finish()
    assert waiting.num_cached_tokens == 8


def test_after_a_reset_nothing_of_before_is_found_and_running_requests_go_on():
    b = Bench(RememberingRunner(4, vocabulary=50), caching=True)
    b.add(running := request("running", PROMPT, output=9))
    b.step()
    b.engine.reset_prefix_cache()
    b.engine.check_integrity()
    b.finish(second := request("b", PROMPT, output=9))
    assert second.num_cached_tokens == 0
    assert running.token_ids == second.token_ids
    b.finish(third := request("c", PROMPT, output=1))
    assert third.num_cached_tokens == 9


def test_different_salts_keep_prompts_apart(bench):
    b = bench()
    requests = [request(str(number), PROMPT, salt=salt) for number, salt in enumerate(["x", "y", None, "x", "y", None])]
    for sequence in requests:
        b.finish(sequence)
    assert [sequence.num_cached_tokens for sequence in requests] == [0, 0, 0, 9, 9, 9]


def test_reports_count_each_prompt_once_and_evictions(bench):
    b = bench(blocks=4, tokens=8)  # a report is of the first step, a prompt may take two
    first, second, third = (
        b.finish(request(name, tokens, output=1))[0] for name, tokens in (("a", PROMPT), ("b", PROMPT), ("c", [9] * 13))
    )
    assert [(r.looked_up_tokens, r.cached_tokens, r.evicted_blocks) for r in (first, second, third)] == [
        (10, 0, 0),
        (10, 9, 0),
        (13, 0, 3),
    ]


def test_switched_off_everything_is_computed_and_nothing_is_counted(bench):
    b = bench(caching=False, blocks=4)
    b.finish(request("a", PROMPT))
    reports = b.finish(second := request("b", PROMPT))
    assert second.num_cached_tokens is None
    assert computed(reports) == 12
    assert [(r.looked_up_tokens, r.cached_tokens, r.evicted_blocks) for r in reports] == [(0, 0, 0)] * 3


@pytest.mark.parametrize("caching", [True, False])
def test_a_block_that_others_may_find_is_copied_before_it_is_written(bench, caching):
    b = bench(caching=caching)
    b.add(sequence := request("a", PROMPT, output=9))
    b.step()
    blocks = b.scheduler.cache.blocks_of(sequence)
    half_full = blocks.blocks[0][2]
    b.pool.cache_block(half_full, b"some name", b"parent", PROMPT[8:])
    with pytest.raises(EngineBugError, match="token 10 has no place of its own"):
        b.engine.check_integrity()
    blocks.room = 0  # as after a fork: it is looked at again
    b.step()
    assert blocks.blocks[0][2] != half_full
    assert b.pool.find(b"some name") == half_full


def test_under_a_small_pool_cached_and_computed_requests_get_the_same_answers():
    rng = random.Random(4)
    prompts = [[1] * rng.randrange(12) + [rng.randrange(3) for _ in range(rng.randint(1, 8))] for _ in range(60)]

    def answers(caching):
        b = Bench(RememberingRunner(2, vocabulary=3), blocks=16, size=2, seqs=3, tokens=8, caching=caching)
        requests = [request(str(number), prompt, output=8) for number, prompt in enumerate(prompts)]
        reports = b.finish(*requests)
        return [sequence.token_ids for sequence in requests], computed(reports), sum(r.evicted_blocks for r in reports)

    (with_cache, fewer, evicted), (without, all_tokens, _) = answers(caching=True), answers(caching=False)
    assert with_cache == without
    assert fewer < 0.8 * all_tokens
    assert evicted > 50
