"""Sessions of presets: exact to the token, with the wanted shared prefixes, and each drawn from its number alone."""

import itertools
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from bakeoff.workloads import PresetTraffic, PromptReader, Seed, Session, Tokenizer, Turn, workload
from bakeoff.workloads.presets import built_in, preset_names
from bakeoff.workloads.presets.schemas import json_schema
from bakeoff.workloads.presets.traffic import _Author
from tests.selection import sampled
from tests.workloads.replays import common_tokens

KINDS = ["small", "digits", "merging", pytest.param("smollm2", marks=pytest.mark.model)]
WHOLE_WORDS = ["bare", pytest.param("smollm2", marks=pytest.mark.model)]
"""Tokenizers for which a word at the beginning of a text is also a single token."""
SEED = Seed.of("7")
SMALL: dict[str, dict[str, Any]] = {
    "agent-coding": {"scale": 0.02, "max_input_tokens": 1200},
    "agentic-tools": {"scale": 0.02, "max_input_tokens": 1200},
    "long-context-chat": {"scale": 0.02, "max_input_tokens": 1000},
    "structured-output": {"scale": 1.0, "max_input_tokens": 1200},
}
"""Options that make a preset's requests small; other presets use a twentieth of the real lengths."""
SESSIONS = {"agent-coding": 2, "deep-research": 3, "agentic-tools": 2, "multi-turn": 8, "long-context-chat": 20}
"""Number of sessions that are examined; 20 for other presets."""


def made(name: str, **options: Any) -> PresetTraffic:
    traffic = workload(name, {**SMALL.get(name, {"scale": 0.05, "max_input_tokens": 800}), **options})
    assert isinstance(traffic, PresetTraffic)
    return traffic


def drawn(traffic: PresetTraffic, tokenizer: Tokenizer, count: int, seed: Seed = SEED) -> list[Session]:
    return list(itertools.islice(traffic.sessions(tokenizer, seed), count))


def requests(sessions: Iterable[Session], at_most: int = 60) -> list[Turn]:
    return [turn for session in sessions for turn in session.turns][:at_most]


def shape(sessions: Iterable[Session]) -> list[object]:
    """Everything except the words."""
    return [
        (session.id, session.start_s, [(turn.input_tokens, turn.output_tokens, turn.think_s) for turn in session.turns])
        for session in sessions
    ]


def question(turn: Turn) -> str:
    return turn.messages[-1].content if turn.messages else ""


def up_to_the_question(tokenizer: Tokenizer, turn: Turn) -> list[int]:
    """The ids of the rendered prompt, cut where the last message begins."""
    text = tokenizer.render_chat([msgspec.structs.asdict(message) for message in turn.messages or ()])
    return tokenizer.encode(text[: text.rindex(question(turn))])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", preset_names())
def test_every_prompt_is_as_long_as_it_says(request: pytest.FixtureRequest, kind: str, name: str) -> None:
    tokenizer = request.getfixturevalue(kind)
    turns = requests(drawn(made(name), tokenizer, SESSIONS.get(name, 20)))
    reader = PromptReader(tokenizer)
    assert [reader.count(turn) for turn in turns] == [turn.input_tokens for turn in turns]
    assert len(turns) >= 20
    assert all(turn.output_tokens >= 2 for turn in turns)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["small", pytest.param("smollm2", marks=pytest.mark.model)])
@pytest.mark.parametrize("name", sampled(preset_names(), ["agentic-tools", "chat"]))
def test_every_completion_is_as_long_as_it_says(request: pytest.FixtureRequest, kind: str, name: str) -> None:
    tokenizer = request.getfixturevalue(kind)
    turns = requests(drawn(made(name, api="completions"), tokenizer, SESSIONS.get(name, 20)))
    reader = PromptReader(tokenizer)
    assert [reader.count(turn) for turn in turns] == [turn.input_tokens for turn in turns]
    assert {turn.messages for turn in turns} == {None}


@pytest.mark.model
@pytest.mark.parametrize("name", ["chat", "rag", "summarisation"])
def test_prompts_of_real_length_are_exact(smollm2: Tokenizer, name: str) -> None:
    turns = requests(drawn(made(name, scale=1.0, max_input_tokens=None), smollm2, 12))
    reader = PromptReader(smollm2)
    assert [reader.count(turn) for turn in turns] == [turn.input_tokens for turn in turns]
    assert max(turn.input_tokens for turn in turns) > 2000


@pytest.mark.parametrize("kind", KINDS)
def test_sessions_that_share_nothing_part_at_their_first_words(request: pytest.FixtureRequest, kind: str) -> None:
    tokenizer = request.getfixturevalue(kind)
    reader = PromptReader(tokenizer)
    ids = [reader.ids(turn) for turn in requests(drawn(made("summarisation", api="completions"), tokenizer, 60))]
    before = len(tokenizer.encode_prompt(""))
    cut_up = 0 if kind == "smollm2" else 4  # without its space, a page's tokenizer knows no word as one token
    assert max(common_tokens(a, b) for a, b in itertools.combinations(ids, 2)) <= before + cut_up


@pytest.mark.model
@pytest.mark.parametrize("name", ["structured-output", "multi-tenant", "offline-batch", "long-context-chat"])
def test_sessions_of_one_group_share_the_prompt_up_to_the_question_and_no_token_more(
    smollm2: Tokenizer, name: str
) -> None:
    traffic, reader = made(name, scale=0.5), PromptReader(smollm2)
    groups: dict[int | None, list[tuple[list[int], list[int]]]] = {}
    for numbers, session in zip(traffic.drawing(SEED).sessions(), drawn(traffic, smollm2, 40), strict=False):
        turn = session.turns[0]
        groups.setdefault(numbers.group, []).append((up_to_the_question(smollm2, turn), reader.ids(turn)))
    assert None not in groups
    for members in groups.values():
        for (shared, prompt), (other_shared, other_prompt) in itertools.combinations(members, 2):
            assert shared == other_shared
            assert common_tokens(prompt, other_prompt) == len(shared)
    assert max(map(len, groups.values())) > 2
    head = len(smollm2.encode("<|im_start|>system\n"))
    for prompt, other_prompt in itertools.combinations([members[0][1] for members in groups.values()], 2):
        assert common_tokens(prompt, other_prompt) == head


def test_completions_of_one_group_share_the_system_prompt_to_the_token(small: Tokenizer) -> None:
    traffic, reader = made("offline-batch", scale=0.5, api="completions"), PromptReader(small)
    ids = [reader.ids(turn) for turn in requests(drawn(traffic, small, 30))]
    shared = len(small.encode_prompt("")) + traffic.drawing(SEED).shared_tokens
    # A completion's first word has no space before it; a tokenizer trained on a page of text may split it.
    lengths = {common_tokens(a, b) for a, b in itertools.combinations(ids, 2)}
    assert len(lengths) == 1
    assert abs(lengths.pop() - shared) <= 4


@pytest.mark.model
def test_documents_are_shared_where_they_stand_first(smollm2: Tokenizer) -> None:
    """If two requests have the same first document, their prompts agree up to the document's last token."""
    traffic, reader = made("rag", scale=0.25, max_input_tokens=2000), PromptReader(smollm2)
    pairs = itertools.islice(zip(traffic.drawing(SEED).sessions(), traffic.sessions(smollm2, SEED), strict=False), 60)
    by_documents = [(numbers.turns[0].documents, reader.ids(session.turns[0])) for numbers, session in pairs]
    system = len(smollm2.encode("<|im_start|>system\n<|im_end|>\n<|im_start|>user\n")) + 100
    seen_equal = 0
    for (first, ids), (second, other_ids) in itertools.combinations(by_documents, 2):
        shared = [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))]
        assert common_tokens(ids, other_ids) == system + sum(document.tokens for document in shared)
        seen_equal += bool(shared)
    assert seen_equal > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["agent-coding", "chat", "agentic-tools", "rag", "structured-output", "multi-tenant"])
def test_a_session_is_written_from_its_number_alone(small: Tokenizer, name: str) -> None:
    """It does not depend on earlier sessions: a load may begin at any session."""
    traffic = made(name)
    assert drawn(traffic, small, 3) == drawn(traffic, small, 8)[:3]
    numbers = next(itertools.islice(traffic.drawing(SEED).sessions(), 7, None))
    assert _Author(traffic, small, SEED).session(numbers) == drawn(traffic, small, 8)[7]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WHOLE_WORDS)
@pytest.mark.parametrize("name", sampled(preset_names(), ["agentic-tools", "chat"]))
def test_other_words_have_the_same_lengths_times_and_order(
    request: pytest.FixtureRequest, kind: str, name: str
) -> None:
    tokenizer = request.getfixturevalue(kind)
    traffic, count = made(name), SESSIONS.get(name, 20)
    first, second = (drawn(traffic, tokenizer, count, Seed("7", words)) for words in ("a", "b"))
    assert shape(first) == shape(second)
    pairs = zip(requests(first), requests(second), strict=True)
    assert all(question(a) != question(b) for a, b in pairs)
    assert drawn(traffic, tokenizer, count, Seed("7", "a")) == first
    assert shape(drawn(traffic, tokenizer, count, Seed("8", "a"))) != shape(first)


@pytest.mark.model
@pytest.mark.parametrize("name", ["chat", "offline-batch", "structured-output", "rag"])
def test_plans_in_other_words_share_nothing_but_the_template(smollm2: Tokenizer, name: str) -> None:
    """A repeat therefore finds nothing of the previous one in a cache."""
    traffic, reader = made(name), PromptReader(smollm2)
    first, second = (requests(drawn(traffic, smollm2, 12, Seed("7", words))) for words in ("7/1", "7/2"))
    head = common_tokens(*(smollm2.encode(f"<|im_start|>{role}\nx") for role in ("system", "user")))
    template = up_to_the_question(smollm2, first[0]) if name == "chat" else smollm2.encode("<|im_start|>system\n")
    for a, b in itertools.product(first, second):
        assert head <= common_tokens(reader.ids(a), reader.ids(b)) <= len(template)


def test_a_compaction_begins_the_prompt_afresh_behind_the_system_prompt(small: Tokenizer) -> None:
    traffic, reader = made("agentic-tools", scale=0.05, max_input_tokens=2000), PromptReader(small)
    pairs = itertools.islice(zip(traffic.drawing(SEED).sessions(), drawn(traffic, small, 3), strict=False), 3)
    system = traffic.drawing(SEED).shared_tokens
    seen = {True: 0, False: 0}
    for numbers, session in pairs:
        ids = [list(reader.ids(turn)) for turn in session.turns]
        for k in range(1, len(ids)):
            is_fresh = numbers.turns[k].is_fresh
            seen[is_fresh] += 1
            if is_fresh:
                assert len(ids[k]) <= 2000
                assert system <= common_tokens(ids[k], ids[k - 1]) < system + 40
                assert numbers.turns[k].input_tokens == max(600, system + 4)
            else:
                assert ids[k][: len(ids[k - 1])] == ids[k - 1]
    assert min(seen.values()) >= 3


def test_no_prompt_is_longer_than_the_limit(small: Tokenizer) -> None:
    free = requests(drawn(made("chat", scale=1.0, max_input_tokens=None), small, 40))
    clipped = requests(drawn(made("chat", scale=1.0, max_input_tokens=500), small, 40))
    assert max(turn.input_tokens for turn in free) > 2000
    assert [turn.input_tokens for turn in clipped] == [min(500, turn.input_tokens) for turn in free]
    assert [turn.output_tokens for turn in clipped] == [turn.output_tokens for turn in free]


def test_answers_follow_the_schema_that_stands_in_the_system_prompt(small: Tokenizer) -> None:
    traffic = made("structured-output", scale=2.0, max_input_tokens=4000)
    pairs = itertools.islice(zip(traffic.drawing(SEED).sessions(), drawn(traffic, small, 6), strict=False), 6)
    for numbers, session in pairs:
        assert numbers.group is not None
        (turn,) = session.turns
        assert turn.messages is not None
        system = turn.messages[0]
        assert turn.json_schema == json_schema(numbers.group)
        assert system.content.endswith(f"Answer in JSON that follows this schema: {turn.json_schema}")
        tokens = small.count(f" {system.content}")
        assert abs(tokens - traffic.drawing(SEED).shared_tokens) <= 8


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize("name", ["structured-output", "offline-batch", "rag"])
def test_primers_begin_as_the_sessions_do_and_are_no_longer_than_they_must(
    small: Tokenizer, name: str, api: str
) -> None:
    traffic, reader = made(name, scale=0.5, api=api), PromptReader(small)
    primers = list(traffic.primers(small, SEED))
    assert len(primers) == (traffic.preset.shared.groups if traffic.preset.shared else 0)
    ids = {number: reader.ids(primer.turns[0]) for number, primer in enumerate(primers)}
    shared = traffic.drawing(SEED).shared_tokens
    for numbers, session in itertools.islice(
        zip(traffic.drawing(SEED).sessions(), drawn(traffic, small, 20), strict=False), 20
    ):
        assert numbers.group is not None
        assert common_tokens(ids[numbers.group], reader.ids(session.turns[0])) >= shared - 4
    assert all([turn.output_tokens for turn in primer.turns] == [1] for primer in primers)


def test_a_preset_without_a_system_prompt_has_no_primers(small: Tokenizer) -> None:
    assert list(made("chat").primers(small, SEED)) == []


@pytest.mark.parametrize("name", preset_names())
def test_starts_are_those_of_the_sessions(name: str) -> None:
    traffic = PresetTraffic(name, built_in(name))
    starts = list(itertools.islice(traffic.starts(SEED), 30))
    sessions = [numbers.start_s for numbers in itertools.islice(traffic.drawing(SEED).sessions(), 30)]
    if traffic.own_rate_per_s() is None:
        assert (starts, set(sessions)) == ([], {0.0})
    else:
        assert starts == sessions == sorted(sessions)
        assert traffic.own_rate_per_s() == traffic.preset.arrival.rate_per_s


def test_tenants_have_lengths_and_system_prompts_of_their_own(small: Tokenizer) -> None:
    sessions = list(
        itertools.islice(PresetTraffic("multi-tenant", built_in("multi-tenant")).drawing(SEED).sessions(), 3000)
    )
    by_group: dict[int | None, list[int]] = {}
    for session in sessions:
        by_group.setdefault(session.group, []).append(session.turns[0].output_tokens)
    busiest = sorted(by_group.values(), key=len)[-6:]
    assert min(map(len, busiest)) > 100
    means = sorted(sum(lengths) / len(lengths) for lengths in busiest)
    assert means[-1] > 1.3 * means[0]


@pytest.mark.parametrize("name", ["multi-turn", "agentic-tools", "long-context-chat"])
@pytest.mark.parametrize("reach_s", [0.0, 20.0, 300.0])
def test_within_a_load_are_the_same_sessions_without_the_turns_that_it_cannot_reach(
    small: Tokenizer, name: str, reach_s: float
) -> None:
    count = SESSIONS[name]
    whole, within = drawn(made(name), small, count), drawn(made(name).within(reach_s), small, count)
    for cut, uncut in zip(within, whole, strict=True):
        assert (cut.id, cut.start_s) == (uncut.id, uncut.start_s)
        assert cut.turns == uncut.turns[: len(cut.turns)]
        assert len(cut.turns) >= 1
        assert sum(turn.think_s for turn in cut.turns[:-1]) <= reach_s
        left_out = uncut.turns[len(cut.turns) :]
        assert not left_out or sum(turn.think_s for turn in (*cut.turns, left_out[0])) > reach_s
    assert sum(len(session.turns) for session in within) < sum(len(session.turns) for session in whole)
