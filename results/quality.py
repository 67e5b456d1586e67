"""Whether engines said what the model says: answers of a trial compared with a reference, and what that adds up to.

The harness compares a few answers of each trial with the same weights in float32 at batch 1 and writes
``trials/<id>/quality.json``; here they are read and pooled. Regret is in nats: by how much the reference held another
token likelier than the one that the engine took. Rounding flips near ties, which costs next to none; other weights or a
broken kernel cost much.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from results.records import SCHEMA_VERSION

MAX_MEAN_REGRET = 0.05
"""Nats; above it answers are said to differ from the reference."""
MIN_AGREEMENT = 0.9
"""Share of tokens; below it likewise. Near ties count as agreement here: rounding explains them."""
EARLY = 8
"""A disagreement before this many tokens is early."""
LARGE_REGRET = 0.5
"""Nats; no rounding of a 16-bit format explains this much."""


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token that the reference would not have taken."""

    position: int
    """In the answer, from 0."""
    token: int
    expected: int
    """What the reference would have taken."""
    regret: float
    token_text: str = ""
    expected_text: str = ""


class Likeness(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How like the reference one answer is; what the scorer finds, and what is stored of it."""

    tokens: int = 0
    """Positions compared."""
    agreement: float | None = None
    """Share of positions at which no other token was likelier."""
    first_divergence: int | None = None
    """Position of the first at which one was."""
    matched_prefix: int = 0
    """Tokens before it; all of them where there is none."""
    mean_regret: float | None = None
    max_regret: float | None = None
    near_ties: int = 0
    """Disagreements with a regret so small that rounding explains them."""
    first: Difference | None = None
    worst: Difference | None = None
    mean_abs_logprob_diff: float | None = None
    """Of the engine's own log-probabilities, where they were asked for and sent."""
    max_abs_logprob_diff: float | None = None


class QualitySample(Likeness, frozen=True, kw_only=True, omit_defaults=True):
    """One answer beside the reference."""

    index: int
    """Of the request, as in its record."""
    session: str
    turn: int
    why: str | None = None
    """Why it could not be compared; the rest is then empty."""
    prompt_tokens: int = 0
    retokenised: bool = False
    """The engine sent no token ids: the model's tokenizer read them from the text."""


class QualitySummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Several answers together; shares and means are over their tokens."""

    answers: int
    tokens: int
    agreement: float
    identical: int
    """Answers without a disagreement."""
    mean_regret: float
    max_regret: float
    near_ties: int
    early: int = 0
    """Answers with a regret of :data:`LARGE_REGRET` or more before position :data:`EARLY`."""
    retokenised: int = 0
    mean_abs_logprob_diff: float | None = None
    max_abs_logprob_diff: float | None = None

    @property
    def differs(self) -> str | None:
        """What is wrong with the answers, in words; None where nothing is."""
        sure = self.agreement + self.near_ties / self.tokens
        if self.mean_regret <= MAX_MEAN_REGRET and sure >= MIN_AGREEMENT:
            return None
        return (
            f"answers differ from the reference: {100 * self.agreement:.3g} % of {self.tokens:,} tokens agree, "
            f"mean regret {self.mean_regret:.2g} nats; check weights, quantisation and chat template"
        )


class QualityRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``quality.json``: derived from a trial's raw log after its engine was stopped."""

    schema_version: int = SCHEMA_VERSION
    reference: str = "float32, batch 1"
    """How the reference computed."""
    samples: list[QualitySample] = []
    summary: QualitySummary | None = None
    why: str | None = None
    """Why nothing was compared."""
    warnings: list[str] = []


def pooled(samples: Iterable[QualitySample]) -> QualitySummary | None:
    """The answers that were compared, as one; None where there are none."""
    compared = [sample for sample in samples if sample.agreement is not None]
    tokens = sum(sample.tokens for sample in compared)
    if not tokens:
        return None

    def mean(values: Iterator[tuple[float, int]]) -> float:
        pairs = list(values)
        return math.fsum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs)

    told = [sample for sample in compared if sample.mean_abs_logprob_diff is not None]
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
        mean_abs_logprob_diff=mean((s.mean_abs_logprob_diff or 0.0, s.tokens) for s in told) if told else None,
        max_abs_logprob_diff=max(s.max_abs_logprob_diff or 0.0 for s in told) if told else None,
    )


def _early_and_large(difference: Difference | None) -> bool:
    return difference is not None and difference.position < EARLY and difference.regret >= LARGE_REGRET


def why_unchecked(records: Sequence[QualityRecord | None]) -> str:
    """Why no answer of some trials was compared."""
    if not records:
        return "no trial ended"
    known = [record for record in records if record is not None]
    whys = [record.why for record in known if record.why]
    whys += [sample.why for record in known for sample in record.samples if sample.why]
    return next(iter(whys), "answers were not compared")
