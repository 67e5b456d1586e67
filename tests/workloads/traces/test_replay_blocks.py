"""Replayed requests share exactly the blocks that their trace names, with generated words."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bakeoff.workloads import EndlessCache, Replay, Seed, Tokenizer
from bakeoff.workloads.outline import segment_blocks
from bakeoff.workloads.traces.blocks import blocks_of
from tests.workloads.replays import SEED, common_tokens, prompts, replay, sessions, written

QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
WHOLE_WORDS = ["bare", pytest.param("smollm2", marks=pytest.mark.model)]
"""Tokenizers for which a word at the beginning of a text is also a single token."""
BLOCK = 32


def mooncake(folder: Path, requests: Sequence[tuple[int, Sequence[int]]]) -> Path:
    """A trace of one request a second with ``(input tokens, names of its blocks)``."""
    lines = (
        json.dumps({"timestamp": 1000 * i, "input_length": tokens, "output_length": 3, "hash_ids": list(names)})
        for i, (tokens, names) in enumerate(requests)
    )
    return written(folder / "trace.jsonl", "\n".join(lines))


def of_blocks(path: Path, **options: Any) -> Replay:
    return replay(path, format="mooncake", format_options={"block_tokens": BLOCK, "ticks": "burst"}, **options)


def hits(ids: list[list[int]], block_tokens: int) -> list[int]:
    cache = EndlessCache(block_tokens)
    return [cache.add(prompt) for prompt in ids]


def bound(requests: Sequence[tuple[int, Sequence[int]]], block_tokens: int) -> list[int]:
    """Leading whole blocks of each request that an earlier one had, in tokens."""
    earlier_blocks: set[int] = set()
    hit_tokens: list[int] = []
    for tokens, names in requests:
        whole = names[: tokens // block_tokens]
        hit_tokens.append(block_tokens * sum(1 for _ in itertools.takewhile(earlier_blocks.__contains__, whole)))
        earlier_blocks.update(whole)
    return hit_tokens


@st.composite
def traces(draw: st.DrawFn) -> list[tuple[int, tuple[int, ...]]]:
    """Requests that each begin with some of an earlier one's whole blocks and go on with blocks of their own."""
    name = itertools.count(draw(st.integers(0, 2**62)))
    requests: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(draw(st.integers(1, 9))):
        tokens_of_earlier, earlier = draw(st.sampled_from(requests)) if requests else (0, ())
        kept = earlier[: draw(st.integers(0, tokens_of_earlier // BLOCK))]
        tokens = BLOCK * len(kept) + draw(st.integers(2 if not kept else 0, 3 * BLOCK))
        own = [next(name) for _ in range(blocks_of(tokens, BLOCK) - len(kept))]
        requests.append((tokens, (*kept, *own)))
    return requests


@pytest.mark.parametrize("kind", WHOLE_WORDS)
@QUICK
@given(requests=traces())
def test_written_prompts_share_the_blocks_that_the_trace_names_to_the_token(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    requests: list[tuple[int, tuple[int, ...]]],
) -> None:
    made = of_blocks(mooncake(tmp_path_factory.mktemp("t"), requests))
    ids = prompts(made, request.getfixturevalue(kind))
    assert [len(prompt) for prompt in ids] == [tokens for tokens, _ in requests]
    assert hits(ids, BLOCK) == bound(requests, BLOCK)
    outlined = [turn.segments for session in made.outlines(SEED) for turn in session.turns]
    earlier_blocks: set[bytes] = set()
    for segments, expected in zip(outlined, bound(requests, BLOCK), strict=True):
        names = list(segment_blocks(segments, BLOCK))
        assert BLOCK * sum(1 for _ in itertools.takewhile(earlier_blocks.__contains__, names)) == expected
        earlier_blocks.update(names)


@pytest.mark.parametrize("kind", WHOLE_WORDS)
@QUICK
@given(requests=traces())
def test_prompts_part_at_the_token_where_the_trace_says(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    requests: list[tuple[int, tuple[int, ...]]],
) -> None:
    tokenizer = request.getfixturevalue(kind)
    ids = prompts(of_blocks(mooncake(tmp_path_factory.mktemp("t"), requests)), tokenizer)
    before = len(tokenizer.encode_prompt(""))
    for (i, (_, first)), (j, (_, second)) in itertools.combinations(enumerate(requests), 2):
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
        end = min(BLOCK * shared, len(ids[i]), len(ids[j]))
        assert common_tokens(ids[i], ids[j]) == (end or before)


@pytest.mark.parametrize("kind", ["small", "digits", "merging"])
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_lengths_are_exact_too_where_a_first_word_is_cut_up(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, api: str
) -> None:
    requests = [(96, (1, 2, 3)), (140, (1, 2, 3, 4, 5)), (64, (1, 2)), (70, (1, 2, 6)), (33, (7, 8)), (32, (9,))]
    ids = prompts(of_blocks(mooncake(tmp_path, requests), api=api), request.getfixturevalue(kind))
    assert [len(prompt) for prompt in ids] == [tokens for tokens, _ in requests]


@pytest.mark.parametrize("kind", WHOLE_WORDS)
@pytest.mark.parametrize("scale", [0.25, 0.5, 2.0])
def test_blocks_are_scaled_with_everything_else(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, scale: float
) -> None:
    requests = [(96, (1, 2, 3)), (140, (1, 2, 3, 4, 5)), (64, (1, 2)), (70, (1, 2, 6)), (33, (7, 8))]
    made = of_blocks(mooncake(tmp_path, requests), scale=scale)
    ids = prompts(made, request.getfixturevalue(kind))
    size = round(BLOCK * scale)
    assert [len(prompt) for prompt in ids] == [
        tokens // BLOCK * size + (max(1, round(tokens % BLOCK * scale)) if tokens % BLOCK else 0)
        for tokens, _ in requests
    ]
    assert hits(ids, size) == [0, 3 * size, 2 * size, 2 * size, 0]
    assert made.notes()[0] == f"trace {made.path}; every length × {scale:g}"


@pytest.mark.model
def test_a_chat_has_the_recorded_length_with_its_template_and_shares_all_but_its_last_block(
    smollm2: Tokenizer, tmp_path: Path
) -> None:
    """The template's text behind the question replaces part of the last block."""
    requests = [(160, (1, 2, 3, 4, 5)), (192, (1, 2, 3, 4, 5, 6)), (160, (1, 2, 3, 7, 8)), (128, (9, 10, 11, 12))]
    made = of_blocks(mooncake(tmp_path, requests), api="chat")
    ids = prompts(made, smollm2)
    assert [len(prompt) for prompt in ids] == [160, 192, 160, 128]
    assert [hit - expected for hit, expected in zip(hits(ids, BLOCK), bound(requests, BLOCK), strict=True)] == [
        0, -BLOCK, 0, 0,
    ]  # fmt: skip


def test_equal_blocks_are_equal_text_in_every_request_and_other_words_in_another_plan(
    small: Tokenizer, tmp_path: Path
) -> None:
    path = mooncake(tmp_path, [(64, (1, 2)), (96, (3, 1, 2)), (64, (1, 2))])
    (first, _, third) = (session.turns[0].prompt for session in sessions(of_blocks(path), small))
    assert first == third
    other = [session.turns[0].prompt for session in sessions(of_blocks(path), small, Seed("7", "b"))]
    assert other[0] != first
    assert other[0] == other[2]
    assert sessions(of_blocks(path), small) == sessions(of_blocks(path), small)
