"""Evaluations of models (``bakeoff models eval --json``), and the comparison of two by perplexity.

Two evaluations of the same tokens are paired piece by piece: pieces of a text differ from each other by far more than
two engines differ on one piece.
"""

import math
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from bakeoff.results.compare.comparison import EngineComparison
from bakeoff.results.compare.config import ComparisonConfig, agreed
from bakeoff.results.errors import UNDECODABLE, NoEvidence, NotComparable, NotImportable
from bakeoff.results.metrics.catalogue import PERPLEXITY
from bakeoff.results.statistics.comparison import Criteria, judged
from bakeoff.results.statistics.interval import Interval, ratio_error
from bakeoff.results.statistics.permutation import sign_test
from bakeoff.results.statistics.two_sample import Contrast, Method

PERPLEXITY_BAND = 0.01
"""Default equivalence band. Weights in 8 bits usually cost less, weights in 4 bits more."""


class Accuracy(msgspec.Struct, frozen=True):
    """Accuracy on multiple-choice questions.

    Attributes:
        file: of the questions.
        accuracy: share of questions whose correct choice has the largest log-probability.
        accuracy_per_byte: the same with each log-probability divided by the choice's length in bytes.
    """

    file: str
    accuracy: Interval
    accuracy_per_byte: Interval


class PieceSum(msgspec.Struct, frozen=True):
    """Predicted tokens of one piece of a text, and the sum of their -ln p."""

    tokens: int
    nats: float


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of a model, mostly beside a reference. Intervals are at 95 %.

    Attributes:
        model: its path, or its name on the server.
        url: address of the server.
        dtype: of the computation; None for a server.
        kv_cache_dtype: of its KV cache; ``auto`` is `dtype`; None for a server.
        reference: path of the reference, which is computed in float32; None for a server without one.
        text: file; None for the built-in text.
        text_sha256: hash of the whole text.
        tokens_sha256: hash of the tokens of all pieces.
        pieces: pieces of the text, the groups of the intervals.
        tokens: tokens predicted.
        perplexity: exp of `nats_per_token`.
        nats_per_token: mean of -ln p.
        top1_match: share of positions at which the model finds no token likelier than the text's.
        reference_perplexity: of the reference, on the same tokens.
        perplexity_ratio: the model's perplexity over the reference's. Paired by piece, so that its interval does not
            include how pieces differ from each other.
        kl_nats_per_token: mean divergence of the model's distribution from the reference's.
        kl_absent: why there is none.
        token_match: share of positions at which model and reference have the same likeliest token.
        near_ties: mismatches that the reference nearly considers a tie.
        choices: accuracy, if there were questions.
        piece_sums: the sums from which perplexity is computed, piece by piece.
    """

    model: str
    url: str | None
    dtype: str | None
    kv_cache_dtype: str | None
    reference: str | None
    text: str | None
    text_sha256: str
    tokens_sha256: str
    pieces: int
    tokens: int
    perplexity: Interval
    nats_per_token: Interval
    top1_match: Interval
    reference_perplexity: Interval | None
    perplexity_ratio: Interval | None
    kl_nats_per_token: Interval | None
    kl_absent: str | None
    token_match: Interval | None
    near_ties: int | None
    choices: Accuracy | None
    piece_sums: list[PieceSum]


def read_evaluation(file: Path) -> Evaluation:
    """Read an evaluation from a file.

    Raises:
        NotImportable: the file cannot be read, or is not the output of ``bakeoff models eval --json``.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=Evaluation)
    except OSError as error:
        raise NotImportable(f"{file} cannot be read: {error.strerror or error}") from error
    except UNDECODABLE as error:
        raise NotImportable(
            f"{file} is not an evaluation ({error}); write it with bakeoff models eval --json"
        ) from error


def perplexity_config(alpha: float, band: float | str | Iterable[str] | None) -> ComparisonConfig:
    """Configuration of a comparison of evaluations.

    Arguments and errors are those of :func:`~bakeoff.results.compare.config.agreed`. Only ``perplexity`` can have a
    band of its own.
    """
    return agreed(None, None, alpha, band, known={PERPLEXITY.name: PERPLEXITY}, default_band=PERPLEXITY_BAND)


def compare_evaluations(a: Path, b: Path, config: ComparisonConfig) -> EngineComparison:
    """Compare the perplexities of two evaluations, piece by piece.

    The effect is the ratio of the perplexities. Its standard error is that of a ratio estimate
    (:func:`~bakeoff.results.statistics.interval.ratio_error`) of the difference in nats per token.

    Args:
        a: file of the baseline.
        b: file of the candidate.
        config: from :func:`perplexity_config`.

    Raises:
        NotImportable: as of :func:`read_evaluation`.
        NotComparable: the evaluations are of different tokens.
        NoEvidence: the text has fewer than two pieces.
    """
    first, second = read_evaluation(a), read_evaluation(b)
    _check(first, second, a, b)
    sizes = [piece.tokens for piece in first.piece_sums]
    differences = [
        theirs.nats - ours.nats for ours, theirs in zip(first.piece_sums, second.piece_sums, strict=True)
    ]  # fmt: skip
    n = len(sizes)
    difference = math.fsum(differences) / sum(sizes)
    effect = Contrast(difference, ratio_error(differences, sizes), n - 1.0, Method.PIECES, (n, n))
    per_token = np.asarray(differences) / np.asarray(sizes)
    criteria = Criteria(alpha=config.alpha, band=config.band_of(PERPLEXITY))
    level = f"{sum(sizes):,} tokens of {first.text or 'the built-in text'}"
    comparison = judged(PERPLEXITY, level, effect, sign_test(per_token), criteria)
    names = _names(first, second, a, b)
    return EngineComparison(*names, primary=comparison, comparisons=[comparison], answers={}, config=config)


def _check(first: Evaluation, second: Evaluation, a: Path, b: Path) -> None:
    if first.text_sha256 != second.text_sha256:
        raise NotComparable(f"{a} and {b} are of different texts; evaluate both with the same --text")
    sizes_a, sizes_b = ([piece.tokens for piece in evaluation.piece_sums] for evaluation in (first, second))
    if first.tokens_sha256 != second.tokens_sha256 or sizes_a != sizes_b:
        raise NotComparable(
            f"{a} and {b} are of different tokens of one text; evaluate models with the same tokenizer and --max-tokens"
        )
    if len(sizes_a) < 2:
        raise NoEvidence("the text has one piece, so its noise is unknown; evaluate a longer one (--max-tokens)")


def _names(first: Evaluation, second: Evaluation, a: Path, b: Path) -> tuple[str, str]:
    """Headings: the models and where they were computed, or the files where these are the same."""
    names = [
        f"{evaluation.model} {f'at {evaluation.url}' if evaluation.url else f'in {evaluation.dtype}'}"
        + ("" if evaluation.kv_cache_dtype in {None, "auto"} else f", KV cache {evaluation.kv_cache_dtype}")
        for evaluation in (first, second)
    ]
    return (names[0], names[1]) if names[0] != names[1] else (str(a), str(b))
