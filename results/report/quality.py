"""The ``token match`` column of every table, and warnings about answers that differ from the reference."""

import math

import msgspec

from bakeoff.results.metrics.quality import EARLY, LARGE_REGRET, QualitySummary
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import ABSENT, listed


class MatchText(msgspec.Struct, frozen=True):
    """Token match as text: ``99.2 %`` of the tokens, ``of 12`` answers.

    Attributes:
        text: the fraction, or the mark of absence.
        answers: number of answers compared; empty if none.
        why: why there is no fraction; empty if there is one.
        note: a caveat; empty if there is none.
        differs: whether the answers differ by more than rounding explains.
    """

    text: str
    answers: str = ""
    why: str = ""
    note: str = ""
    differs: bool = False


def match_of(cell: Cell) -> MatchText:
    """Token match of one engine at one load."""
    return match_text(cell.quality, cell.unchecked or "answers were not compared")


def match_text(summary: QualitySummary | None, why: str) -> MatchText:
    """Token match of a summary; ``why`` says why there is none."""
    if summary is None:
        return MatchText(ABSENT, why=why)
    return MatchText(share(summary.agreement), f"of {summary.answers:,}", note=_note(summary), differs=summary.differs)


def share(agreement: float) -> str:
    """``99.9 %``, rounded down: only a match at every token is 100 %."""
    return "100 %" if agreement == 1 else f"{math.floor(1000 * agreement) / 10:.1f} %"


def nats(regret: float) -> str:
    """``0.0021``: two significant digits."""
    return f"{regret:.2g}" if regret else "0"


def unchecked_text(run: Run) -> str:
    """Why no answer of a run was compared; empty if any was."""
    if any(cell.quality for cell in run.cells):
        return ""
    reasons = dict.fromkeys(cell.unchecked or "answers were not compared" for cell in run.cells)
    return "; ".join(reasons)


def quality_warnings(run: Run) -> list[str]:
    """One line for each engine and load whose answers differ, and one for each failure of the reference."""
    lines = [
        f"{cell.engine}, {cell.load}: answers {differing_answers_text(cell.quality)}"
        for cell in run.cells
        if cell.quality is not None and cell.quality.differs
    ]
    failed: dict[str, list[str]] = {}
    for trial in run.finished:
        for warning in trial.quality.warnings if trial.quality else ():
            failed.setdefault(warning, []).append(trial.record.id)
    return lines + [f"answers of {listed(trials)} were not all compared: {why}" for why, trials in failed.items()]


def differing_answers_text(summary: QualitySummary) -> str:
    """``differ from the reference: 81 % of 512 tokens match, …``."""
    return (
        f"differ from the reference: {100 * summary.agreement:.3g} % of {summary.tokens:,} tokens match, "
        f"mean regret {summary.mean_regret:.2g} nats; check weights, quantisation and chat template"
    )


def _note(summary: QualitySummary) -> str:
    if not summary.early:
        return ""
    return (
        f"{summary.early:,} of {summary.answers:,} answers have a regret of {LARGE_REGRET:g} nats or more within their "
        f"first {EARLY} tokens"
    )
