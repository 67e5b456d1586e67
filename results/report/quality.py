"""Whether engines said what the model says, as texts: the column ``token match`` of every table, and its warnings."""

import math

import msgspec

from results.quality import EARLY, LARGE_REGRET, QualitySummary
from results.run import Cell, Run
from results.text.format import ABSENT, listed


class Agrees(msgspec.Struct, frozen=True):
    """``99.2 %`` of the tokens, ``of 12`` answers.

    Attributes:
        text: the share, or the mark of absence.
        answers: how many were compared; empty where none was.
        why: why there is no share; empty where there is one.
        note: what a reader must know of it; empty where there is nothing.
        differs: whether the answers differ by more than rounding does.
    """

    text: str
    answers: str = ""
    why: str = ""
    note: str = ""
    differs: bool = False


def agrees_of(cell: Cell) -> Agrees:
    """The column of one engine at one load."""
    return agrees(cell.quality, cell.unchecked or "answers were not compared")


def agrees(summary: QualitySummary | None, why: str) -> Agrees:
    """The column of any number of answers; ``why`` there are none."""
    if summary is None:
        return Agrees(ABSENT, why=why)
    return Agrees(
        share(summary.agreement), f"of {summary.answers:,}", note=_note(summary), differs=summary.differs is not None
    )


def share(agreement: float) -> str:
    """``99.9 %``, cut and not rounded: only what agrees at every token is 100 %."""
    return "100 %" if agreement == 1 else f"{math.floor(1000 * agreement) / 10:.1f} %"


def nats(regret: float) -> str:
    """``0.0021``: two digits."""
    return f"{regret:.2g}" if regret else "0"


def unchecked_text(run: Run) -> str:
    """Why no answer of a run was compared; empty when one was."""
    if any(cell.quality for cell in run.cells):
        return ""
    reasons = dict.fromkeys(cell.unchecked or "answers were not compared" for cell in run.cells)
    return "; ".join(reasons)


def quality_warnings(run: Run) -> list[str]:
    """One line for each engine and load whose answers differ, and one for each way in which the reference failed."""
    lines = [
        f"{cell.engine}, {cell.load}: {cell.quality.differs}"
        for cell in run.cells
        if cell.quality is not None and cell.quality.differs
    ]
    failed: dict[str, list[str]] = {}
    for trial in run.finished:
        for warning in trial.quality.warnings if trial.quality else ():
            failed.setdefault(warning, []).append(trial.record.id)
    return lines + [f"answers of {listed(trials)} were not all compared: {why}" for why, trials in failed.items()]


def _note(summary: QualitySummary) -> str:
    if not summary.early:
        return ""
    return (
        f"{summary.early:,} of {summary.answers:,} answers took one of their first {EARLY} tokens at a regret of "
        f"{LARGE_REGRET:g} nats or more"
    )
