"""How many tokens to draft for each sequence of a step.

A step of more rows takes longer, and the j-th draft of a sequence is accepted with probability p^j, where p is the
recent acceptance rate of its drafts (Leviathan et al., arXiv 2211.17192, §3.3). The lengths chosen have the most
expected tokens a second; they are 0 if no draft is worth its row. Durations are measured when the engine starts, and
corrected by those of its steps, which include the work around the models.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

_PRIOR_ACCEPTED, _PRIOR_VERIFIED = 7.0, 10.0
_OWN_WEIGHT = 2.0  # weight, in drafts, of the evidence of all requests against a request's own
_KEPT, _KEPT_OF_ALL = 0.9, 0.99  # of the evidence, after each verification
_FEWEST_STEPS = 8  # of a kind, before its slowness counts
_NEWEST_SHARE = 0.05  # of the latest step in the mean of a kind
_MOST_SLOWNESS = 1.5  # of one step, against the mean
_KEPT_IDLE = 0.99  # of the evidence, after each step without drafts, so that drafting is tried again


class StepCosts(msgspec.Struct, frozen=True):
    """Measured durations of decode steps.

    Attributes:
        rows: of the steps, ascending, at least one.
        seconds: of each.
    """

    rows: Sequence[int]
    seconds: Sequence[float]

    def of(self, rows: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Seconds of steps with `rows` rows, int64 [n]: interpolated, and proportional beyond the largest."""
        measured = np.interp(rows, self.rows, self.seconds)
        return measured * np.maximum(1.0, rows / self.rows[-1])


class _Slowness:
    """Ratio of the times of steps to those of their models."""

    __slots__ = ("count", "ratio")

    def __init__(self) -> None:
        self.count, self.ratio = 0, 1.0

    def add(self, ratio: float) -> None:
        # Something else on the machine may have delayed a step.
        limited = min(ratio, _MOST_SLOWNESS * self.ratio) if self.count else ratio
        self.count += 1
        self.ratio += (limited - self.ratio) * max(1 / self.count, _NEWEST_SHARE)


class _Evidence:
    """Counts of verified and accepted drafts; older ones count less."""

    __slots__ = ("accepted", "verified")

    def __init__(self) -> None:
        self.accepted = self.verified = 0.0

    def add(self, accepted: int, verified: int, share: float) -> None:
        self.accepted = self.accepted * share + accepted
        self.verified = self.verified * share + verified

    def fade(self) -> None:
        self.accepted *= _KEPT_IDLE
        self.verified *= _KEPT_IDLE


class Offer(msgspec.Struct, frozen=True):
    """Drafts that a sequence can have, or has had.

    Attributes:
        request_id: of the sequence.
        context: that they follow from; drafts of equal contexts are equally likely to be accepted.
        num_drafts: at least 1.
    """

    request_id: str
    context: int
    num_drafts: int


class DraftLengths:
    """Chooses draft lengths, and learns from their verification.

    Args:
        num_tokens: most drafts of a sequence.
        costs: of the verifying model's steps; None to always draft as many as possible.
        draft_costs: of the draft model's steps; None if drafts cost nothing.
    """

    def __init__(self, num_tokens: int, costs: StepCosts | None = None, draft_costs: StepCosts | None = None) -> None:
        self.num_tokens = num_tokens
        self._costs, self._draft_costs = costs, draft_costs
        self._plain, self._drafted = _Slowness(), _Slowness()
        self._all: defaultdict[int, _Evidence] = defaultdict(_Evidence)
        self._own: defaultdict[str, defaultdict[int, _Evidence]] = defaultdict(lambda: defaultdict(_Evidence))

    def acceptance(self, offer: Offer) -> float:
        """The estimated probability that a sequence's next draft is accepted."""
        everyone, own = self._all[offer.context], self._own[offer.request_id][offer.context]
        shared = (everyone.accepted + _PRIOR_ACCEPTED) / (everyone.verified + _PRIOR_VERIFIED)
        return (own.accepted + _OWN_WEIGHT * shared) / (own.verified + _OWN_WEIGHT)

    def choose(self, offers: Sequence[Offer], num_rows: int) -> list[int]:
        """Number of drafts of each sequence in the next step.

        Args:
            offers: possible drafts.
            num_rows: of the step without drafts.
        """
        limits = np.array([min(offer.num_drafts, self.num_tokens) for offer in offers], np.int64)
        longest = int(limits.max(initial=0))
        if self._costs is None or not longest:
            return limits.tolist()
        if self._plain.count < _FEWEST_STEPS <= self._drafted.count:
            return [0] * len(offers)  # to measure a step without drafts
        acceptance = np.array([self.acceptance(offer) for offer in offers])
        places = np.arange(1, longest + 1)
        gains = np.where(places <= limits[:, None], acceptance[:, None] ** places, 0.0)
        # Until enough steps of both kinds were measured, both are assumed to be equally slower than their models.
        slowdown = self._drafted.ratio / self._plain.ratio if self._drafted.count >= _FEWEST_STEPS else 1.0
        best_rate, best = num_rows / self._costs.of(np.array([num_rows]))[0], np.zeros(len(offers), np.int64)
        # Drafting up to a length takes as many steps of the draft model for one sequence as for all.
        for length in range(1, longest + 1) if self._draft_costs else [longest]:
            drafting_s = length * self._draft_costs.of(np.array([num_rows]))[0] if self._draft_costs else 0.0
            sorted_gains = np.sort(gains[:, :length], axis=None)[::-1]
            sorted_gains = sorted_gains[sorted_gains > 0]
            tokens = num_rows + np.cumsum(sorted_gains)
            rates = tokens / (slowdown * (self._costs.of(num_rows + np.arange(1, len(tokens) + 1)) + drafting_s))
            count = int(rates.argmax())
            if rates[count] > best_rate:
                best_rate = rates[count]
                best = (gains[:, :length] >= sorted_gains[count]).sum(axis=1)
        if not best.any():
            for context in {offer.context for offer in offers}:
                self._all[context].fade()
            for offer in offers:
                self._own[offer.request_id][offer.context].fade()
        return best.tolist()

    def observe_step(self, num_drafts: Sequence[int], seconds: float) -> None:
        """Updates the estimates with the duration of a decode step.

        Args:
            num_drafts: of each of its sequences.
            seconds: that the engine spent on it.
        """
        if self._costs is None:
            return
        longest, num_rows = max(num_drafts), np.array([len(num_drafts)])
        expected_s = self._costs.of(num_rows + sum(num_drafts))[0]
        if longest and self._draft_costs is not None:
            expected_s += longest * self._draft_costs.of(num_rows)[0]
        (self._drafted if longest else self._plain).add(seconds / expected_s)

    def observe(self, offer: Offer, num_accepted: int) -> None:
        """Updates the estimates with a verification. Drafts after the first rejected one say nothing."""
        verified = min(offer.num_drafts, num_accepted + 1)
        self._all[offer.context].add(num_accepted, verified, _KEPT_OF_ALL)
        self._own[offer.request_id][offer.context].add(num_accepted, verified, _KEPT)

    def free(self, request_ids: Iterable[str]) -> None:
        """Forgets requests that have ended."""
        for request_id in request_ids:
            self._own.pop(request_id, None)
