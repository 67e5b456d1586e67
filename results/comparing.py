"""Compare two sides, each a run or one engine of a run, after checking that they may be compared.

A run is its folder, or what :mod:`results.benchmark_json` has kept of it: the same verdict follows from both.

One metric at one load is the primary one, named before anybody looks; all others are guardrails, whose words hold for
all of them at once.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from results.benchmark_json import StoredRun, StoredTrial, stored_run
from results.client_error import largest_error_s
from results.errors import NoEvidence, NotComparable
from results.metrics import CATALOGUE, HEADLINE
from results.primary import primary_load, primary_metric
from results.quality import QualitySummary, pooled
from results.records import Load, TrialRecord, Verdict
from results.run import Run, Trial, by_repeat, load
from results.statistics import ALPHA, BAND, Comparison, compare_runs, guardrails

_MACHINE = ("cpu", "cores", "memory_bytes", "gpus")
_UNCOMPARED = frozenset({"failures"})
"""Headline metrics that a ratio does not suit."""


AnyTrial = Trial | StoredTrial
AnyRun = Run | StoredRun
"""Read from a folder, or from a file."""


class SideOfRun(msgspec.Struct, frozen=True):
    """One side of a comparison.

    Attributes:
        engine: label of the engine.
        run: where it comes from.
        trials: its valid trials, of one engine.
    """

    engine: str
    run: AnyRun
    trials: Sequence[AnyTrial]

    @property
    def loads(self) -> list[Load]:
        """Load levels with a valid trial."""
        return list({trial.record.load.label: trial.record.load for trial in self.trials}.values())

    def at(self, level: str) -> list[AnyTrial]:
        """The valid trials at one load level."""
        return [trial for trial in self.trials if trial.record.load.label == level]


class Terms(msgspec.Struct, frozen=True):
    """What is agreed before anybody looks.

    Attributes:
        metrics: names in the catalogue; the primary one is among them in any case.
        primary: the metric of which the verdict speaks; None for the rule of :mod:`results.primary`.
        alpha: share of false alarms of the primary metric, and of all guardrails together.
        band: half-width of the equivalence band, as a share.
    """

    metrics: tuple[str, ...] = tuple(name for name in HEADLINE if name not in _UNCOMPARED)
    primary: str | None = None
    alpha: float = ALPHA
    band: float = BAND

    def __post_init__(self) -> None:
        unknown = [name for name in (*self.metrics, self.primary) if name is not None and name not in CATALOGUE]
        if unknown:
            raise NotComparable(f"unknown metric '{unknown[0]}'; known: {', '.join(CATALOGUE)}")
        unsuited = [name for name in (*self.metrics, self.primary) if name in _UNCOMPARED]
        if unsuited:
            raise NotComparable(f"{unsuited[0]} are counted, not compared by a ratio; leave the metric out")
        if not 0 < self.alpha < 1:
            raise NotComparable(f"alpha must lie between 0 and 1, not {self.alpha}")
        if not 0 < self.band < 1:
            raise NotComparable(f"band must lie between 0 and 1, not {self.band}")


class Compared(msgspec.Struct, frozen=True):
    """B against A.

    Attributes:
        a: heading of the baseline.
        b: heading of the candidate.
        primary: the comparison that the verdict speaks of.
        comparisons: that one and the guardrails, level by level.
        answers: how the answers of A and of B compare with the reference, by level; None where nobody looked.
        terms: what was agreed.
    """

    a: str
    b: str
    primary: Comparison
    comparisons: list[Comparison]
    answers: dict[str, tuple[QualitySummary | None, QualitySummary | None]]
    terms: Terms

    @property
    def guardrails(self) -> list[Comparison]:
        """All but the primary one."""
        return [one for one in self.comparisons if one is not self.primary]


def agreed(metrics: Sequence[str] | None, primary: str | None, alpha: float, band: float) -> Terms:
    """The terms of a comparison; without metrics those of the table.

    Raises:
        NotComparable: a metric is unknown or has no ratio, or a number is out of range.
    """
    terms = Terms(primary=primary, alpha=alpha, band=band)
    return msgspec.structs.replace(terms, metrics=tuple(metrics)) if metrics else terms


def select(text: str, engine: str | None = None, title: str | None = None) -> SideOfRun:
    """Read ``RUN`` or ``RUN@ENGINE``.

    ``RUN`` is a folder, a file of :mod:`results.benchmark_json`, or ``FILE/RUN_ID`` where that holds several runs.

    Args:
        text: what is meant.
        engine: which, where the text names none and the run has it.
        title: of the run, where the text names a file with several.

    Raises:
        RunNotFound, RunUnreadable: as :func:`results.load`.
        NotImportable: as :func:`~results.benchmark_json.stored_run`.
        NotComparable, NoEvidence: as :func:`only_side` and :func:`side_of`.
    """
    place, _, wanted = text.partition("@")
    path = Path(place)
    is_file = path.is_file() or path.parent.is_file()
    run = stored_run(path, title) if is_file else load(place)
    return side_of(run, wanted) if wanted else only_side(run, engine)


def only_side(run: AnyRun, engine: str | None = None) -> SideOfRun:
    """The only engine of a run, or the one that is meant.

    Args:
        run: which run.
        engine: which engine; one that the run does not have is not meant.

    Raises:
        NotComparable: the run has several engines and none is meant.
        NoEvidence: as :func:`side_of`.
    """
    engines = _engines(run)
    if engine in engines:
        return side_of(run, engine)
    if len(engines) > 1:
        known = ", ".join(f"{run.path}@{label}" for label in engines)
        raise NotComparable(f"{run.path} holds several engines; name one: {known}")
    return side_of(run, engines[0])


def side_of(run: AnyRun, engine: str) -> SideOfRun:
    """One engine of a run.

    Raises:
        NotComparable: the run has no such engine.
        NoEvidence: it has no valid trial of it.
    """
    if engine not in _engines(run):
        raise NotComparable(f"{run.path} has no engine '{engine}'; it has {', '.join(_engines(run))}")
    valid = [t for t in run.finished if t.record.engine == engine and t.record.verdict is Verdict.VALID]
    if not valid:
        raise NoEvidence(f"{run.path} has no valid trial of {engine}{_why_not(run, engine)}")
    return SideOfRun(engine, run, valid)


def _why_not(run: AnyRun, engine: str) -> str:
    reasons = (reason for t in run.finished if t.record.engine == engine for reason in t.record.reasons)
    return next((f": {reason}" for reason in reasons), "; none of them ended")


def _engines(run: AnyRun) -> list[str]:
    return list(dict.fromkeys(plan.engine for plan in run.manifest.trials))


def labels(a: SideOfRun, b: SideOfRun) -> tuple[str, str]:
    """Headings of two sides: the engines where they differ, else the engines with their runs."""
    if a.engine != b.engine:
        return a.engine, b.engine
    return f"{a.engine} ({a.run.path.name})", f"{b.engine} ({b.run.path.name})"


def compare_sides(a: SideOfRun, b: SideOfRun, terms: Terms | None = None) -> Compared:
    """Compare B with A at every load level that both have.

    Raises:
        NotComparable: they were sent different bytes, served different weights or ran on different machines.
    """
    terms = terms or Terms()
    _check(a, b)
    shared = [load for load in a.loads if load.label in {load.label for load in b.loads}]
    chief = primary_load(shared)
    if chief is None:
        raise NotComparable("the two have no load level in common")
    chosen = (chief.label, terms.primary or primary_metric(chief))
    names = dict.fromkeys([terms.primary, *terms.metrics] if terms.primary else terms.metrics)
    rest = [(load.label, name) for load in shared for name in names if (load.label, name) != chosen]
    primary = _compared(a, b, *chosen, terms)
    guarded = guardrails([_compared(a, b, level, name, terms) for level, name in rest])
    return Compared(
        *labels(a, b),
        primary=primary,
        comparisons=[
            one
            for load in shared
            for one in (*([primary] if load is chief else []), *(one for one in guarded if one.level == load.label))
        ],
        answers={load.label: (_answers(a, load.label), _answers(b, load.label)) for load in shared},
        terms=terms,
    )


def _answers(side: SideOfRun, level: str) -> QualitySummary | None:
    found = [trial.quality for trial in side.at(level)]
    return pooled(sample for record in found if record for sample in record.samples)


def _compared(a: SideOfRun, b: SideOfRun, level: str, name: str, terms: Terms) -> Comparison:
    values_a, values_b = (by_repeat(side.trials, level, name) for side in (a, b))
    return compare_runs(
        CATALOGUE[name], level, values_a, values_b, interleaved=a.run.manifest.run_id == b.run.manifest.run_id,
        alpha=terms.alpha, band=terms.band, error=largest_error_s(name, [*a.at(level), *b.at(level)]),
    )  # fmt: skip


def _check(a: SideOfRun, b: SideOfRun) -> None:
    for key in _MACHINE:
        left, right = a.run.manifest.environment.get(key), b.run.manifest.environment.get(key)
        if left != right:
            raise NotComparable(f"the machines differ in {key} ({left} and {right}); measure both on one machine")
    weights = {t.record.engine_description.model_sha256 for t in (*a.trials, *b.trials) if t.record.engine_description}
    if len(weights) > 1:
        raise NotComparable("the two served different weights; give both the same model")
    for level in (shared.label for shared in a.loads):
        hashes = {_traffic(trial.record) for trial in (*a.at(level), *b.at(level))}
        if len(hashes) > 1:
            raise NotComparable(
                f"at {level} the two were sent different traffic; use the same workload, seed and limits"
            )


def _traffic(record: TrialRecord) -> tuple[str, str]:
    return record.workload, record.workload_sha256
