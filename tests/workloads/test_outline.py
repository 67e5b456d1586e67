"""Outlines without words have the lengths and shared prefixes of the written prompts."""

import itertools
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.workloads import (
    EndlessCache,
    NoTokenizer,
    PromptReader,
    Random,
    Seed,
    Session,
    Tokenizer,
    Workload,
    workload,
)
from bakeoff.workloads.outline import Segment, SessionOutline, TurnOutline, outlines, segment_blocks
from bakeoff.workloads.prefixes import BLOCK_TOKENS
from bakeoff.workloads.presets import preset_names
from bakeoff.workloads.profile import profile_workload
from tests.selection import sampled

SEED = Seed.of("7")
SESSIONS = {"agent-coding": 1, "agentic-tools": 1, "deep-research": 1, "long-context-chat": 12, "multi-turn": 5}
SCALES = {"agent-coding": 0.25, "agentic-tools": 0.25, "deep-research": 0.25, "structured-output": 2.0}
"""Of structured-output: a small tokenizer needs more tokens for a schema than a real one."""
KINDS = ["small", pytest.param("smollm2", marks=pytest.mark.model)]


class Written:
    """A workload that can only write prompts."""

    def __init__(self, inner: Workload) -> None:
        self._inner = inner

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        return self._inner.sessions(tokenizer, seed)

    def notes(self) -> list[str]:
        return self._inner.notes()


def preset(name: str) -> Workload:
    return workload(name, {"scale": SCALES.get(name, 1.0), "max_input_tokens": 8000})


def outlined_and_written(name: str, tokenizer: Tokenizer) -> Iterator[tuple[SessionOutline, Session]]:
    count = SESSIONS.get(name, 10)
    return itertools.islice(
        zip(outlines(preset(name), SEED), preset(name).sessions(tokenizer, SEED), strict=False), count
    )


class Blocks:
    """An endless cache of prompts made of segments."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._earlier_blocks: set[bytes] = set()

    def add(self, segments: tuple[Segment, ...]) -> int:
        """Leading tokens that an earlier prompt already had."""
        names = list(segment_blocks(segments, self._block_tokens))
        hits = sum(1 for _ in itertools.takewhile(self._earlier_blocks.__contains__, names))
        self._earlier_blocks.update(names)
        return hits * self._block_tokens


@given(
    prompts=st.lists(st.text("abcd", max_size=6), max_size=8),
    lengths=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    block_tokens=st.integers(1, 6),
)
def test_segments_share_blocks_as_their_texts_would(prompts: list[str], lengths: list[int], block_tokens: int) -> None:
    tokens_of = {name: [10 * i + k for k in range(lengths[i])] for i, name in enumerate("abcd")}
    drawn, written = Blocks(block_tokens), EndlessCache(block_tokens)
    for prompt in prompts:
        segments = tuple((name, len(tokens_of[name])) for name in prompt)
        ids = [token for name in prompt for token in tokens_of[name]]
        assert len(list(segment_blocks(segments, block_tokens))) == len(ids) // block_tokens
        assert drawn.add(segments) == written.add(ids)


@pytest.mark.parametrize(
    ("first", "second", "hits"),
    [
        ([("a", 6), ("b", 4)], [("a", 6), ("b", 4)], 8),
        ([("a", 6), ("b", 4)], [("a", 6), ("c", 4)], 4),
        ([("a", 8), ("b", 4)], [("a", 8), ("c", 4)], 8),
        ([("a", 8)], [("b", 8)], 0),
        ([("a", 3), ("b", 9)], [("a", 3), ("b", 5)], 8),
        ([("a", 3), ("b", 9)], [("a", 4), ("b", 9)], 0),
    ],
)
def test_a_block_is_shared_as_far_as_its_segments_are(first: list[Segment], second: list[Segment], hits: int) -> None:
    cache = Blocks(4)
    assert cache.add(tuple(first)) == 0
    assert cache.add(tuple(second)) == hits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sampled(preset_names(), ["agent-tools", "rag"]))
def test_an_outline_has_the_lengths_of_the_written_prompts(
    request: pytest.FixtureRequest, kind: str, name: str
) -> None:
    """A prompt is longer than drawn only if template and question do not fit into the drawn length."""
    for outline, session in outlined_and_written(name, request.getfixturevalue(kind)):
        assert (outline.id, outline.start_s, len(outline.turns)) == (session.id, session.start_s, len(session.turns))
        for drawn, written in zip(outline.turns, session.turns, strict=True):
            assert (drawn.output_tokens, drawn.think_s) == (written.output_tokens, written.think_s)
            assert sum(tokens for _, tokens in drawn.segments) == drawn.input_tokens
            own = drawn.segments[-1][1]
            if len(session.turns) == 1 and own > 32:  # tokens that SmolLM2's template puts around a question
                assert written.input_tokens == drawn.input_tokens
            else:
                assert 0 <= written.input_tokens - drawn.input_tokens <= 32 * len(session.turns)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sampled(preset_names(), ["agent-tools", "rag"]))
def test_an_outline_shares_what_the_written_prompts_share(request: pytest.FixtureRequest, kind: str, name: str) -> None:
    """To within a block for each request, plus the tokens by which the session's prompts became longer than drawn."""
    tokenizer = request.getfixturevalue(kind)
    reader, written_cache, drawn_cache = PromptReader(tokenizer), EndlessCache(), Blocks(BLOCK_TOKENS)
    within_a_block = requests = 0
    for outline, session in outlined_and_written(name, tokenizer):
        longer = 0
        for drawn, written in zip(outline.turns, session.turns, strict=True):
            difference = written_cache.add(reader.ids(written)) - drawn_cache.add(drawn.segments)
            assert 0 <= difference < 2 * BLOCK_TOKENS + longer
            within_a_block += difference <= BLOCK_TOKENS
            requests += 1
            longer = max(longer, written.input_tokens - drawn.input_tokens)
    assert within_a_block >= 0.6 * requests
    assert requests >= 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chat", "multi-turn", "offline-batch", "rag"])
def test_a_profile_of_outlines_equals_that_of_written_prompts(small: Tokenizer, name: str) -> None:
    drawn = profile_workload(name, preset(name), SEED, sessions=15, arrivals=15)
    written = profile_workload(name, Written(preset(name)), SEED, tokenizer=small, sessions=15)
    assert written.output_tokens == drawn.output_tokens
    assert written.think_s == drawn.think_s
    assert written.turns == drawn.turns
    assert written.figures["input_p50"] == pytest.approx(drawn.figures["input_p50"], rel=0.01)
    assert written.figures["prompt_tokens"] == pytest.approx(drawn.figures["prompt_tokens"], rel=0.01)
    blocks = BLOCK_TOKENS * drawn.requests / drawn.figures["prompt_tokens"]
    assert written.figures["prefix_bound"] == pytest.approx(drawn.figures["prefix_bound"], abs=blocks + 0.005)


def test_written_prompts_are_outlined_in_blocks_and_a_rest_of_their_own(small: Tokenizer) -> None:
    (session,) = itertools.islice(outlines(Random(40, 3), SEED, small), 1)
    (turn,) = session.turns
    assert isinstance(turn, TurnOutline)
    assert [tokens for _, tokens in turn.segments] == [16, 16, 8]
    assert (session.id, session.start_s, turn.input_tokens, turn.output_tokens) == ("random-0", None, 40, 3)


def test_a_workload_that_cannot_outline_needs_a_tokenizer() -> None:
    with pytest.raises(NoTokenizer, match="prompts must be written to count their tokens"):
        next(outlines(Random(), SEED))


def test_outlines_do_not_depend_on_words() -> None:
    first = list(itertools.islice(outlines(preset("rag"), Seed("7", "a")), 5))
    second = list(itertools.islice(outlines(preset("rag"), Seed("7", "b")), 5))
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
