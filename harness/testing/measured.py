"""A run that a test has measured, and the assertions on it."""

import warnings
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

from bakeoff.harness.testing.one_line import OneLine
from bakeoff.results import Run, Trial
from bakeoff.results.compare.config import agreed
from bakeoff.results.compare.gate import GateVerdict, Outcome, judge
from bakeoff.results.compare.sides import only_side, side_of
from bakeoff.results.history.baseline import baseline_of
from bakeoff.results.metrics.objectives import objectives, violated
from bakeoff.results.records import Verdict
from bakeoff.results.report.gate import doubt_texts, regression_texts
from bakeoff.results.statistics import ALPHA, DETECT
from bakeoff.results.text.findings import violation_sentence

NO_BASELINE = "none"
"""Value of ``--bakeoff-baseline`` for the first run, which has no baseline yet."""
CellKey = tuple[str, str]
"""Labels of an engine and a load."""


class NoVerdict(UserWarning):
    """No verdict on a regression (no baseline, or inconclusive), and the test was configured to pass."""


class Measured:
    """A run that a test has measured; a valid one, because an INVALID run fails the test.

    Attributes:
        title: identifies the run among all runs of the session.
        path: its folder.
        results: from :func:`bakeoff.results.load`: trials, cells and pandas frames.
        outcomes: results of the assertions on each cell, in words.
    """

    def __init__(self, title: str, results: Run, baseline: str | Sequence[str] | None = None) -> None:
        self.title = title
        self.path: Path = results.path
        self.results = results
        self.outcomes: dict[CellKey, list[str]] = {
            (cell.engine, cell.load): [] if cell.valid else [Verdict.INVALID.value] for cell in results.cells
        }
        self._baseline = [] if baseline is None else _texts(baseline)

    def assert_slo(self, text: str) -> None:
        """Assert that every valid trial meets every objective.

        Args:
            text: the objectives, such as ``ttft_p99<500ms,itl_p99<30ms``.

        Raises:
            AssertionError: a trial violates one; the message has a line for each violation.
            NotComparable: the text is malformed.
        """
        __tracebackhide__ = True
        with OneLine():
            slo = objectives(text)
        valid = [trial for trial in self.results.finished if trial.record.verdict is Verdict.VALID]
        of_trials = [(trial, violated(slo, trial.metrics)) for trial in valid]
        violating = {_cell_key(trial) for trial, violations in of_trials if violations}
        for cell in {_cell_key(trial): None for trial in valid}:
            self.outcomes[cell].append("SLO violated" if cell in violating else "SLO met")
        if violating:
            lines = [
                f"  {_trial_text(trial)}: {violation_sentence(violation)}"
                for trial, violations in of_trials
                for violation in violations
            ]
            count = sum(bool(violations) for _, violations in of_trials)
            title = f"SLO violated by {count} of {len(valid)} valid trials"
            raise AssertionError("\n".join([title, *lines]))

    def assert_no_regression(
        self,
        baseline: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
        *,
        engine: str | None = None,
        metrics: Sequence[str] | None = None,
        primary: str | None = None,
        alpha: float = ALPHA,
        detect: float | str = DETECT,
        start_noise: float | str | None = None,
        band: float | str | Sequence[str] | None = None,
        cannot_tell: Literal["fail", "pass"] = "fail",
    ) -> None:
        """Assert that the run is not worse than a stored one, by the verdict of ``bakeoff gate``.

        Args:
            baseline: ``RUN`` or ``RUN@ENGINE``, where ``RUN`` is a folder or a file of ``--bakeoff-json``; or
                ``branch:NAME`` for the newest runs of a branch in this run's parent folder. Several are pooled. The
                default engine is the one with the candidate's label. Default: ``--bakeoff-baseline``.
            engine: label of the candidate, if the run has several engines.
            metrics: to compare. Default: the table's headline metrics.
            primary: the metric that decides. Default: chosen by :mod:`bakeoff.results.compare.primary`.
            alpha: false alarm rate of the primary metric, and of all others together.
            detect: change of the primary metric that a pass rules out: a fraction, or ``10%``.
            start_noise: standard deviation between starts or stored runs of one server under which the verdict holds,
                where the trials do not show it. Default: the machine's floor, else 2 %.
            band: largest change that counts as equal: a share, or bands such as ``ttft_p99=10%`` as for the gate.
            cannot_tell: whether an inconclusive verdict fails, or passes with a warning.

        Raises:
            AssertionError: the run is worse, the verdict is inconclusive, or there is no baseline.
            NotComparable, NoEvidence, NotImportable, RunNotFound: the runs cannot be compared.
        """
        __tracebackhide__ = True
        texts = self._baseline if baseline is None else _texts(baseline)
        if not texts:
            raise AssertionError(
                "no baseline: name a run here or as pytest --bakeoff-baseline RUN_OR_JSON; "
                f"for the first run, use --bakeoff-baseline {NO_BASELINE}"
            )
        if texts == [NO_BASELINE]:
            warnings.warn(NoVerdict(f"{self.title}: no baseline, so not checked for regressions"), stacklevel=2)
            return
        with OneLine():
            config = agreed(metrics, primary, alpha, band, detect=detect, unseen_sd=start_noise)
            candidate = side_of(self.results, engine) if engine else only_side(self.results)
            verdict = judge(baseline_of(candidate, texts, self.title), candidate, config)
        for cell, outcomes in self.outcomes.items():
            if cell[0] == candidate.engine:
                outcomes.append(verdict.outcome.value)
        message = _message(verdict)
        tolerated = {Outcome.NO_REGRESSION} if cannot_tell == "fail" else {Outcome.NO_REGRESSION, Outcome.CANNOT_TELL}
        if verdict.outcome not in tolerated:
            raise AssertionError(message)
        if verdict.outcome is Outcome.CANNOT_TELL:
            warnings.warn(NoVerdict(f"{self.title}: {message}"), stacklevel=2)


def _texts(baseline: str | PathLike[str] | Sequence[str | PathLike[str]]) -> list[str]:
    runs = [baseline] if isinstance(baseline, str | PathLike) else baseline
    return [str(run) for run in runs]


def _message(verdict: GateVerdict) -> str:
    lines = [
        f"{verdict.outcome.value}: {verdict.sentence}",
        *regression_texts(verdict),
        *doubt_texts(verdict),
        *verdict.notes,
    ]
    if verdict.outcome is Outcome.CANNOT_TELL:
        lines.append("raise repeats, or pass with a warning: cannot_tell='pass'")
    return "\n  ".join(lines)


def _cell_key(trial: Trial) -> CellKey:
    return trial.record.engine, trial.record.load.label


def _trial_text(trial: Trial) -> str:
    return f"{trial.record.engine} {trial.record.load.label} repeat {trial.record.repeat}"
