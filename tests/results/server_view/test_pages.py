"""Pages of an engine with several addresses: their sum, and what is known of each."""

from typing import Any

import msgspec
import pytest

from bakeoff.results.records import TelemetryRecord, Window
from bakeoff.results.requests import Requests
from bakeoff.results.server_view import engine_page, fall, pages, readings, server_view
from tests.results.readings import S, failed, histogram, reading


def at(source: str, record: TelemetryRecord) -> TelemetryRecord:
    return msgspec.structs.replace(record, source=source)


def both(t_s: float, mark: str | None, first: dict[str, Any], second: dict[str, Any]) -> list[TelemetryRecord]:
    return [
        at("server a:1", reading(t_s, mark, **first)),
        at("server b:2", reading(t_s + 0.1, mark, **second)),
    ]


TELEMETRY = [
    *both(0, "before", {"output_tokens_total": 5, "running": 0}, {"output_tokens_total": 100, "running": 0}),
    *both(1, None, {"running": 3, "kv_usage_share": 0.2}, {"running": 5, "kv_usage_share": 0.6}),
    *both(2, None, {"running": 1, "kv_usage_share": 0.4}, {"running": 1, "kv_usage_share": 0.4}),
    *both(
        3, "after",
        {"output_tokens_total": 25, "running": 0, **histogram("ttft", 2.0, 4, le_0_1=3)},
        {"output_tokens_total": 130, "running": 0, **histogram("ttft", 4.0, 2, le_0_1=1)},
    ),
]  # fmt: skip
WINDOW = Window(round(0.5 * S), round(2.5 * S))


def test_the_engine_has_the_sums_of_its_pages_and_the_means_of_shares() -> None:
    values = server_view(TELEMETRY, Requests(), WINDOW)
    assert values["server_output_tokens"].value == 50
    assert values["server_running_peak"].value == 8
    assert values["server_running_mean"].value == 5
    assert values["server_kv_usage_share_peak"].value == pytest.approx(0.4)
    assert values["server_ttft_mean_s"].value == 1.0
    assert readings(TELEMETRY).increase("ttft_s_le_0.1").value == 4


def test_each_page_is_read_like_the_only_one_of_an_engine() -> None:
    first, second = pages(TELEMETRY)
    assert [(page.label, page.kind) for page in (first, second)] == [("a:1", "server"), ("b:2", "server")]
    of_second = server_view(second.records, Requests(), WINDOW)
    assert of_second["server_output_tokens"].value == 30
    assert of_second["server_running_peak"].value == 5
    assert of_second["server_ttft_mean_s"].value == 2.0


def test_the_only_page_of_an_engine_is_taken_as_it_is() -> None:
    only = [reading(0, "before", running=1), reading(1, running=2)]
    assert engine_page([*only, TelemetryRecord(0, "host", {"cpu_share": 0.5})]) == only
    assert engine_page([]) == []


def test_a_sum_needs_a_new_reading_of_every_page() -> None:
    late = [at("server a:1", reading(t_s, running=t_s)) for t_s in (1, 2, 3)] + [
        at("server b:2", reading(2.5, running=10))
    ]
    assert [(record.t_ns / S, record.values["running"]) for record in engine_page(late)] == [(2.5, 12)]


def test_a_page_that_cannot_be_read_leaves_no_sum_and_is_named() -> None:
    broken = [
        *(record for record in TELEMETRY if record.source == "server a:1"),
        at("server b:2", failed(0.1, "HTTP 404 at /metrics", "before")),
        at("server b:2", failed(3.1, "HTTP 404 at /metrics", "after")),
    ]
    assert server_view(broken, Requests(), WINDOW)["server_output_tokens"].reason == (
        "its metrics page could not be read: b:2: HTTP 404 at /metrics"
    )


def test_a_routers_page_is_not_added_to_those_of_its_replicas() -> None:
    router = [
        at("router r:9", reading(t_s, mark, output_tokens_total=t_s)) for t_s, mark in ((0, "before"), (3, "after"))
    ]
    assert readings([*TELEMETRY, *router]).increase("output_tokens_total").value == 50
    assert [page.kind for page in pages([*TELEMETRY, *router])] == ["server", "server", "router"]


def test_prefill_and_decode_servers_each_count_for_their_part_of_a_request() -> None:
    def counted(source: str, t_s: float, mark: str, factor: float) -> TelemetryRecord:
        figures = {
            "prompt_tokens_total": 100, "prefix_queries_tokens_total": 80, "prefix_hits_tokens_total": 40,
            "output_tokens_total": 10, "preemptions_total": 1, **histogram("ttft", 1, 1), **histogram("queue", 2, 1),
            **histogram("decode", 3, 1),
        }  # fmt: skip
        return at(source, reading(t_s, mark, **{name: value * factor for name, value in figures.items()}))

    telemetry = [
        counted(source, t_s, mark, factor * (mark == "after"))
        for t_s, mark in ((0, "before"), (3, "after"))
        for source, factor in (("prefill p:1", 1), ("decode d:2", 10))
    ]
    values = server_view(telemetry, Requests(), WINDOW)
    assert values["server_prompt_tokens"].value == 100
    assert values["server_prefix_hit_share"].value == 0.5
    assert values["server_output_tokens"].value == 100
    assert values["server_preemptions"].value == 11
    assert values["server_queue_mean_s"].value == 2
    assert values["server_decode_mean_s"].value == 3
    assert values["server_ttft_mean_s"].value is None


def test_a_counter_that_falls_on_one_page_is_seen_though_the_sum_rises() -> None:
    telemetry = [
        *both(0, "before", {"output_tokens_total": 500}, {"output_tokens_total": 0}),
        *both(1, None, {"output_tokens_total": 0}, {"output_tokens_total": 5000}),
        *both(2, "after", {"output_tokens_total": 10}, {"output_tokens_total": 9000}),
    ]
    found = fall(telemetry)
    assert found is not None
    assert (found.name, found.before, found.after) == ("output_tokens_total at a:1", 500, 0)
    assert not found.several
