"""The list of runs: filters, fifty at a time, two of them to be compared."""

from collections.abc import Mapping

import msgspec

from results.dashboard.addresses import live_at, report_at, with_query
from results.index import Index, Query, RunFacts
from results.metrics import CATALOGUE
from results.records import RunStatus
from results.text.format import ABSENT, moment_text, value_text

PER_PAGE = 50
_DIGITS = 9  # of a commit


class Line(msgspec.Struct, frozen=True):
    """One run in the list; texts are ready to be shown."""

    id: str
    address: str
    when: str
    name: str
    status: str
    is_live: bool
    is_complete: bool
    verdict: str
    decided: bool
    headline: str
    values: list[tuple[str, str]]
    trials: str
    source: str
    machine: str


class ListPage(msgspec.Struct, frozen=True):
    """What the list shows.

    Attributes:
        name: title of the page.
        root: the folder.
        query: the filters that are set.
        choices: what each may be set to.
        lines: of this page.
        span: ``1–50 of 10,000 runs``.
        newer: address of the page before; None on the first.
        older: of the one after.
        waiting: runs whose logs are still being folded.
    """

    name: str
    root: str
    query: Query
    choices: dict[str, list[str]]
    lines: list[Line]
    span: str
    newer: str | None
    older: str | None
    waiting: int


def list_page(index: Index, asked: Mapping[str, str]) -> ListPage:
    """The list for a query string.

    Args:
        index: as of the last scan.
        asked: ``q``, ``name``, ``engine``, ``branch``, ``status`` and ``page``; what is no value of a filter finds
            nothing.
    """
    page = int(asked["page"]) if asked.get("page", "").isdecimal() else 1
    page = min(max(page, 1), 1_000_000)
    query = query_of(asked, limit=PER_PAGE, offset=(page - 1) * PER_PAGE)
    if query is None:
        runs, total, query = [], 0, Query()
    else:
        runs, total = index.runs(query), index.count(query)
    first = query.offset + 1 if runs else 0
    return ListPage(
        name="Runs",
        root=str(index.root),
        query=query,
        choices=index.choices(),
        lines=[_line(facts) for facts in runs],
        span=f"{first:,}–{query.offset + len(runs):,} of {total:,} runs" if runs else "No run is like that.",
        newer=_turned(asked, page - 1) if page > 1 else None,
        older=_turned(asked, page + 1) if query.offset + len(runs) < total else None,
        waiting=index.unfolded(),
    )


def query_of(asked: Mapping[str, str], limit: int | None = None, offset: int = 0) -> Query | None:
    """The query that a query string asks for; None where its status is none."""
    wanted = asked.get("status") or None
    if wanted is not None and wanted not in set(RunStatus):
        return None
    return Query(
        words=asked.get("q", ""),
        name=asked.get("name") or None,
        engine=asked.get("engine") or None,
        branch=asked.get("branch") or None,
        status=RunStatus(wanted) if wanted else None,
        limit=limit,
        offset=offset,
    )


def _turned(asked: Mapping[str, str], page: int) -> str:
    return with_query("/", {**asked, "page": str(page) if page > 1 else ""})


def _line(facts: RunFacts) -> Line:
    is_live = facts.status is RunStatus.RUNNING
    headline, values = _headline(facts)
    return Line(
        id=facts.id,
        address=live_at(facts.id) if is_live else report_at(facts.id),
        when=moment_text(facts.created_utc) if facts.created_utc else ABSENT,
        name=facts.name or facts.id,
        status=facts.status.value,
        is_live=is_live,
        is_complete=facts.status is RunStatus.COMPLETE,
        verdict=facts.problem or facts.failure or (facts.verdict.sentence if facts.verdict else ""),
        decided=facts.verdict is not None and facts.verdict.decided and not facts.failure,
        headline=headline,
        values=values,
        trials=_trials(facts),
        source=_source(facts),
        machine=facts.machine,
    )


def _headline(facts: RunFacts) -> tuple[str, list[tuple[str, str]]]:
    found = facts.headline
    if found is None:
        return "", []
    metric = CATALOGUE[found.metric]
    texts = [(engine, value_text(metric.unit, value)) for engine, value in found.values.items()]
    return f"{metric.title} at {found.level}", texts


def _trials(facts: RunFacts) -> str:
    if facts.finished is None:
        return f"{facts.planned} planned"
    ended = f"{facts.valid} valid of {facts.planned}"
    return ended if facts.finished == facts.planned else f"{ended}, {facts.finished} ended"


def _source(facts: RunFacts) -> str:
    source = facts.source
    if source is None:
        return ABSENT
    commit = source.commit.rstrip("+")[:_DIGITS] + ("+" if source.commit.endswith("+") else "")
    return f"{source.branch} {commit}" if source.branch else commit
