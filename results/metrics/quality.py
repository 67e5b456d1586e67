"""Token match: answers of a trial compared with a float32 reference of the same model.

The harness compares a few answers of each trial with the same weights in float32 at batch size 1 and writes
``trials/<id>/quality.json``; this module reads and pools them. Regret, in nats, is the reference's log-probability of
its own best token minus that of the engine's token. Rounding flips near ties at almost no regret; wrong weights or a
broken kernel cause large regret.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from bakeoff.results.schema import SCHEMA_VERSION

MAX_MEAN_REGRET = 0.05
"""Nats; above it the answers differ from the reference."""
MIN_AGREEMENT = 0.9
"""Fraction of tokens, near ties included; below it the answers differ from the reference."""
EARLY = 8
"""A mismatch before this many tokens is early."""
LARGE_REGRET = 0.5
"""Nats; more than the rounding of a 16-bit format can explain."""


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token other than the reference's most likely one."""

    position: int
    """Position in the answer, from 0."""
    token: int
    expected: int
    """The reference's most likely token."""
    regret: float
    token_text: str = ""
    expected_text: str = ""


class TokenMatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How well one answer matches the reference; made by the scorer and stored."""

    tokens: int = 0
    """Positions compared."""
    agreement: float | None = None
    """Fraction of positions at which the engine's token was the reference's most likely one."""
    first_divergence: int | None = None
    """Position of the first mismatch."""
    matched_prefix: int = 0
    """Number of tokens before the first mismatch."""
    mean_regret: float | None = None
    max_regret: float | None = None
    near_ties: int = 0
    """Mismatches with a regret small enough to be explained by rounding."""
    first: Difference | None = None
    worst: Difference | None = None
    mean_abs_logprob_diff: float | None = None
    """Difference of the engine's log-probabilities from the reference's, if requested and returned."""
    max_abs_logprob_diff: float | None = None


class QualitySample(TokenMatch, frozen=True, kw_only=True, omit_defaults=True):
    """One answer compared with the reference."""

    index: int
    """Index of the request, as in its record."""
    session: str
    turn: int
    why: str | None = None
    """Why the answer could not be compared; all other fields are then empty."""
    prompt_tokens: int = 0
    retokenised: bool = False
    """Whether token ids were recovered from the text with the model's tokenizer, as the engine returned none."""


class QualitySummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Several answers pooled; fractions and means are over their tokens."""

    answers: int
    tokens: int
    agreement: float
    identical: int
    """Answers without a mismatch."""
    mean_regret: float
    max_regret: float
    near_ties: int
    early: int = 0
    """Answers with a regret of at least :data:`LARGE_REGRET` before position :data:`EARLY`."""
    retokenised: int = 0
    mean_abs_logprob_diff: float | None = None
    max_abs_logprob_diff: float | None = None

    @property
    def differs(self) -> bool:
        """Whether the answers differ from the reference by more than rounding explains."""
        with_near_ties = self.agreement + self.near_ties / self.tokens
        return self.mean_regret > MAX_MEAN_REGRET or with_near_ties < MIN_AGREEMENT


class QualityRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``quality.json``: derived from a trial's raw log after its engine has stopped."""

    schema_version: int = SCHEMA_VERSION
    reference: str = "float32, batch 1"
    """Precision and batch size of the reference."""
    samples: list[QualitySample] = []
    summary: QualitySummary | None = None
    why: str | None = None
    """Why no answer was compared."""
    warnings: list[str] = []


def pooled(samples: Iterable[QualitySample]) -> QualitySummary | None:
    """Pool the answers that were compared; None if there are none."""
    compared = [sample for sample in samples if sample.agreement is not None]
    tokens = sum(sample.tokens for sample in compared)
    if not tokens:
        return None

    def mean(values: Iterator[tuple[float, int]]) -> float:
        pairs = list(values)
        return math.fsum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs)

    with_logprobs = [sample for sample in compared if sample.mean_abs_logprob_diff is not None]
    return QualitySummary(
        answers=len(compared),
        tokens=tokens,
        agreement=mean((sample.agreement or 0.0, sample.tokens) for sample in compared),
        identical=sum(sample.first_divergence is None for sample in compared),
        mean_regret=mean((sample.mean_regret or 0.0, sample.tokens) for sample in compared),
        max_regret=max(sample.max_regret or 0.0 for sample in compared),
        near_ties=sum(sample.near_ties for sample in compared),
        early=sum(any(map(_early_and_large, (sample.first, sample.worst))) for sample in compared),
        retokenised=sum(sample.retokenised for sample in compared),
        mean_abs_logprob_diff=(
            mean((s.mean_abs_logprob_diff or 0.0, s.tokens) for s in with_logprobs) if with_logprobs else None
        ),
        max_abs_logprob_diff=max((s.max_abs_logprob_diff or 0.0 for s in with_logprobs), default=None),
    )


def _early_and_large(difference: Difference | None) -> bool:
    return difference is not None and difference.position < EARLY and difference.regret >= LARGE_REGRET


def why_unchecked(records: Sequence[QualityRecord | None]) -> str:
    """Return why no answer of these trials was compared."""
    if not records:
        return "no trial ended"
    present = [record for record in records if record is not None]
    reasons = [record.why for record in present if record.why]
    reasons += [sample.why for record in present for sample in record.samples if sample.why]
    return next(iter(reasons), "answers were not compared")
