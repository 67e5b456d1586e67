"""Stored sessions are sent unchanged; an invalid line is refused with its row."""

import gzip
import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from bakeoff.workloads import BadTrace, Message, Random, Seed, Session, Tokenizer, Turn, plan_recorded, workload
from bakeoff.workloads.sample import Sessions

SEED = Seed.of("7")
TALK = Session(
    "talk-1",
    (
        Turn(12, 3, messages=(Message("system", "Be brief.\n"), Message("user", "Why? ☃"))),
        Turn(4, 2, prompt="And", think_s=1.5, json_schema='{"type": "object"}'),
    ),
    2.25,
)


def lines(sessions: Sequence[Session]) -> bytes:
    return b"".join(msgspec.json.encode(session) + b"\n" for session in sessions)


def read(path: Path, tokenizer: Tokenizer) -> list[Session]:
    return list(Sessions(str(path)).sessions(tokenizer, SEED))


@pytest.mark.parametrize("packed", [False, True])
def test_sessions_come_back_as_they_were_written(small: Tokenizer, tmp_path: Path, packed: bool) -> None:
    chat = list(itertools.islice(workload("multi-turn", {"scale": 0.05}).sessions(small, SEED), 4))
    drawn = [TALK, *chat, *itertools.islice(Random(9, 3).sessions(small, SEED), 3)]
    path = tmp_path / ("s.jsonl.gz" if packed else "s.jsonl")
    path.write_bytes(gzip.compress(lines(drawn)) if packed else lines(drawn))
    assert read(path, small) == drawn
    assert Sessions(str(path)).notes() == [f"sessions of {path}"]
    assert Sessions(str(path)).own_rate_per_s() is None


def test_blank_lines_and_a_missing_end_of_line_do_no_harm(small: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"\n" + lines([TALK]) + b"\n" + lines([TALK]).strip())
    assert read(path, small) == [TALK, TALK]


def test_starts_are_replayed_as_recorded(small: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    later = msgspec.structs.replace(TALK, id="talk-2", start_s=5.75)
    path.write_bytes(lines([TALK, later]))
    plan = plan_recorded(Sessions(str(path)), small, SEED, duration_s=9, count=9)
    assert [(planned.session, planned.offset_s) for planned in plan] == [(TALK, 0.0), (later, 3.5)]


TWO_PROMPTS = '{"id": "a", "turns": [{"input_tokens": 1, "output_tokens": 1, "prompt": "x", "messages": []}]}'
NEITHER = '{"id": "a", "turns": [{"input_tokens": 1, "output_tokens": 1}]}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not a session (Input data was truncated); write the file with: bakeoff workloads sample"),
        ("[]", "not a session (Expected `object`, got `array`); write the file with: bakeoff workloads sample"),
        (
            '{"turns": []}',
            "not a session (Object missing required field `id`); write the file with: bakeoff workloads sample",
        ),
        ('{"id": "a", "turns": [{}]}', "not a session (Object missing required field `input_tokens`"),
        ('{"id": "a", "turns": [], "start_s": "now"}', "not a session (Expected `float | null`, got `str`"),
        (NEITHER, "a turn needs either messages or prompt"),
        (TWO_PROMPTS, "a turn needs either messages or prompt"),
    ],
)
def test_a_bad_line_is_named_with_its_row(small: Tokenizer, tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(lines([TALK]) + b"\n" + line.encode() + b"\n")
    with pytest.raises(BadTrace) as caught:
        read(path, small)
    assert str(caught.value).startswith(f"{path}, row 3: {message}")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, ": does not exist; give the path"), (b"", ": is empty"), (b"\n\n", ": has no rows")],
)
def test_a_file_without_sessions_is_named(
    small: Tokenizer, tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "s.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadTrace) as caught:
        read(path, small)
    assert str(caught.value).startswith(f"{path}{message}")
