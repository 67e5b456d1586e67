"""Each play of a salted session has words of its own; within a play, prompts share what they shared."""

import itertools
import json
import re
from pathlib import Path

import pytest

from bakeoff.workloads import PromptReader, Replay, Seed, Tokenizer
from tests.workloads.replays import common_tokens, written

BLOCKS = [
    {"t": 0.0, "type": "n", "in": 128, "out": 5, "hash_ids": [1, 2], "api_time": 1.0},
    {"t": 2.0, "type": "n", "in": 192, "out": 5, "hash_ids": [1, 2, 3], "api_time": 1.0},
]
SESSION = {"id": "s", "block_size": 64, "hash_id_scope": "local", "requests": BLOCKS}
CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}], "max_tokens": 3}


def plays(path: Path, tokenizer: Tokenizer, seed: str = "1", **options: object) -> list[list[list[int]]]:
    """Prompts of the first two plays of the file's session."""
    replay, reader = Replay(str(path), repeat=True, **options), PromptReader(tokenizer)  # type: ignore[arg-type]
    sessions = itertools.islice(replay.sessions(tokenizer, Seed.of(seed)), 2)
    return [[list(reader.ids(turn)) for turn in session.turns] for session in sessions]


@pytest.mark.parametrize(("salt", "shared"), [(False, 128), (True, 1)])
def test_plays_of_blocks_share_nothing_with_salt(tmp_path: Path, bare: Tokenizer, salt: bool, shared: int) -> None:
    """But for the token that begins every text."""
    path = written(tmp_path / "s.json", json.dumps(SESSION))
    first, second = plays(path, bare, salt=salt)
    assert common_tokens(first[0], second[0]) == shared
    assert common_tokens(first[0], first[1]) == 128
    assert [len(prompt) for prompt in (*first, *second)] == [128, 192, 128, 192]


@pytest.mark.parametrize("salt", [False, True])
def test_outlines_of_plays_share_what_their_prompts_share(tmp_path: Path, salt: bool) -> None:
    replay = Replay(str(written(tmp_path / "s.json", json.dumps(SESSION))), salt=salt, repeat=True)
    first, second = itertools.islice(replay.outlines(Seed.of("1")), 2)
    blocks = [turn.segments[:2] for turn in (*first.turns, second.turns[0])]
    assert blocks[0] == blocks[1]
    assert (blocks[0] == blocks[2]) is not salt


def test_real_text_begins_with_a_mark_of_its_play(tmp_path: Path, bare: Tokenizer) -> None:
    replay = Replay(str(written(tmp_path / "c.jsonl", json.dumps(CHAT))), salt=True, repeat=True)
    first, second = itertools.islice(replay.sessions(bare, Seed.of("1")), 2)
    texts = [session.turns[0].messages[1].content for session in (first, second)]  # type: ignore[index]
    assert all(re.fullmatch(r"\[rid:[0-9a-f]{12}\]\n\nHello", text) for text in texts)
    assert texts[0] != texts[1]
    assert first.turns[0].messages[0].content == "Be brief."  # type: ignore[index]
    (again,) = itertools.islice(replay.sessions(bare, Seed.of("1")), 1)
    assert again == first
