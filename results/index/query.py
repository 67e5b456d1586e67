"""Which runs of an index are asked for, and in which order."""

from enum import StrEnum

import msgspec

from results.records import RunStatus


class Order(StrEnum):
    """What a list is sorted by."""

    NEWEST = "newest"
    OLDEST = "oldest"
    NAME = "name"


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Filters; all that are set must hold.

    Attributes:
        words: every one of them stands somewhere in the run's facts, whatever its case.
        name: of the experiment.
        engine: label of an engine that took part.
        branch: of the code under test.
        status: how far the run got.
        order: of the list.
        limit: at most so many runs; None for all.
        offset: leave out so many first.
    """

    words: str = ""
    name: str | None = None
    engine: str | None = None
    branch: str | None = None
    status: RunStatus | None = None
    order: Order = Order.NEWEST
    limit: int | None = None
    offset: int = 0


def where(query: Query) -> tuple[str, list[str]]:
    """The condition in SQL, and its values."""
    conditions: list[str] = []
    values: list[str] = []
    for column, value in (("name", query.name), ("branch", query.branch), ("status", query.status)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(str(value))
    if query.engine is not None:
        conditions.append("instr(engines, ?) > 0")
        values.append(fenced(query.engine))
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
    """Labels in one text, such that each can be found whole."""
    return "\n" + "".join(f"{label}\n" for label in labels)
