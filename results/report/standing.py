"""How a run stands: whether it ended, how many of its trials are valid, and what its trials warn of."""

from collections.abc import Iterable
from enum import Enum, auto

from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding
from bakeoff.results.records import RunStatus, TrialPlan, TrialRecord, Verdict
from bakeoff.results.run.run import Run
from bakeoff.results.text.findings import main_reason, sentence, sentences

UNJUDGED = "of INVALID trials, so no evidence; no comparison uses them"
"""Why a figure stands in parentheses."""


class Standing(Enum):
    """What the status of a run means to its reader."""

    WHOLE = auto()
    """It ended, and every trial is valid."""
    PARTLY_VALID = auto()
    """It ended, and a trial is INVALID."""
    BROKEN = auto()
    """It did not end, or failed."""


def standing(run: Run) -> Standing:
    """How a run stands."""
    if run.status is not RunStatus.COMPLETE:
        return Standing.BROKEN
    return Standing.WHOLE if run.valid == run.planned else Standing.PARTLY_VALID


def status_text(run: Run) -> str:
    """``COMPLETE, 11 of 12 trials valid``."""
    status = run.status.value.upper()
    return f"{status}, {run.valid} of {run.planned} trials valid" if run.planned and run.search is None else status


def why_not_all(run: Run) -> str | None:
    """The most frequent reason for which trials are INVALID that were not measured again with success, or None."""
    if run.search is not None:  # its trials beyond the capacity are INVALID on purpose
        return None
    invalid = [trial.record for trial in run.counted if trial.record.verdict is Verdict.INVALID]
    if not invalid:
        return None
    if len(invalid) == 1:
        return f"INVALID: {trial_text(invalid[0])}: {sentences(invalid[0].invalidating)}"
    return f"INVALID: {len(invalid)} trials, most often: {main_reason(invalid)}"


def failures_text(run: Run) -> str:
    """``transformers: 24 of 288 requests failed``, of each engine whose requests did; empty if none failed."""
    counts: dict[str, tuple[int, int]] = {}
    for cell in run.cells:
        failed, planned = counts.get(cell.engine, (0, 0))
        counts[cell.engine] = failed + cell.failures[0], planned + cell.failures[1]
    texts = [
        f"{engine}: {failed:,} of {planned:,} requests failed" for engine, (failed, planned) in counts.items() if failed
    ]
    return "; ".join(texts)


def trial_text(trial: TrialRecord | TrialPlan) -> str:
    """``reference, c=8, repeat 2``."""
    return f"{trial.engine}, {trial.load.label}, repeat {trial.repeat}"


def merged_warnings(run: Run) -> list[str]:
    """The warnings of a run, one for each kind and engine, with the first trial's words."""
    found: dict[tuple[str, FindingCode], list[tuple[TrialRecord, Finding]]] = {}
    for record in (trial.record for trial in run.counted):
        for warning in record.warnings:
            found.setdefault((record.engine, warning.code), []).append((record, warning))
    return [_merged(own, run.counted_of(engine)) for (engine, _), own in found.items()]


def _merged(found: list[tuple[TrialRecord, Finding]], of_engine: Iterable[object]) -> str:
    (first, warning), total = found[0], len(list(of_engine))
    if len({record.id for record, _ in found}) == 1:
        return f"{trial_text(first)}: {sentence(warning)}"
    return f"{first.engine}, {len(found)} of {total} trials: {sentence(warning)}"
