"""The list of runs: filters, pages of fifty, and a choice of two to compare."""

from collections.abc import Mapping

import msgspec

from bakeoff.results.dashboard.addresses import live_at, report_at, with_query
from bakeoff.results.index import Index, Query, RunFacts
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import RunStatus
from bakeoff.results.text.format import ABSENT, moment_text, value_text

PER_PAGE = 50
_LAST_PAGE = 1_000_000
_DIGITS = 9  # of a commit
FILTERS = {
    "name": "Experiment", "engine": "Engine", "model": "Model", "url": "Address", "level": "Load",
    "workload": "Workload", "branch": "Branch", "status": "Status",
}  # fmt: skip
"""Name in the query string → label."""


class Line(msgspec.Struct, frozen=True):
    """One row of the list; texts are formatted.

    Attributes:
        validity: class of the number of trials: ``none`` or ``partly`` valid; empty if all that ended are.
    """

    id: str
    address: str
    when: str
    name: str
    status: str
    is_live: bool
    is_complete: bool
    engines: list[str]
    urls: list[str]
    models: str
    levels: str
    workloads: str
    verdict: str
    decided: bool
    headline: str
    values: list[tuple[str, str]]
    trials: str
    validity: str
    source: str
    machine: str


class Filter(msgspec.Struct, frozen=True):
    """A filter: its label, its name in the query string, the possible values, and the chosen one."""

    label: str
    name: str
    options: list[str]
    chosen: str | None


class ListPage(msgspec.Struct, frozen=True):
    """Content of the page.

    Attributes:
        name: title of the page.
        root: folder of runs.
        query: filters in effect.
        filters: with at least one possible value.
        lines: rows of this page.
        span: ``1–50 of 10,000 runs``.
        newer: address of the previous page; None on the first.
        older: address of the next page; None on the last.
        waiting: number of runs whose logs are not yet folded.
    """

    name: str
    root: str
    query: Query
    filters: list[Filter]
    lines: list[Line]
    span: str
    newer: str | None
    older: str | None
    waiting: int


def list_page(index: Index, parameters: Mapping[str, str]) -> ListPage:
    """The page for a query string.

    Args:
        index: of the folder of runs.
        parameters: ``q``, ``page`` and the names of :data:`FILTERS`; an unknown value matches nothing.
    """
    asked = parameters.get("page", "")
    digits = asked[: len(str(_LAST_PAGE))]  # Python refuses to read thousands of them
    page = min(max(int(digits), 1), _LAST_PAGE) if asked.isdecimal() else 1
    query = query_of(parameters, limit=PER_PAGE, offset=(page - 1) * PER_PAGE)
    if query is None:
        runs, total, query = [], 0, Query()
    else:
        runs, total = index.runs(query), index.count(query)
    first = query.offset + 1 if runs else 0
    return ListPage(
        name="Runs",
        root=str(index.root),
        query=query,
        filters=_filters(parameters, index.choices()),
        lines=[_line(facts) for facts in runs],
        span=f"{first:,}–{query.offset + len(runs):,} of {total:,} runs" if runs else "No run matches.",
        newer=_page_address(parameters, page - 1) if page > 1 else None,
        older=_page_address(parameters, page + 1) if query.offset + len(runs) < total else None,
        waiting=index.unfolded(),
    )


def query_of(parameters: Mapping[str, str], limit: int | None = None, offset: int = 0) -> Query | None:
    """Query of a query string; None if its status is unknown."""
    status = parameters.get("status") or None
    if status is not None and status not in set(RunStatus):
        return None
    return Query(
        words=parameters.get("q", ""),
        name=parameters.get("name") or None,
        engine=parameters.get("engine") or None,
        model=parameters.get("model") or None,
        url=parameters.get("url") or None,
        level=parameters.get("level") or None,
        workload=parameters.get("workload") or None,
        branch=parameters.get("branch") or None,
        status=RunStatus(status) if status else None,
        limit=limit,
        offset=offset,
    )


def _filters(parameters: Mapping[str, str], choices: Mapping[str, list[str]]) -> list[Filter]:
    return [
        Filter(label, name, choices[name], parameters.get(name)) for name, label in FILTERS.items() if choices[name]
    ]


def _page_address(parameters: Mapping[str, str], page: int) -> str:
    return with_query("/", {**parameters, "page": str(page) if page > 1 else ""})


def _line(facts: RunFacts) -> Line:
    is_live = facts.status is RunStatus.RUNNING
    is_figure = facts.verdict is not None and facts.verdict.is_figure and not facts.failure
    headline, values = ("", []) if is_figure else _headline(facts)
    return Line(
        id=facts.id,
        address=live_at(facts.id) if is_live else report_at(facts.id),
        when=moment_text(facts.created_utc) if facts.created_utc else ABSENT,
        name=facts.name or facts.id,
        status=facts.status.value,
        is_live=is_live,
        is_complete=facts.status is RunStatus.COMPLETE,
        engines=facts.engines,
        urls=facts.urls,
        models=", ".join(facts.models) or ABSENT,
        levels=", ".join(facts.levels) or ABSENT,
        workloads=", ".join(facts.workloads),
        verdict=facts.problem or facts.failure or (facts.verdict.sentence if facts.verdict else ""),
        decided=facts.verdict is not None and facts.verdict.decided and not facts.failure,
        headline=headline,
        values=values,
        trials=_trials(facts),
        validity=_validity(facts),
        source=_source(facts),
        machine=facts.machine,
    )


def _headline(facts: RunFacts) -> tuple[str, list[tuple[str, str]]]:
    facts_headline = facts.headline
    if facts_headline is None:
        return "", []
    metric = CATALOGUE[facts_headline.metric]
    texts = [(engine, value_text(metric.unit, value)) for engine, value in facts_headline.values.items()]
    return f"{metric.title} at {facts_headline.level}", texts


def _trials(facts: RunFacts) -> str:
    if facts.finished is None:
        return f"{facts.planned} planned"
    valid = f"{facts.valid} of {facts.planned} valid"
    return valid if facts.finished == facts.planned else f"{valid}, {facts.finished} ended"


def _validity(facts: RunFacts) -> str:
    if not facts.finished or facts.valid == facts.finished:
        return ""
    if facts.valid == 0:
        return "none"
    return "" if facts.is_search else "partly"


def _source(facts: RunFacts) -> str:
    source = facts.source
    if source is None:
        return ABSENT
    commit = source.commit.rstrip("+")[:_DIGITS] + ("+" if source.commit.endswith("+") else "")
    return f"{source.branch} {commit}" if source.branch else commit
