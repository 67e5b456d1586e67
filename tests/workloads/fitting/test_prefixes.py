"""How many tokens prompts share at their beginning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.workloads.fitting import prefixes
from bakeoff.workloads.fitting.prefixes import Bound, Leading

PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=20)


@given(PROMPTS)
def test_the_bound_is_what_the_longest_known_prefix_gives(prompts: list[list[int]]):
    bound, earlier, hits, total = Bound(), [], 0, 0
    for prompt in prompts:
        tokens = 16 * len(prompt) + 5
        bound.add(tuple(prompt), 16, tokens)
        shared_lengths = [
            length for length in range(len(prompt) + 1) for other in earlier if other[:length] == prompt[:length]
        ]
        hits += 16 * max(shared_lengths, default=0)
        total += tokens
        earlier.append(prompt)
    assert bound.share == hits / total


@given(PROMPTS)
def test_equal_segments_are_equal_blocks(prompts: list[list[int]]):
    blocks, segments = Bound(), Bound()
    for prompt in prompts:
        blocks.add(tuple(prompt), 16, 16 * len(prompt) + 1)
        segments.add_segments([(str(name), 16) for name in prompt], 16, 16 * len(prompt) + 1)
    assert blocks.share == segments.share


def test_only_whole_blocks_of_segments_count_and_one_token_is_always_new():
    bound = Bound()
    for _ in range(2):
        bound.add_segments([("system", 100), ("question", 28)], 64, 128)
    assert bound.share == 127 / 256
    other = Bound()
    other.add_segments([("system", 100), ("a", 28)], 64, 128)
    other.add_segments([("system", 100), ("b", 28)], 64, 128)
    assert other.share == 64 / 256


def test_a_trace_with_too_many_blocks_is_counted_as_far_as_they_go(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prefixes, "MOST_BLOCKS", 10)
    bound = Bound()
    bound.add((1, 2, 3), 16, 48)
    bound.add((1, 2, 3), 16, 48)
    bound.add(tuple(range(100, 120)), 16, 320)
    assert bound.is_full
    share = bound.share
    bound.add((1, 2, 3), 16, 48)
    assert bound.share == share == 47 / 416


@pytest.mark.parametrize(
    ("prompts", "common"),
    [
        ([(1, 2, 3), (1, 2, 4), (1, 2)], 2),
        ([(1, 2, 3)] * 19 + [(9, 9)], 3),
        ([(1, 2, 3)] * 8 + [(9, 9)] * 2, 0),
        ([(number,) for number in range(30)], 0),
        ([(1, 2, 3)], 0),  # a single prompt shares nothing
    ],
)
def test_leading_blocks_of_nearly_all(prompts: list[tuple[int, ...]], common: int):
    leading = Leading()
    for prompt in prompts:
        leading.add(prompt)
    assert leading.common() == common


def test_leading_blocks_of_many_sessions_and_of_names_beyond_64_bits():
    leading = Leading()
    for number in range(10_000):
        leading.add((2**70, number))
    assert leading.common() == 1
