"""What a candidate is compared with: runs that are named, or the newest ones of a branch."""

from collections.abc import Sequence

from results.benchmark_json import stored
from results.comparability import Series, series_of
from results.errors import NoEvidence
from results.index import CellFacts, Index, Query, RunFacts
from results.records import RunStatus
from results.run import load
from results.sides import SideOfRun, root_of, select, side_of, together

BRANCH = "branch:"
"""Before the name of a branch, where a baseline is meant."""
_MOST_RUNS = 12
"""Of a branch: more make the noise between runs hardly better known, and each has to be read."""


def baseline_of(candidate: SideOfRun, texts: str | Sequence[str], title: str | None = None) -> SideOfRun:
    """The baseline that texts mean.

    ``branch:NAME`` are the newest complete runs of that branch: in the folder that holds the candidate's run, of the
    same experiment, under the same conditions, with a valid trial of the same engine. The candidate's own run is left
    out.

    Args:
        candidate: says which engine is meant where a text names none; never the candidate itself.
        texts: that, or as :func:`results.sides.select` reads it; several are one baseline of several runs.
        title: of the run, where a text names a file with several.

    Raises:
        NoEvidence: the branch has no such run.
        RunNotFound, RunUnreadable, NotImportable, NotComparable: as :func:`results.sides.select`.
    """
    meant = [texts] if isinstance(texts, str) else texts
    return together([side for text in meant for side in _meant(candidate, text, title)])


def _meant(candidate: SideOfRun, text: str, title: str | None) -> list[SideOfRun]:
    if text.startswith(BRANCH):
        return _of_branch(candidate, text.removeprefix(BRANCH))
    side = select(text, candidate.engine, title)
    is_itself = (side.run.path, side.engine) == (candidate.run.path, candidate.engine)
    return [select(text, None, title) if is_itself and "@" not in text else side]


def _of_branch(candidate: SideOfRun, branch: str) -> list[SideOfRun]:
    own, root = candidate.run, root_of(candidate.run)
    with Index(root) as index:
        index.refresh()
        found = index.runs(Query(name=own.manifest.name, branch=branch, status=RunStatus.COMPLETE))
    others = [facts for facts in found if facts.id != own.path.name and _kinds(facts, candidate.engine)]
    if not others:
        where = f"of '{own.manifest.name}' on branch '{branch}' in {root}"
        raise NoEvidence(f"there is no complete run {where} with a valid trial of {candidate.engine}")
    kinds = {_kind(series_of(own.manifest, record)) for record in candidate.records}
    alike = [facts for facts in others if _kinds(facts, candidate.engine) <= kinds]
    # Where no run is alike, the comparison with the newest says what differs.
    chosen = alike[:_MOST_RUNS] or others[:1]
    # Without their logs: a dozen of them would not fit into memory.
    return [side_of(stored("", load(root / facts.id), str(root)), candidate.engine) for facts in chosen]


_Kind = tuple[str, str, str, str, str]


def _kinds(facts: RunFacts, engine: str) -> set[_Kind]:
    """What an engine has valid trials of in a run."""
    return {_kind(cell) for cell in facts.cells if cell.engine == engine}


def _kind(of: CellFacts | Series) -> _Kind:
    return (of.level, of.workload, of.traffic_sha256, of.weights_sha256, of.conditions_sha256)
