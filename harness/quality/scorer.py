"""The reference as a process of its own: ``python -m reference_engine score``, a line of JSON in, a line out."""

import asyncio
import importlib.util
import tempfile
from asyncio.subprocess import Process
from collections.abc import Sequence

import msgspec

from engines.secrets import masked
from harness.child import child_process, read_line, send, tail
from results.quality import TokenMatch

_PACKAGES = ("torch", "safetensors", "gguf")
"""What it needs of the extra ``engine``; looked for, not imported."""


class Line(msgspec.Struct, frozen=True):
    """What the scorer reads of one answer."""

    id: str
    prompt_ids: list[int]
    output_ids: list[int]
    logprobs: list[float] | None = None


class Score(TokenMatch, frozen=True, kw_only=True):
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
    arguments = ("score", "--model", model)
    try:
        with tempfile.TemporaryFile() as stderr:
            async with (
                child_process("reference_engine", *arguments, stderr=stderr, stop_s=0) as reference,
                asyncio.timeout(limit_s),
            ):
                _, odd = await asyncio.gather(_tell(reference, lines), _read(reference, found))
                status = await reference.wait()
            complaint = _complaint(tail(stderr))
    except TimeoutError:
        return Scores(found, f"the reference took longer than quality.limit_s, {limit_s:g} s")
    except OSError as error:
        return Scores(found, f"the reference cannot be started: {error}")
    return Scores(found, odd or (f"the reference ended with status {status}: {complaint}" if status else None))


async def _tell(reference: Process, lines: Sequence[Line]) -> None:
    assert reference.stdin is not None
    for line in lines:
        await send(reference, line)
    reference.stdin.close()


async def _read(reference: Process, found: dict[str, Score]) -> str | None:
    """Take in scores; returns what was none, the first time."""
    odd: str | None = None
    while line := await read_line(reference):
        try:
            score = msgspec.json.decode(line, type=Score)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            odd = odd or f"the reference wrote what is no score: {error}"
        else:
            found[score.id] = score
    return odd


def _complaint(stderr: str) -> str:
    """The line that says what was wrong, or the last one."""
    said = masked(stderr).splitlines()
    return next((line.removeprefix("error: ") for line in said if line.startswith("error: ")), said[-1] if said else "")
