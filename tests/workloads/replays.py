"""Small traces on disk, and the requests of their replays."""

import itertools
from pathlib import Path
from typing import Any

from bakeoff.workloads import PromptReader, Replay, Seed, Session, Tokenizer

SEED = Seed.of("7")


def table(folder: Path, header: str, *rows: str) -> Path:
    return written(folder / "trace.csv", "\n".join([header, *rows]))


def written(path: Path, text: str) -> Path:
    path.write_text(text + "\n", encoding="utf-8")
    return path


def replay(path: Path, **options: Any) -> Replay:
    return Replay(str(path), **options)


def sessions(made: Replay, tokenizer: Tokenizer, seed: Seed = SEED) -> list[Session]:
    return list(made.sessions(tokenizer, seed))


def prompts(made: Replay, tokenizer: Tokenizer, seed: Seed = SEED) -> list[list[int]]:
    reader = PromptReader(tokenizer)
    return [list(reader.ids(turn)) for session in sessions(made, tokenizer, seed) for turn in session.turns]


def common_tokens(a: list[int], b: list[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
