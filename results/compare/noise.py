"""Which noise a verdict has seen, and what would undo it, in words."""

from bakeoff.results.compare.text import change_text
from bakeoff.results.metrics import COMPARED
from bakeoff.results.statistics.comparison import Comparison, Evidence, Reason, scale_of
from bakeoff.results.statistics.two_sample import Method
from bakeoff.results.statistics.unseen import NoiseSource, Unseen
from bakeoff.results.text.format import duration_text, percent_text

_SEEN = {
    Method.BETWEEN_RUNS: "stored runs, with the differences between runs",
    Method.NOISE_FLOOR: "stored runs, with the noise between runs that this machine's floor bounds",
    Method.PIECES: "one text, piece by piece",
}
_SHOWN_BY = {
    NoiseSource.STARTS: "bakeoff lab floor measures it",
    NoiseSource.RUNS: "three runs of the baseline show it, or bakeoff lab floor",
}
_ONE = {NoiseSource.STARTS: "one start of each server", NoiseSource.RUNS: "so few runs"}
_BETWEEN = {NoiseSource.STARTS: "starts", NoiseSource.RUNS: "runs"}


def seen_text(evidence: Evidence, apart_s: float | None) -> str:
    """``measured in turns, each trial with a start of its own``.

    Args:
        evidence: of a comparison.
        apart_s: time between the first and the last run; None if the sides are of one run.
    """
    if evidence.unseen is None:
        return _SEEN.get(evidence.method, "measured in turns, each trial with a start of its own")
    if evidence.unseen.source is NoiseSource.STARTS:
        return "measured in turns on servers that stayed up"
    return "stored runs" if apart_s is None else f"stored runs made within {duration_text(apart_s)}"


def caveat_text(comparison: Comparison, *, passes: bool = False) -> str:
    """``it stands unless the standard deviation between starts of one server exceeds 15 %``; empty if all is seen.

    Args:
        comparison: with its evidence.
        passes: whether what stands is that B is not worse by what is sought, not the judgement.
    """
    evidence = comparison.evidence
    if evidence is None or evidence.unseen is None:
        return ""
    unseen, limit = evidence.unseen, evidence.rules_out_to if passes else evidence.withstands
    deviation = f"standard deviation between {_BETWEEN[unseen.source]} of one server"
    if limit is None:
        return f"{_ONE[unseen.source]} may differ by more: the {deviation} is not known{_assumed(unseen)}"
    if comparison.reason is Reason.UNSEEN_NOISE and not passes:
        return f"that would stand up to a {deviation} of {limit_text(comparison, limit)}{_assumed(unseen)}"
    return f"it stands unless the {deviation} exceeds {limit_text(comparison, limit)}{_assumed(unseen)}"


def limit_text(comparison: Comparison, limit: float) -> str:
    """A standard deviation of unseen noise on the scale of a comparison: ``15 %``."""
    return change_text(limit, scale_of(COMPARED[comparison.metric]))


def _assumed(unseen: Unseen) -> str:
    if unseen.sd is None:
        return ""
    if unseen.is_measured:
        return f" (at most {percent_text(unseen.sd, 1)} by the floor of this machine)"
    return f" (taken to be {percent_text(unseen.sd, 1)}; {_SHOWN_BY[unseen.source]})"
