"""What the pages of several addresses tell of each of them, over the trials of a cell."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bakeoff.results.records import TelemetryRecord, Window
from bakeoff.results.run import address_pages as module
from bakeoff.results.run.address_pages import address_pages
from tests.results.readings import S, histogram, reading


def page(source: str, factor: float, *, queue: bool = True) -> list[TelemetryRecord]:
    counted = {
        "prompt_tokens_total": 100 * factor, "output_tokens_total": 10 * factor,
        "prefix_queries_tokens_total": 80 * factor, "prefix_hits_tokens_total": 20 * factor * factor,
        **histogram("e2e", 3 * factor, factor), **(histogram("queue", 0.5 * factor, factor) if queue else {}),
    }  # fmt: skip
    records = [
        reading(0, "before", **dict.fromkeys(counted, 0.0)),
        reading(5, running=factor, waiting=2 * factor),
        reading(9, "after", **counted),
    ]
    return [msgspec.structs.replace(record, source=source) for record in records]


def run_of(monkeypatch: pytest.MonkeyPatch, *trials: list[TelemetryRecord]) -> Any:
    level = SimpleNamespace(title="c=1", cells=[SimpleNamespace(engine="e")])
    monkeypatch.setattr(module, "levels_of", lambda _: [level])
    labels = ("r:9", "a:1", "b:2", "d:3")
    description = SimpleNamespace(addresses=[SimpleNamespace(label=label) for label in labels])
    record = SimpleNamespace(window=Window(S, 8 * S), engine_description=description)
    return SimpleNamespace(valid_trials_of=lambda _: [SimpleNamespace(telemetry=t, record=record) for t in trials])


def test_counts_add_up_over_trials_and_levels_are_means(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [[*page("server b:2", 1), *page("server a:1", first)] for first in (1, 2)]
    first, second = address_pages(run_of(monkeypatch, *trials))
    assert (first.engine, first.level, first.address, first.role) == ("e", "c=1", "a:1", "replica")
    assert (first.requests, first.prompt_tokens, first.output_tokens) == (3, 300, 30)
    assert first.hit_share == pytest.approx((20 + 80) / (80 + 160)), "of the sums, not the mean of two shares"
    assert (first.running, first.waiting, first.queue_s) == (1.5, 3, 0.5)
    assert (second.requests, second.prompt_tokens) == (2, 200)


def test_a_router_and_what_is_behind_it_have_their_roles_and_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = [
        msgspec.structs.replace(reading(t_s, mark), source="router r:9") for t_s, mark in ((0, "before"), (9, "after"))
    ]
    rows = address_pages(run_of(monkeypatch, [*silent, *page("decode d:3", 1, queue=False)]))
    assert [(row.address, row.role) for row in rows] == [("r:9", "router"), ("d:3", "decode")]
    assert (rows[0].requests, rows[0].hit_share, rows[0].running, rows[0].queue_s) == (None, None, None, None)
    assert rows[1].requests == 1
    assert rows[1].queue_s is None


def test_the_page_of_an_only_address_is_not_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert address_pages(run_of(monkeypatch, page("server", 1))) == []
