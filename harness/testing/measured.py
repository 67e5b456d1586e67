"""A run that a test has made, and what the test may hold it to."""

import warnings
from collections.abc import Sequence
from os import PathLike
from typing import Literal

from harness.testing.one_line import OneLine
from results import Run, Trial
from results.baseline import baseline_of
from results.comparison_config import agreed
from results.gate import GateVerdict, Outcome, judge
from results.objectives import objectives, violated
from results.records import Verdict
from results.report.gate import doubt_texts, regression_texts
from results.sides import only_side, side_of
from results.statistics import ALPHA
from results.text.findings import violation_sentence

NO_BASELINE = "none"
"""The baseline of whoever has none yet."""
Place = tuple[str, str]
"""An engine's label and a load's."""


class NotHeld(UserWarning):
    """No verdict on a regression (no baseline, or inconclusive), and the test was configured to pass."""


class Measured:
    """A run that a test has made; it is evidence, or the test would have failed.

    Attributes:
        title: of the run, in files that hold several.
        path: its folder.
        results: what :func:`results.load` gives: trials, cells, pandas frames.
        said: what was found of each cell, by engine and load.
    """

    def __init__(self, title: str, results: Run, baseline: str | Sequence[str] | None = None) -> None:
        self.title = title
        self.path = results.path
        self.results = results
        self.said: dict[Place, list[str]] = {
            (cell.engine, cell.load): [] if cell.valid else [Verdict.INVALID.value] for cell in results.cells
        }
        self._baseline = [] if baseline is None else _texts(baseline)

    def assert_slo(self, text: str) -> None:
        """Every valid trial of every cell meets every objective of a text such as ``ttft_p99<500ms,itl_p99<30ms``.

        Raises:
            AssertionError: one does not; the message has a line for each violation.
            NotComparable: the text is no list of objectives.
        """
        __tracebackhide__ = True
        with OneLine():
            wanted = objectives(text)
        valid = [trial for trial in self.results.finished if trial.record.verdict is Verdict.VALID]
        violations = [(trial, found) for trial in valid if (found := violated(wanted, trial.metrics))]
        failing = {_place(trial) for trial, _ in violations}
        for place in {_place(trial): None for trial in valid}:
            self.said[place].append("SLO missed" if place in failing else "SLO met")
        if violations:
            lines = [f"  {_where(trial)}: {violation_sentence(one)}" for trial, found in violations for one in found]
            raise AssertionError("\n".join([f"SLO missed by {len(violations)} of {len(valid)} valid trials", *lines]))

    def assert_no_regression(
        self,
        baseline: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
        *,
        engine: str | None = None,
        metrics: Sequence[str] | None = None,
        primary: str | None = None,
        alpha: float = ALPHA,
        band: float | str | Sequence[str] | None = None,
        cannot_tell: Literal["fail", "pass"] = "fail",
    ) -> None:
        """The run is not worse than a stored one: what ``bakeoff gate`` says of the two.

        Args:
            baseline: ``RUN`` or ``RUN@ENGINE``, a folder or file of ``--bakeoff-json``; or ``branch:NAME``, the newest
                runs of a branch beside this one; several are one baseline that shows how runs differ. Without it,
                what ``--bakeoff-baseline`` names. An engine that is not named is the one with the candidate's label.
            engine: label of the candidate, where the run has several.
            metrics: to compare; without it, those of the table.
            primary: the metric that decides; without it, as :mod:`results.primary` has it.
            alpha: share of false alarms of the primary metric, and of all others together.
            band: what counts as the same: a share, or bands such as ``ttft_p99=10%`` as the gate takes them.
            cannot_tell: whether a verdict that is neither fails, or passes with a warning.

        Raises:
            AssertionError: it is worse, or it cannot be told, or there is no baseline.
            NotComparable, NoEvidence, NotImportable, RunNotFound: the two cannot be compared.
        """
        __tracebackhide__ = True
        texts = self._baseline if baseline is None else _texts(baseline)
        if not texts:
            raise AssertionError(
                "no baseline: name a run here or as pytest --bakeoff-baseline RUN_OR_JSON; "
                f"the first run has none: --bakeoff-baseline {NO_BASELINE}"
            )
        if texts == [NO_BASELINE]:
            warnings.warn(NotHeld(f"{self.title}: no baseline, so no regression was looked for"), stacklevel=2)
            return
        with OneLine():
            config = agreed(metrics, primary, alpha, band)
            candidate = side_of(self.results, engine) if engine else only_side(self.results)
            verdict = judge(baseline_of(candidate, texts, self.title), candidate, config)
        for place, said in self.said.items():
            if place[0] == candidate.engine:
                said.append(verdict.outcome.value)
        told = _told(verdict)
        if verdict.outcome is Outcome.REGRESSION or (verdict.outcome is Outcome.CANNOT_TELL and cannot_tell == "fail"):
            raise AssertionError(told)
        if verdict.outcome is Outcome.CANNOT_TELL:
            warnings.warn(NotHeld(f"{self.title}: {told}"), stacklevel=2)


def _texts(baseline: str | PathLike[str] | Sequence[str | PathLike[str]]) -> list[str]:
    several = [baseline] if isinstance(baseline, str | PathLike) else baseline
    return [str(one) for one in several]


def _told(verdict: GateVerdict) -> str:
    lines = [
        f"{verdict.outcome.value}: {verdict.sentence}",
        *regression_texts(verdict),
        *doubt_texts(verdict),
        *verdict.notes,
    ]
    if verdict.outcome is Outcome.CANNOT_TELL:
        lines.append("raise repeats; or let it pass with a warning: cannot_tell='pass'")
    return "\n  ".join(lines)


def _place(trial: Trial) -> Place:
    return trial.record.engine, trial.record.load.label


def _where(trial: Trial) -> str:
    return f"{trial.record.engine} {trial.record.load.label} repeat {trial.record.repeat}"
