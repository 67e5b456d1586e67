"""Compare two sides, each a run or one engine of a run, after checking that they may be compared."""

from collections.abc import Sequence

import msgspec

from results.client_error import largest_error_s
from results.errors import NotComparable
from results.metrics import CATALOGUE, HEADLINE
from results.quality import QualitySummary, pooled
from results.records import TrialRecord, Verdict
from results.run import Run, Trial, by_repeat, load
from results.statistics import Comparison, compare_paired

_MACHINE = ("cpu", "cores", "memory_bytes", "gpus")
_UNCOMPARED = frozenset({"failures"})
"""Headline metrics that a ratio does not suit."""


class SideOfRun(msgspec.Struct, frozen=True):
    """One side of a comparison.

    Attributes:
        engine: label of the engine.
        run: where it comes from.
        trials: its valid trials, of one engine.
    """

    engine: str
    run: Run
    trials: list[Trial]


def select(text: str) -> SideOfRun:
    """Read ``RUN`` or ``RUN@ENGINE``.

    Raises:
        RunNotFound, RunUnreadable: as :func:`results.load`.
        NotComparable: the run has several engines and none is named, or has no valid trial of it.
    """
    path, _, wanted = text.partition("@")
    run = load(path)
    engines = list(dict.fromkeys(plan.engine for plan in run.manifest.trials))
    if not wanted and len(engines) > 1:
        raise NotComparable(f"{path} holds several engines; name one: {', '.join(f'{path}@{e}' for e in engines)}")
    engine = wanted or engines[0]
    if engine not in engines:
        raise NotComparable(f"{path} has no engine '{engine}'; it has {', '.join(engines)}")
    valid = [t for t in run.finished if t.record.engine == engine and t.record.verdict is Verdict.VALID]
    if not valid:
        raise NotComparable(f"{path} has no valid trial of {engine}; see: bakeoff report {path}")
    return SideOfRun(engine, run, valid)


def labels(a: SideOfRun, b: SideOfRun) -> tuple[str, str]:
    """Headings of two sides: the engines where they differ, else the engines with their runs."""
    if a.engine != b.engine:
        return a.engine, b.engine
    return f"{a.engine} ({a.run.path.name})", f"{b.engine} ({b.run.path.name})"


def compare_sides(a: SideOfRun, b: SideOfRun, metrics: Sequence[str] | None = None) -> list[Comparison]:
    """Compare B with A at every load level that both have.

    Raises:
        NotComparable: they were sent different bytes, served different weights or ran on different machines.
    """
    names = [name for name in metrics or HEADLINE if name not in _UNCOMPARED]
    unknown = [name for name in names if name not in CATALOGUE]
    if unknown:
        raise NotComparable(f"unknown metric '{unknown[0]}'; known: {', '.join(CATALOGUE)}")
    _check(a, b)
    levels = [level for level in _levels(a) if level in _levels(b)]
    if not levels:
        raise NotComparable("the two have no load level in common")
    return [_compared(a, b, level, name) for level in levels for name in names]


def answers_of(a: SideOfRun, b: SideOfRun) -> dict[str, tuple[QualitySummary | None, QualitySummary | None]]:
    """How the answers of A and of B compare with the reference, by level; None where that was not looked at."""
    return {level: (_answers(a, level), _answers(b, level)) for level in _levels(a) if level in _levels(b)}


def _answers(side: SideOfRun, level: str) -> QualitySummary | None:
    found = [trial.quality for trial in side.trials if trial.record.load.label == level]
    return pooled(sample for record in found if record for sample in record.samples)


def _compared(a: SideOfRun, b: SideOfRun, level: str, name: str) -> Comparison:
    trials = [trial for trial in (*a.trials, *b.trials) if trial.record.load.label == level]
    values_a, values_b = (by_repeat(side.trials, level, name) for side in (a, b))
    return compare_paired(CATALOGUE[name], level, values_a, values_b, error=largest_error_s(name, trials))


def _check(a: SideOfRun, b: SideOfRun) -> None:
    for key in _MACHINE:
        left, right = a.run.manifest.environment.get(key), b.run.manifest.environment.get(key)
        if left != right:
            raise NotComparable(f"the machines differ in {key} ({left} and {right}); measure both on one machine")
    weights = {t.record.engine_description.model_sha256 for t in (*a.trials, *b.trials) if t.record.engine_description}
    if len(weights) > 1:
        raise NotComparable("the two served different weights; give both the same model")
    for level in _levels(a):
        hashes = {_traffic(t.record) for t in (*a.trials, *b.trials) if t.record.load.label == level}
        if len(hashes) > 1:
            raise NotComparable(
                f"at {level} the two were sent different traffic; use the same workload, seed and limits"
            )


def _traffic(record: TrialRecord) -> tuple[str, str]:
    return record.workload, record.workload_sha256


def _levels(side: SideOfRun) -> list[str]:
    return list(dict.fromkeys(trial.record.load.label for trial in side.trials))
