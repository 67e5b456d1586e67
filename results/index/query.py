"""Queries of the index: filters and order."""

from enum import StrEnum

import msgspec

from bakeoff.results.records import RunStatus


class Order(StrEnum):
    """Sort order."""

    NEWEST = "newest"
    OLDEST = "oldest"
    NAME = "name"


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Filters, combined with AND.

    Attributes:
        words: each must occur in the run's facts, ignoring case.
        name: of the experiment.
        engine: label of one of the run's engines.
        model: name of one of its models.
        url: address of one of its engines.
        level: label of one of its loads.
        workload: name of one of its workloads.
        branch: of the code under test.
        status: of the run.
        order: of the list.
        limit: maximum number of runs; None for all.
        offset: number of runs to skip.
    """

    words: str = ""
    name: str | None = None
    engine: str | None = None
    model: str | None = None
    url: str | None = None
    level: str | None = None
    workload: str | None = None
    branch: str | None = None
    status: RunStatus | None = None
    order: Order = Order.NEWEST
    limit: int | None = None
    offset: int = 0


LABELS = {"engine": "engines", "model": "models", "url": "urls", "level": "levels", "workload": "workloads"}
"""Filter → column of labels, of which a run may have several."""


def where(query: Query) -> tuple[str, list[str]]:
    """SQL condition and its values."""
    conditions: list[str] = []
    values: list[str] = []
    for column, value in (("name", query.name), ("branch", query.branch), ("status", query.status)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(str(value))
    for name, column in LABELS.items():
        if (value := getattr(query, name)) is not None:
            conditions.append(f"instr({column}, ?) > 0")
            values.append(fenced(value))
    for word in query.words.casefold().split():
        conditions.append("instr(words, ?) > 0")
        values.append(word)
    return (f"WHERE {' AND '.join(conditions)}" if conditions else ""), values


ORDERS = {
    Order.NEWEST: "ORDER BY created DESC, id DESC",
    Order.OLDEST: "ORDER BY created, id",
    Order.NAME: "ORDER BY name, created DESC, id DESC",
}


def fenced(*labels: str) -> str:
    """Labels in one text with separators, so that a search matches whole labels only."""
    return "\n" + "".join(f"{label}\n" for label in labels)
