"""Whether two sides did the same work: only then do the times of their requests compare.

A side whose answers are half as long serves twice the requests in half the time, and is no faster. So before anything
else the two are held against each other: how much of the output asked for was delivered, in all and answer by answer
(p10, p50, p90), why answers ended, and how many requests were answered at all. Each is one number a trial; MLPerf holds
the first to 90 to 110 % of its reference.

In a closed loop the faster side comes further in the same plan. A mix of requests that differs for this reason is
nobody's fault, and no regression; but times of requests do not compare then either.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from results.records import Outcome, RequestRecord
from results.statistics.comparison import Judgement
from results.statistics.two_sample import Scale, contrast

_QUANTILES = (0.1, 0.5, 0.9)
_FINISHES = {
    "length": "length", "max_tokens": "length",
    "stop": "stop", "eos": "stop", "eos_token": "stop", "end_turn": "stop", "stop_sequence": "stop",
}  # fmt: skip
"""What engines call the two ways in which most answers end."""
_PER_TOKEN = (
    "itl_", "tpot_", "chunk_gap_", "tokens_per_chunk", "output_tokens_per_s", "energy_per_output_token",
    "energy_above_idle_per_output_token", "failures",
)  # fmt: skip
"""Metrics, by how their names begin, that mean the same however long answers are; failures are part of the work."""


class Work(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the measured requests of one trial came to.

    Attributes:
        requests: that were planned.
        ok: that ended well.
        output_tokens: of these, as the engine counted them, or else as they arrived.
        asked_tokens: of output for the same; None where a length was not asked of each.
        delivered: p10, p50 and p90 over answers of output per token asked, or of output tokens where none were asked.
        finishes: how many answers ended for which reason.
    """

    requests: int = 0
    ok: int = 0
    output_tokens: int = 0
    asked_tokens: int | None = None
    delivered: list[float] = []
    finishes: dict[str, int] = {}


def work_of(measured: Sequence[RequestRecord]) -> Work:
    """The work of one trial's measured requests; those that the client gave up are nobody's work."""
    kept = [request for request in measured if request.outcome is not Outcome.CANCELLED]
    done = [request for request in kept if request.outcome is Outcome.OK]
    tokens = [r.total_chunk_tokens if r.output_tokens is None else r.output_tokens for r in done]
    asked = [request.wanted_output_tokens for request in done]
    known = [count for count in asked if count]
    is_known = bool(done) and len(known) == len(done)
    each = [count / want for count, want in zip(tokens, known, strict=True)] if is_known else tokens
    return Work(
        requests=len(kept),
        ok=len(done),
        output_tokens=sum(tokens),
        asked_tokens=sum(known) if is_known else None,
        delivered=[float(q) for q in np.quantile(each, _QUANTILES)] if done else [],
        finishes=dict(Counter(_FINISHES.get(r.finish_reason or "", r.finish_reason or "none") for r in done)),
    )


class WorkComparison(msgspec.Struct, frozen=True):
    """The work of B beside that of A, at one load.

    Attributes:
        level: label of the load.
        judgement: ``same``; ``worse`` where B's own doing is outside the band; ``unclear`` where it may be chance.
        problems: what is outside the band, in clauses.
        mix: how the requests themselves differ, in a clause; None where they do not.
    """

    level: str
    judgement: Judgement
    problems: list[str]
    mix: str | None = None

    @property
    def is_equal(self) -> bool:
        """Whether times of requests compare."""
        return self.judgement is Judgement.SAME and self.mix is None

    @property
    def why(self) -> str:
        """Everything that is not equal, in a clause."""
        return "; ".join([*self.problems, *([self.mix] if self.mix else [])])


def per_token(metric: str) -> bool:
    """Whether a metric means the same however long answers are."""
    return metric.startswith(_PER_TOKEN)


def compare_work(level: str, a: Sequence[Work], b: Sequence[Work], *, band: float, alpha: float) -> WorkComparison:
    """Hold the work of B against that of A.

    Args:
        level: label of the load.
        a: of each valid trial of the baseline.
        b: of the candidate.
        band: by how much it may differ, as a share.
        alpha: level of the test that tells a difference from chance.
    """
    if not a or not b or not all(work.requests for work in (*a, *b)):
        return WorkComparison(level, Judgement.SAME, [])  # nothing to hold against each other, or no log of it
    problems: list[str] = []
    certain = False
    for aspect in _aspects(a, b):
        of_a, of_b = ([aspect.of(work) for work in side] for side in (a, b))
        mean_a, mean_b = (sum(side) / len(side) for side in (of_a, of_b))
        if abs(mean_b - mean_a) > band * (mean_a if aspect.is_ratio else 1.0):
            problems.append(f"{aspect.title}: {aspect.text(mean_b)} instead of {aspect.text(mean_a)}")
            certain = certain or _is_no_chance(of_a, of_b, alpha)
    judgement = Judgement.SAME
    if problems:
        judgement = Judgement.WORSE if certain else Judgement.UNCLEAR
    return WorkComparison(level, judgement, problems, _mix(a, b, band))


class _Aspect(msgspec.Struct, frozen=True):
    """One number of a trial's work, and whether the band is a share of it or added to it."""

    title: str
    of: Callable[[Work], float]
    is_ratio: bool = True
    is_share: bool = True

    def text(self, value: float) -> str:
        return f"{value:.1%}" if self.is_share else f"{value:.4g}"


def _aspects(a: Sequence[Work], b: Sequence[Work]) -> Iterator[_Aspect]:
    yield _Aspect("requests answered", lambda work: work.ok / work.requests)
    known = [all(work.asked_tokens for work in side) for side in (a, b)]
    if all(known):
        yield _Aspect("output delivered of what was asked", lambda work: work.output_tokens / (work.asked_tokens or 1))
    else:
        yield _Aspect("output tokens a request", lambda work: work.output_tokens / max(1, work.ok), is_share=False)
    if known[0] == known[1]:
        what = "output delivered" if all(known) else "output tokens"
        for place, q in enumerate(_QUANTILES):
            yield _Aspect(f"{what}, p{q * 100:g} of answers", _quantile(place), is_share=all(known))
    for reason in sorted({reason for work in (*a, *b) for reason in work.finishes}):
        yield _Aspect(f"answers that ended by '{reason}'", _finish(reason), is_ratio=False)


def _quantile(place: int) -> Callable[[Work], float]:
    return lambda work: work.delivered[place] if work.delivered else 0.0


def _finish(reason: str) -> Callable[[Work], float]:
    return lambda work: work.finishes.get(reason, 0) / max(1, work.ok)


def _mix(a: Sequence[Work], b: Sequence[Work], band: float) -> str | None:
    """How the requests differ that the sides were measured over; None where they are alike, or nobody knows."""
    asked = [[work.asked_tokens / work.ok for work in side if work.asked_tokens] for side in (a, b)]
    if any(len(of_side) < len(side) for of_side, side in zip(asked, (a, b), strict=True)):
        return None
    mean_a, mean_b = (sum(of_side) / len(of_side) for of_side in asked)
    if abs(mean_b - mean_a) <= band * mean_a:
        return None
    return f"the requests measured ask for {mean_b:.4g} output tokens each instead of {mean_a:.4g}"


def _is_no_chance(a: Sequence[float], b: Sequence[float], alpha: float) -> bool:
    """Whether trials differ by more than their noise; single ones show no noise."""
    found = contrast(dict(enumerate(a)), dict(enumerate(b)), interleaved=False, scale=Scale.DIFFERENCE)
    return found is None or found.p_value <= alpha
