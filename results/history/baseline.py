"""Baseline of a comparison: named runs, or the newest runs of a branch."""

from collections.abc import Sequence

from bakeoff.results.compare.comparability import Series, series_of
from bakeoff.results.compare.sides import Side, root_of, select, side_of, together
from bakeoff.results.errors import NoEvidence, NotComparable
from bakeoff.results.export.benchmark_json import stored
from bakeoff.results.index import CellFacts, Index, Query, RunFacts
from bakeoff.results.records import RunStatus
from bakeoff.results.run.run import load

BRANCH = "branch:"
"""Prefix of a baseline that names a branch."""
_MAX_RUNS = 12
"""Runs of a branch to use: more hardly improve the estimate of the noise between runs, and each has to be read."""


def baseline_of(candidate: Side, texts: str | Sequence[str], title: str | None = None) -> Side:
    """Read the baseline that the user named.

    ``branch:NAME`` means the newest complete runs of that branch in the folder of the candidate's run: of the same
    experiment, under the same conditions, with a valid trial of the same engine. The candidate's own run is excluded.

    Args:
        candidate: its engine is the default engine of the baseline; the baseline is never the candidate itself.
        texts: ``branch:NAME``, or what :func:`bakeoff.results.compare.sides.select` reads; several form one baseline of
            several runs.
        title: title of the run, for a file that holds several.

    Raises:
        NoEvidence: the branch has no matching run.
        NotComparable: a side is the candidate itself.
        RunNotFound, RunUnreadable, NotImportable, NotComparable: as :func:`bakeoff.results.compare.sides.select`.
    """
    named = [texts] if isinstance(texts, str) else texts
    sides = [side for text in named for side in _named_sides(candidate, text, title)]
    if any(_identity(side) == _identity(candidate) for side in sides):
        raise NotComparable(
            f"baseline and candidate are the same run of {candidate.engine}, which is never worse than itself; name two"
        )
    return together(sides)


def _identity(side: Side) -> tuple[str, str]:
    return side.run.manifest.run_id, side.engine


def _named_sides(candidate: Side, text: str, title: str | None) -> list[Side]:
    if text.startswith(BRANCH):
        return _of_branch(candidate, text.removeprefix(BRANCH))
    side = select(text, candidate.engine, title)
    is_itself = _identity(side) == _identity(candidate)
    return [select(text, None, title) if is_itself and "@" not in text else side]


def _of_branch(candidate: Side, branch: str) -> list[Side]:
    own, root = candidate.run, root_of(candidate.run)
    with Index(root) as index:
        index.refresh()
        runs = index.runs(Query(name=own.manifest.name, branch=branch, status=RunStatus.COMPLETE))
    others = [facts for facts in runs if facts.id != own.path.name and _kinds(facts, candidate.engine)]
    if not others:
        raise NoEvidence(
            f"there is no complete run of '{own.manifest.name}' on branch '{branch}' in {root} with a valid trial of "
            f"{candidate.engine}"
        )
    kinds = {_kind(series_of(own.manifest, record)) for record in candidate.records}
    comparable = [facts for facts in others if _kinds(facts, candidate.engine) <= kinds]
    # If no run is comparable, comparing with the newest reports which condition differs.
    chosen = comparable[:_MAX_RUNS] or others[:1]
    # Without their logs: a dozen of those would not fit in memory.
    return [side_of(stored("", load(root / facts.id), str(root)), candidate.engine) for facts in chosen]


_Kind = tuple[str, str, str, str, str]


def _kinds(facts: RunFacts, engine: str) -> set[_Kind]:
    """Kinds of an engine's valid trials in a run."""
    return {_kind(cell) for cell in facts.cells if cell.engine == engine}


def _kind(of: CellFacts | Series) -> _Kind:
    return (of.level, of.workload, of.traffic_sha256, of.weights_sha256, of.conditions_sha256)
