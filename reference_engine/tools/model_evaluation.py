"""Quality of a model on a text and on multiple-choice questions, beside a reference: raw counts as JSON lines.

Both models see the same tokens (teacher forcing), in steps that share a KV cache. Their whole distributions are
compared step by step, so memory is bounded by the logits of a step, [512, vocab_size].

For a model behind a server, `--for-server` computes only the reference and reports tokens: those to send, and those
that count as a match. `--tokens-only` computes nothing and reports those to send. The reader of the lines computes
means and intervals.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch
from torch.nn.functional import kl_div

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.files import read_text
from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.loading.checkpoint import Checkpoint, open_checkpoint
from bakeoff.reference_engine.tools.evaluation_input import (
    PIECE_TOKENS,
    Question,
    TokenSequence,
    pieces_of,
    questions_of,
)
from bakeoff.reference_engine.tools.evaluator import NEAR_TIE_NATS, STEP_TOKENS, PerplexityMeter

_EXACT_STEP_TOKENS = 512  # bounds the logits; without rounding of the cache, the step does not matter


class Header(msgspec.Struct, frozen=True, tag="header"):
    """The first line: how the model was computed, and how many lines follow.

    Attributes:
        dtype: of weights and activations.
        kv_cache_dtype: of the KV cache; ``auto`` is `dtype`.
        device: ``cpu`` or ``cuda``.
        text_sha256: hash of the whole text in UTF-8.
        tokens_sha256: hash of the tokens of all pieces, as JSON.
        pieces: number of pieces.
        questions: number of questions.
    """

    dtype: str
    kv_cache_dtype: str
    device: str
    text_sha256: str
    tokens_sha256: str
    pieces: int
    questions: int


class PieceLine(msgspec.Struct, frozen=True, tag="piece"):
    """One piece of the text. Sums are over its predicted tokens, in nats.

    Attributes:
        tokens: tokens predicted.
        nats: sum of -ln p of the model.
        reference_nats: sum of -ln p of the reference.
        kl_nats: sum of the Kullback-Leibler divergences of the model's distribution from the reference's.
        matches: positions at which the model's likeliest token is the reference's.
        near_ties: other positions at which the reference gives the two tokens log-probabilities that differ by less
            than `NEAR_TIE_NATS`.
        hits: positions at which the model finds no token likelier than the text's.
    """

    tokens: int
    nats: float
    reference_nats: float
    kl_nats: float
    matches: int
    near_ties: int
    hits: int


class QuestionLine(msgspec.Struct, frozen=True, tag="question"):
    """One question: for each choice its log-probability under the model, in nats, and its length in bytes."""

    line: int
    answer: int
    logprobs: list[float]
    num_bytes: list[int]


class PieceTokensLine(msgspec.Struct, frozen=True, tag="piece_tokens"):
    """One piece for a server.

    Attributes:
        ids: its tokens.
        first: index of the first token whose successor is predicted.
        reference_nats: as in `PieceLine`; None without a reference.
        likeliest: for each predicted position the reference's likeliest token, followed by those less than
            `NEAR_TIE_NATS` below it; None without a reference.
    """

    ids: list[int]
    first: int
    reference_nats: float | None = None
    likeliest: list[list[int]] | None = None


class QuestionTokensLine(msgspec.Struct, frozen=True, tag="question_tokens"):
    """One question for a server.

    Attributes:
        line: number of its line in the file.
        answer: index of the correct choice.
        ids: for each choice, the tokens of question and choice.
        first: for each choice, the index of the first token whose successor is predicted.
        num_bytes: for each choice, its length in UTF-8.
    """

    line: int
    answer: int
    ids: list[list[int]]
    first: list[int]
    num_bytes: list[int]


Line = Header | PieceLine | QuestionLine | PieceTokensLine | QuestionTokensLine


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """Inputs and models of an evaluation.

    Attributes:
        model: the model, and how it is computed.
        text: UTF-8 file.
        max_tokens: tokens of the text to use.
        reference: checkpoint to compare with; None for the model's own weights.
        choices: file of questions; see `questions_of`.
        for_server: compute the model as the reference of a server; see `PieceTokensLine`.
        tokens_only: there is no reference either: only the model's tokenizer and lengths are used.
    """

    model: EngineConfig
    text: Path
    max_tokens: int
    reference: Path | None = None
    choices: Path | None = None
    for_server: bool = False
    tokens_only: bool = False


def evaluate(config: EvaluationConfig) -> Iterator[Line]:
    """Evaluate a model.

    Yields:
        The header, a line for each piece, and one for each question.

    Raises:
        CheckpointError: weights are missing or damaged.
        ConfigError: the settings are invalid, or this machine has no such device.
        RequestError: text or questions are unusable, the reference has another tokenizer, or logits are not finite.
    """
    checkpoint = open_checkpoint(Path(config.model.model))
    other = checkpoint if config.reference is None else open_checkpoint(config.reference)
    is_for_server = config.for_server or config.tokens_only
    longest_prompt = (
        min(checkpoint.config.default_length, other.config.default_length) - is_for_server
    )  # it adds a token
    piece_tokens = min(PIECE_TOKENS, longest_prompt)
    text = read_text(config.text)
    pieces = pieces_of(checkpoint.tokenizer, text, config.max_tokens, piece_tokens)
    length = checkpoint.config.default_length
    questions = questions_of(checkpoint.tokenizer, config.choices, length) if config.choices else []
    if config.reference is not None:
        _check_tokenizer(checkpoint, other, pieces, pieces_of(other.tokenizer, text, config.max_tokens, piece_tokens))
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    tokens_sha256 = hashlib.sha256(msgspec.json.encode([piece.ids for piece in pieces])).hexdigest()
    if config.tokens_only:
        settings = config.model
        lengths = len(pieces), len(questions)
        yield Header(settings.dtype, settings.kv_cache_dtype, settings.device, sha256, tokens_sha256, *lengths)
        yield from (PieceTokensLine(piece.ids, piece.first) for piece in pieces)
        yield from (_question_tokens(question) for question in questions)
        return
    longest = max(len(sequence.ids) for sequence in (*pieces, *(c for question in questions for c in question.choices)))
    # Rounding shows only in tokens that were cached by an earlier step.
    step_tokens = _EXACT_STEP_TOKENS if config.model.kv_cache_dtype == "auto" else STEP_TOKENS
    exact = _exact(config.model, other.path, piece_tokens)
    model = PerplexityMeter(
        exact if config.for_server else dataclasses.replace(config.model, max_model_len=longest), step_tokens
    )
    resolved = model.config
    lengths = len(pieces), len(questions)
    yield Header(resolved.dtype, resolved.kv_cache_dtype, resolved.device, sha256, tokens_sha256, *lengths)
    if config.for_server:
        yield from (_piece_tokens(model, piece) for piece in pieces)
        yield from (_question_tokens(question) for question in questions)
        return
    reference = PerplexityMeter(exact, step_tokens)
    yield from (_compared(model, reference, piece) for piece in pieces)
    del reference  # its weights
    yield from (_answered(model, question) for question in questions)


def _exact(config: EngineConfig, path: Path, length: int) -> EngineConfig:
    """Settings that round nothing except to float32."""
    return dataclasses.replace(
        config, model=str(path), dtype="float32", quantization="none", kv_cache_dtype="auto", max_model_len=length
    )


def _check_tokenizer(
    model: Checkpoint, reference: Checkpoint, pieces: list[TokenSequence], pieces_of_reference: list[TokenSequence]
) -> None:
    if pieces != pieces_of_reference or model.config.vocab_size != reference.config.vocab_size:
        raise RequestError(
            f"{reference.path} has another tokenizer or vocabulary size than {model.path}, so their distributions "
            "cannot be compared; give --reference a checkpoint with the same tokenizer"
        )


@torch.inference_mode()
def _compared(model: PerplexityMeter, reference: PerplexityMeter, piece: TokenSequence) -> PieceLine:
    tokens, nats, reference_nats, kl_nats, matches, near_ties, hits = 0, 0.0, 0.0, 0.0, 0, 0, 0
    steps = zip(model.logits(piece.ids, piece.first), reference.logits(piece.ids, piece.first), strict=True)
    for (start, logits), (_, reference_logits) in steps:
        q, p = logits.float().log_softmax(dim=-1), reference_logits.float().log_softmax(dim=-1)
        rows = len(q)
        successors = torch.tensor(piece.ids[start + 1 : start + 1 + rows], device=q.device)[:, None]
        best, _ = p.max(dim=-1, keepdim=True)
        regrets = best - p.gather(1, q.argmax(dim=-1, keepdim=True))
        own = q.gather(1, successors)
        tokens += rows
        nats -= float(own.double().sum())
        hits += int((own[:, 0] == q.amax(dim=-1)).sum())
        reference_nats -= float(p.gather(1, successors).double().sum())
        kl_nats += float(kl_div(q, p, reduction="none", log_target=True).sum(dim=-1).double().sum())
        matches += int((regrets == 0).sum())
        near_ties += int(((regrets > 0) & (regrets < NEAR_TIE_NATS)).sum())
    _check_finite(nats, reference_nats, kl_nats, dtype=model.config.dtype)
    return PieceLine(tokens, nats, reference_nats, kl_nats, matches, near_ties, hits)


@torch.inference_mode()
def _answered(model: PerplexityMeter, question: Question) -> QuestionLine:
    logprobs = [_logprob(model, choice) for choice in question.choices]
    _check_finite(*logprobs, dtype=model.config.dtype)
    return QuestionLine(question.line, question.answer, logprobs, question.num_bytes)


def _logprob(model: PerplexityMeter, sequence: TokenSequence) -> float:
    """Sum over the predicted tokens."""
    total = 0.0
    for start, logits in model.logits(sequence.ids, sequence.first):
        rows = logits.float().log_softmax(dim=-1)
        successors = torch.tensor(sequence.ids[start + 1 : start + 1 + len(rows)], device=rows.device)
        total += float(rows.gather(1, successors[:, None]).double().sum())
    return total


@torch.inference_mode()
def _piece_tokens(reference: PerplexityMeter, piece: TokenSequence) -> PieceTokensLine:
    nats, likeliest = 0.0, list[list[int]]()
    for start, logits in reference.logits(piece.ids, piece.first):
        rows = logits.float().log_softmax(dim=-1)
        successors = torch.tensor(piece.ids[start + 1 : start + 1 + len(rows)], device=rows.device)
        nats -= float(rows.gather(1, successors[:, None]).double().sum())
        best, tokens = rows.max(dim=-1)
        near: list[list[int]] = [[token] for token in tokens.tolist()]
        for row, token in (rows > best[:, None] - NEAR_TIE_NATS).nonzero().tolist():
            if token != near[row][0]:
                near[row].append(token)
        likeliest += near
    _check_finite(nats, dtype=reference.config.dtype)
    return PieceTokensLine(piece.ids, piece.first, nats, likeliest)


def _question_tokens(question: Question) -> QuestionTokensLine:
    return QuestionTokensLine(
        question.line,
        question.answer,
        [choice.ids for choice in question.choices],
        [choice.first for choice in question.choices],
        question.num_bytes,
    )


def _check_finite(*values: float, dtype: str) -> None:
    if not all(map(math.isfinite, values)):
        raise RequestError(f"the model's logits are not finite in {dtype}; give another --dtype")
