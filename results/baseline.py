"""What a candidate is compared with: a run that is named, or the newest one of a branch."""

from results.comparing import SideOfRun, select, side_of
from results.errors import NoEvidence
from results.index import Index, Query
from results.records import RunStatus
from results.run import load

BRANCH = "branch:"
"""Before the name of a branch, where a baseline is meant."""


def baseline_of(candidate: SideOfRun, text: str, title: str | None = None) -> SideOfRun:
    """The baseline that a text means.

    ``branch:NAME`` is the newest complete run of that branch: in the folder that holds the candidate's run, of the same
    experiment, with a valid trial of the same engine. The candidate's own run is left out.

    Args:
        candidate: says which engine is meant where the text names none; never the candidate itself.
        text: that, or as :func:`results.comparing.select` reads it.
        title: of the run, where the text names a file with several.

    Raises:
        NoEvidence: the branch has no such run.
        RunNotFound, RunUnreadable, NotImportable, NotComparable: as :func:`results.comparing.select`.
    """
    if not text.startswith(BRANCH):
        meant = select(text, candidate.engine, title)
        is_itself = (meant.run.path, meant.engine) == (candidate.run.path, candidate.engine)
        return select(text, None, title) if is_itself and "@" not in text else meant
    branch, own = text.removeprefix(BRANCH), candidate.run
    root = own.path.parent
    with Index(root) as index:
        index.refresh()
        found = index.runs(Query(name=own.manifest.name, branch=branch, status=RunStatus.COMPLETE))
    for facts in found:
        if facts.id != own.path.name and any(cell.engine == candidate.engine for cell in facts.cells):
            return side_of(load(root / facts.id), candidate.engine)
    where = f"of '{own.manifest.name}' on branch '{branch}' in {root}"
    raise NoEvidence(f"there is no complete run {where} with a valid trial of {candidate.engine}")
