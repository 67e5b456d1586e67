"""What the server at each address of an engine reports of itself, over the valid trials of a cell."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from bakeoff.results.metrics import Value
from bakeoff.results.requests import Requests
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.levels import levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.server_view import SOURCE, Page, pages, readings, server_view

_ROLES = {SOURCE: "replica"}
"""Roles of addresses by the kind of their page, where the names differ."""


class AddressPage(msgspec.Struct, frozen=True):
    """One address of one engine at one load; None for what its server does not report.

    Attributes:
        engine: label.
        level: title of the load.
        address: label.
        role: ``router``, ``replica``, ``prefill`` or ``decode``.
        requests: answered between the marks, ramp and tail included.
        prompt_tokens: of them, by the server's count.
        output_tokens: likewise.
        hit_share: share of the prompt tokens that it looked up and found in its prefix cache.
        running: requests in its batch, mean over the windows.
        waiting: requests in its queue, mean over the windows.
        queue_s: mean time of a request in its queue.
    """

    engine: str
    level: str
    address: str
    role: str
    requests: float | None
    prompt_tokens: float | None
    output_tokens: float | None
    hit_share: float | None
    running: float | None
    waiting: float | None
    queue_s: float | None


def address_pages(run: Run) -> list[AddressPage]:
    """The addresses of a run by load and engine; none if every engine has one address."""
    return list(_pages(run))


def _pages(run: Run) -> Iterator[AddressPage]:
    for level in levels_of(run):
        for cell in level.cells:
            found: dict[tuple[str, str], list[tuple[Trial, Page]]] = {}
            labels: list[str] = []
            for trial in run.valid_trials_of(cell):
                if described := trial.record.engine_description:
                    labels = [address.label for address in described.addresses]
                for page in pages(trial.telemetry):
                    if page.label:
                        found.setdefault((page.label, page.kind), []).append((trial, page))
            for label, kind in sorted(found, key=lambda of: labels.index(of[0]) if of[0] in labels else len(labels)):
                yield _page(cell.engine, level.title, label, _ROLES.get(kind, kind), found[label, kind])


def _page(engine: str, level: str, label: str, role: str, read: Sequence[tuple[Trial, Page]]) -> AddressPage:
    views = [server_view(page.records, Requests(), trial.record.window) for trial, page in read]
    increases = [readings(page.records).increase for _, page in read]
    hits = _sum([increase("prefix_hits_tokens_total") for increase in increases])
    looked_up = _sum([increase("prefix_queries_tokens_total") for increase in increases])
    counts = [_sum([increase(f"{name}_s_count") for increase in increases]) for name in ("e2e", "ttft")]
    return AddressPage(
        engine=engine,
        level=level,
        address=label,
        role=role,
        requests=next((count for count in counts if count is not None), None),
        prompt_tokens=_sum([view["server_prompt_tokens"] for view in views]),
        output_tokens=_sum([view["server_output_tokens"] for view in views]),
        hit_share=hits / looked_up if hits is not None and looked_up else None,
        running=_mean(views, "server_running_mean"),
        waiting=_mean(views, "server_waiting_mean"),
        queue_s=_mean(views, "server_queue_mean_s"),
    )


def _sum(values: Sequence[Value]) -> float | None:
    known = [value.value for value in values if value.value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean(views: Sequence[Mapping[str, Value]], name: str) -> float | None:
    known = [value for view in views if (value := view[name].value) is not None]
    return statistics.fmean(known) if known else None
