"""Quality of a model on a text and on questions: runs the reference engine's ``evaluate`` and pools its lines.

The reference engine tokenises and computes. For a model behind a server it computes the reference alone and reports
tokens, which the server then scores (:mod:`bakeoff.harness.quality.prompt_logprobs`); without a reference it only
tokenises.
"""

import math
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import aiohttp
import msgspec

from bakeoff.engines import Deployment
from bakeoff.engines.identification import tokenizer_folder
from bakeoff.harness.errors import EvaluationFailed
from bakeoff.harness.host.child import child_process, read_line, tail
from bakeoff.harness.host.scratch import scratch_folder
from bakeoff.harness.quality.prompt_logprobs import Prediction, PromptScorer, served_model
from bakeoff.harness.quality.scorer import error_line, not_installed
from bakeoff.results.compare.evaluation import Accuracy, Evaluation, PieceSum
from bakeoff.results.statistics.interval import Interval, ratio_interval, wilson_interval
from bakeoff.workloads.rng import Rng
from bakeoff.workloads.text.prose import prose_units

_CHARACTERS_PER_TOKEN = 8
"""More than any common tokenizer's on English prose, so that the built-in text never ends early."""
_NO_KL = "servers return the likeliest tokens only, and the divergence needs whole distributions"
_MAX_EXPONENT = 709.0
Progress = Callable[[int, int], None]
"""Is called with the lines received so far and their expected number."""


class EvaluationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to evaluate.

    Attributes:
        model: folder of the checkpoint, or a GGUF file; with `server`, of the reference, and None without one: the
            server's own checkpoint on this machine then gives the tokenizer.
        reference: checkpoint to compare with; None for the same weights in float32, and with `server`.
        server: address and credentials of the server to evaluate instead.
        served_model: its model's name in requests; None for its only model.
        text: UTF-8 file; None for the built-in text.
        max_tokens: tokens of the text to use.
        choices: file of multiple-choice questions.
        dtype: to compute the model in; None for its own.
        kv_cache_dtype: of the model's KV cache; None for that of the activations.
        device: ``auto``, ``cpu`` or ``cuda``.
    """

    model: str | None
    reference: str | None = None
    server: Deployment | None = None
    served_model: str | None = None
    text: Path | None = None
    max_tokens: int
    choices: Path | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    device: str = "auto"


class Header(msgspec.Struct, frozen=True, tag="header"):
    """First line: how the model was computed, and how many lines follow."""

    dtype: str
    kv_cache_dtype: str
    device: str
    text_sha256: str
    tokens_sha256: str
    pieces: int
    questions: int


class Piece(msgspec.Struct, frozen=True, tag="piece"):
    """Sums over the predicted tokens of one piece of the text, in nats.

    Figures that need a reference are None without one; ``kl_nats`` is also None for a server. ``hits`` are positions at
    which the text's token is the likeliest.
    """

    tokens: int
    nats: float
    reference_nats: float | None
    kl_nats: float | None
    matches: int | None
    near_ties: int | None
    hits: int


class Question(msgspec.Struct, frozen=True, tag="question"):
    """Log-probability and length in bytes of each choice of one question."""

    line: int
    answer: int
    logprobs: list[float]
    num_bytes: list[int]


class PieceTokens(msgspec.Struct, frozen=True, tag="piece_tokens"):
    """One piece for a server. ``likeliest``: per predicted position the reference's likeliest token, then near ties."""

    ids: list[int]
    first: int
    reference_nats: float | None = None
    likeliest: list[list[int]] | None = None


class QuestionTokens(msgspec.Struct, frozen=True, tag="question_tokens"):
    """One question for a server: tokens of question and choice, of which those after index ``first`` are predicted."""

    line: int
    answer: int
    ids: list[list[int]]
    first: list[int]
    num_bytes: list[int]


Line = Header | Piece | Question | PieceTokens | QuestionTokens


async def evaluate(settings: EvaluationSettings, progress: Progress) -> Evaluation:
    """Evaluate a model.

    Raises:
        EvaluationFailed: the settings, text or questions are unusable, or the server or the reference engine failed.
        EngineError: the server's address is invalid, or it does not identify its model.
    """
    if why := not_installed():
        raise EvaluationFailed(why)
    with scratch_folder() as folder:
        text = settings.text
        if text is None:
            text = Path(folder, "prose.txt")
            text.write_text(built_in_text(settings.max_tokens), encoding="utf-8")
        name, model = settings.served_model, settings.model
        if settings.server is not None and (name is None or model is None):
            name, checkpoint = await served_model(settings.server, name)
            model = model or checkpoint_folder(name, checkpoint)
        lines = evaluate_lines(evaluate_arguments(settings, str(model), text))
        async with aclosing(lines):
            if settings.server is None:
                return await pooled(settings, lines, None, progress)
            async with aiohttp.ClientSession() as session:
                scorer = PromptScorer(session, settings.server, str(name))
                return await pooled(settings, lines, scorer, progress)


def checkpoint_folder(model: str, checkpoint: str | None) -> str:
    """Folder on this machine with the checkpoint of a served model, for its tokenizer.

    Raises:
        EvaluationFailed: there is none.
    """
    folder = tokenizer_folder(model, checkpoint)
    if folder is None:
        raise EvaluationFailed(
            f"the text must become tokens of {model}, whose checkpoint is not on this machine; give a folder with the "
            "same tokenizer with --reference"
        )
    return str(folder)


def built_in_text(tokens: int) -> str:
    """At least this many tokens of English from the grammar of the workloads, the same on every machine."""
    parts, characters = list[str](), 0
    for unit in prose_units(Rng("1", "evaluation")):
        parts.append(unit)
        characters += len(unit)
        if characters >= tokens * _CHARACTERS_PER_TOKEN:
            break
    return "".join(parts)


def evaluate_arguments(settings: EvaluationSettings, model: str, text: Path) -> list[str]:
    """Arguments of ``python -m bakeoff.reference_engine evaluate``."""
    parameters = {
        "--model": model,
        "--text": text,
        "--max-tokens": settings.max_tokens,
        "--reference": settings.reference,
        "--choices": settings.choices,
        "--dtype": settings.dtype,
        "--kv-cache-dtype": settings.kv_cache_dtype,
        "--device": settings.device,
    }
    words = [str(word) for flag, value in parameters.items() if value is not None for word in (flag, value)]
    if settings.server is None:
        return words
    return [*words, "--tokens-only" if settings.model is None else "--for-server"]


async def evaluate_lines(arguments: Sequence[str]) -> AsyncGenerator[Line]:
    """Run ``python -m bakeoff.reference_engine evaluate``, and yield its lines.

    Raises:
        EvaluationFailed: it failed, with its own reason.
    """
    with tempfile.TemporaryFile() as stderr:
        async with child_process("bakeoff.reference_engine", "evaluate", *arguments, stderr=stderr, stop_s=0) as child:
            while line := await read_line(child):
                yield msgspec.json.decode(line, type=Line)
            status = await child.wait()
        if status:
            raise EvaluationFailed(error_line(tail(stderr)) or f"the reference engine ended with status {status}")


async def pooled(
    settings: EvaluationSettings,
    lines: AsyncIterable[Line],
    server: PromptScorer | None,
    progress: Progress,
) -> Evaluation:
    """Pool the lines of the reference engine; a server scores those with tokens.

    Raises:
        EvaluationFailed: the server failed.
    """
    header: Header | None = None
    pieces, questions = list[Piece](), list[Question]()
    async for line in lines:
        match line:
            case Header():
                header = line
            case Piece():
                pieces.append(line)
            case Question():
                questions.append(line)
            case PieceTokens():
                assert server is not None
                pieces.append(_served_piece(line, await server.predictions(line.ids)))
            case QuestionTokens():
                assert server is not None
                questions.append(await _served_question(line, server))
        assert header is not None
        progress(len(pieces) + len(questions), header.pieces + header.questions)
    assert header is not None
    nats = _not_negative(_per_token([piece.nats for piece in pieces], pieces))
    differences = [piece.nats - piece.reference_nats for piece in pieces if piece.reference_nats is not None]
    divergences = [piece.kl_nats for piece in pieces if piece.kl_nats is not None]
    references = [piece.reference_nats for piece in pieces if piece.reference_nats is not None]
    tokens = sum(piece.tokens for piece in pieces)
    return Evaluation(
        model=server.model if server else str(settings.model),
        url=server.url if server else None,
        dtype=None if server else header.dtype,
        kv_cache_dtype=None if server else header.kv_cache_dtype,
        reference=settings.reference or settings.model,
        text=None if settings.text is None else str(settings.text),
        text_sha256=header.text_sha256,
        tokens_sha256=header.tokens_sha256,
        pieces=len(pieces),
        tokens=tokens,
        perplexity=_exponential(nats),
        nats_per_token=nats,
        top1_match=wilson_interval(sum(piece.hits for piece in pieces), tokens),
        reference_perplexity=_exponential(_not_negative(_per_token(references, pieces))) if references else None,
        perplexity_ratio=_exponential(_per_token(differences, pieces)) if differences else None,
        kl_nats_per_token=None if server else _not_negative(_per_token(divergences, pieces)),
        kl_absent=_NO_KL if server else None,
        token_match=wilson_interval(sum(piece.matches or 0 for piece in pieces), tokens) if references else None,
        near_ties=sum(piece.near_ties or 0 for piece in pieces) if references else None,
        choices=_accuracy(str(settings.choices), questions) if questions else None,
        piece_sums=[PieceSum(piece.tokens, piece.nats) for piece in pieces],
    )


def _served_piece(piece: PieceTokens, predictions: Sequence[Prediction]) -> Piece:
    """One prediction per token but the first of the piece."""
    predicted = predictions[piece.first :]
    matches = near_ties = None
    if piece.likeliest is not None:
        pairs = list(zip(predicted, piece.likeliest, strict=True))
        matches = sum(prediction.likeliest == tokens[0] for prediction, tokens in pairs)
        near_ties = sum(prediction.likeliest in tokens[1:] for prediction, tokens in pairs)
    successors = piece.ids[piece.first + 1 :]
    return Piece(
        tokens=len(predicted),
        nats=-math.fsum(prediction.logprob for prediction in predicted),
        reference_nats=piece.reference_nats,
        kl_nats=None,
        matches=matches,
        near_ties=near_ties,
        hits=sum(prediction.likeliest == own for prediction, own in zip(predicted, successors, strict=True)),
    )


async def _served_question(question: QuestionTokens, server: PromptScorer) -> Question:
    logprobs = [
        math.fsum(prediction.logprob for prediction in (await server.predictions(ids))[first:])
        for ids, first in zip(question.ids, question.first, strict=True)
    ]
    return Question(question.line, question.answer, logprobs, question.num_bytes)


def _accuracy(file: str, questions: Sequence[Question]) -> Accuracy:
    raw = sum(_chosen(question.logprobs) == question.answer for question in questions)
    per_byte = sum(
        _chosen([a / b for a, b in zip(question.logprobs, question.num_bytes, strict=True)]) == question.answer
        for question in questions
    )
    return Accuracy(file, wilson_interval(raw, len(questions)), wilson_interval(per_byte, len(questions)))


def _chosen(scores: Sequence[float]) -> int:
    """Index of the largest score, the first of several."""
    return max(range(len(scores)), key=lambda index: scores[index])


def _per_token(sums: Sequence[float], pieces: Sequence[Piece]) -> Interval:
    return ratio_interval(sums, [piece.tokens for piece in pieces])


def _exponential(interval: Interval) -> Interval:
    low, high = (None if bound is None else _exp(bound) for bound in (interval.low, interval.high))
    return msgspec.structs.replace(interval, centre=_exp(interval.centre), low=low, high=high)


def _exp(nats: float) -> float:
    """Infinite instead of an overflow: the upper bound of two very different pieces can be beyond any float."""
    return math.exp(nats) if nats < _MAX_EXPONENT else math.inf


def _not_negative(interval: Interval) -> Interval:
    """Clip at 0: neither -ln p nor a divergence is negative, but a mean of divergences near 0 can be, by rounding."""
    low = None if interval.low is None else max(0.0, interval.low)
    return msgspec.structs.replace(interval, centre=max(0.0, interval.centre), low=low)
