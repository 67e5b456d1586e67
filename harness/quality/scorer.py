"""The reference as a process of its own: ``python -m reference_engine score``, a line of JSON in, a line out."""

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import Sequence

import msgspec

from engines.secrets import masked
from results.quality import Likeness

_PACKAGES = ("torch", "safetensors", "gguf")
"""What it needs of the extra ``engine``; looked for, not imported."""


class Line(msgspec.Struct, frozen=True):
    """What the scorer reads of one answer."""

    id: str
    prompt_ids: list[int]
    output_ids: list[int]
    logprobs: list[float] | None = None


class Score(Likeness, frozen=True, kw_only=True):
    """What it writes."""

    id: str
    error: str | None = None


class Scores(msgspec.Struct, frozen=True):
    """What came back.

    Attributes:
        by_id: one score for each answer that was reached.
        failure: what ended it before the last; None where all were reached.
    """

    by_id: dict[str, Score]
    failure: str | None = None


def not_installed() -> str | None:
    """Why there is no reference here; None where there is one."""
    if all(importlib.util.find_spec(package) for package in _PACKAGES):
        return None
    return "the reference is not installed here; run: pip install 'bakeoff[engine]'"


async def scored(model: str, lines: Sequence[Line], limit_s: float) -> Scores:
    """Score answers, the model loaded once; whatever goes wrong is in the result.

    Args:
        model: folder of the checkpoint, or a GGUF file.
        lines: the answers.
        limit_s: for all of them, loading included.
    """
    found: dict[str, Score] = {}
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "reference_engine", "score", "--model", model,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return Scores(found, f"the reference cannot be started: {error}")
    try:
        async with asyncio.timeout(limit_s):
            _, words, odd = await asyncio.gather(_tell(process, lines), _words(process), _read(process, found))
            status = await process.wait()
    except TimeoutError:
        return Scores(found, f"the reference took longer than quality.limit_s, {limit_s:g} s")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return Scores(found, odd or (f"the reference ended with status {status}: {words}" if status else None))


async def _tell(process: asyncio.subprocess.Process, lines: Sequence[Line]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # it ended early: its last words say why
        for line in lines:
            process.stdin.write(msgspec.json.encode(line) + b"\n")
            await process.stdin.drain()
        process.stdin.close()


async def _read(process: asyncio.subprocess.Process, found: dict[str, Score]) -> str | None:
    """Take in scores; returns what was none, the first time."""
    assert process.stdout is not None
    odd: str | None = None
    while line := await process.stdout.readline():
        try:
            score = msgspec.json.decode(line, type=Score)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            odd = odd or f"the reference wrote what is no score: {error}"
        else:
            found[score.id] = score
    return odd


async def _words(process: asyncio.subprocess.Process) -> str:
    """Its complaint, or its last line."""
    assert process.stderr is not None
    said = masked((await process.stderr.read()).decode("utf-8", "replace")).strip().splitlines()
    return next((line.removeprefix("error: ") for line in said if line.startswith("error: ")), said[-1] if said else "")
