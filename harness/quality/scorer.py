"""Runs ``python -m bakeoff.reference_engine score`` as a process: one JSON line in and out per answer."""

import asyncio
import importlib.util
import tempfile
from asyncio.subprocess import Process
from collections.abc import Sequence

import msgspec

from bakeoff.engines.secrets import masked
from bakeoff.harness.host.child import child_process, read_line, send, tail
from bakeoff.installation import how_to_install
from bakeoff.results.metrics.quality import TokenMatch

_PACKAGES = ("torch", "safetensors", "gguf")
"""Packages of the extra ``engine`` that it needs; checked without importing them."""


class Line(msgspec.Struct, frozen=True):
    """Input of the scorer for one answer."""

    id: str
    prompt_ids: list[int]
    output_ids: list[int]
    logprobs: list[float] | None = None


class Score(TokenMatch, frozen=True, kw_only=True):
    """Output of the scorer for one answer."""

    id: str
    error: str | None = None


class Scores(msgspec.Struct, frozen=True):
    """All output of the scorer.

    Attributes:
        by_id: score by id, for each answer that it reached.
        failure: reason for an early end; None if it reached all answers.
    """

    by_id: dict[str, Score]
    failure: str | None = None


def not_installed() -> str | None:
    """The reason why the reference cannot run here; None if it can."""
    if all(importlib.util.find_spec(package) for package in _PACKAGES):
        return None
    return f"the reference is not installed here; run: {how_to_install('engine')}"


async def scored(model: str, lines: Sequence[Line], limit_s: float) -> Scores:
    """Score answers in one process that loads the model once; a failure is part of the result.

    Args:
        model: folder of the checkpoint, or a GGUF file.
        lines: the answers.
        limit_s: time limit for all answers, including loading.
    """
    scores: dict[str, Score] = {}
    arguments = ("score", "--model", model)
    try:
        with tempfile.TemporaryFile() as stderr:
            async with (
                child_process("bakeoff.reference_engine", *arguments, stderr=stderr, stop_s=0) as reference,
                asyncio.timeout(limit_s),
            ):
                _, malformed = await asyncio.gather(_write(reference, lines), _read(reference, scores))
                status = await reference.wait()
            message = error_line(tail(stderr))
    except TimeoutError:
        return Scores(scores, f"the reference took longer than quality.limit_s, {limit_s:g} s")
    except OSError as error:
        return Scores(scores, f"the reference cannot be started: {error}")
    return Scores(scores, malformed or (f"the reference ended with status {status}: {message}" if status else None))


async def _write(reference: Process, lines: Sequence[Line]) -> None:
    assert reference.stdin is not None
    for line in lines:
        await send(reference, line)
    reference.stdin.close()


async def _read(reference: Process, scores: dict[str, Score]) -> str | None:
    """Read all scores; returns an error for the first malformed line."""
    malformed: str | None = None
    while line := await read_line(reference):
        try:
            score = msgspec.json.decode(line, type=Score)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            malformed = malformed or f"the reference wrote a malformed score: {error}"
        else:
            scores[score.id] = score
    return malformed


def error_line(stderr: str) -> str:
    """The line with the error in the reference engine's stderr, or its last line."""
    lines = masked(stderr).splitlines()
    errors = (line.removeprefix("error: ") for line in lines if line.startswith("error: "))
    return next(errors, lines[-1] if lines else "")
