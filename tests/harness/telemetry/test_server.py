"""The engine's own page: read beside the other probes without delaying them, and marked on request."""

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import psutil
import pytest

from bakeoff.engines import Access, pick_port
from bakeoff.engines.metrics import Prometheus
from bakeoff.harness.telemetry import Sampler, ServerPage, sampler
from bakeoff.harness.telemetry.server import PageReader
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import TelemetryRecord
from tests.harness.pages import PAGE, SOURCE, page_server

FRAME = {"running": 3.0, "output_tokens_total": 100.0, "ttft_s_sum": 4.5, "ttft_s_count": 9.0}


def sampled(folder: TrialFolder, page: ServerPage | None, during: Callable[[Sampler], object]) -> list[TelemetryRecord]:
    """All records that the sampler wrote while ``during`` ran, those of the page among them."""
    return sampled_pages(folder, [page] if page else [], during)


def sampled_pages(
    folder: TrialFolder, pages: Sequence[ServerPage], during: Callable[[Sampler], object]
) -> list[TelemetryRecord]:
    """The same with any number of pages."""

    async def scene() -> None:
        async with sampler() as running, running.into(folder.telemetry_log, [], [], pages):
            await during(running)

    asyncio.run(asyncio.wait_for(scene(), 60))
    return folder.read_telemetry().records


def of_the_page(records: list[TelemetryRecord]) -> list[TelemetryRecord]:
    return [record for record in records if record.source == "server"]


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  (the condition lives in another thread or process)
        await asyncio.sleep(0.01)


def test_a_reading_is_stamped_in_the_middle_of_its_exchange():
    with page_server() as server:
        reader = PageReader(server.page(), iter([1_000, 3_000]).__next__)
        reading = reader.read()
        reader.close()
    assert (reading.t_ns, reading.scrape_s, reading.error) == (2_000, 2e-6, "")
    assert reading.values == {**FRAME, "ttft_s_le_0.5": 8.0}


def test_a_connection_is_kept_and_one_that_was_closed_meanwhile_is_opened_again():
    with page_server() as server:
        reader = PageReader(server.page())
        readings = [reader.read() for _ in range(3)]
        assert server.connections == 1
        server.hang_up = True
        readings.append(reader.read())
        server.hang_up = False
        readings += [reader.read() for _ in range(2)]
        reader.close()
        assert server.connections == 2
    assert all(reading.values["running"] == 3.0 for reading in readings)


@pytest.mark.parametrize(("status", "for_good"), [(404, True), (501, True), (401, True), (503, False), (429, False)])
def test_a_page_that_is_refused_says_how_and_whether_for_good(status: int, for_good: bool):
    with page_server(lambda _: (status, "no")) as server:
        reader = PageReader(server.page())
        first, second = reader.read(), reader.read()
        reader.close()
    assert first.values == {}
    assert first.scrape_s is None
    assert first.error.startswith(f"HTTP {status} ")
    assert first.error.endswith(" at /metrics")
    assert (first.refused, second.error) == (for_good, first.error)


def test_a_server_that_is_gone_is_a_reason():
    reading = PageReader(ServerPage(f"http://127.0.0.1:{pick_port()}", SOURCE)).read()
    assert reading.error.startswith("ConnectionRefusedError: ")
    assert not reading.refused


def test_path_prefix_query_and_headers_are_the_clients_and_no_reason_shows_them():
    access = Access({"authorization": "Bearer sentinel-key"}, "key=sentinel-query")
    with page_server(lambda _: (404, "no")) as server:
        base = server.page(access)
        reader = PageReader(ServerPage(f"{base.base_url}/prefix", Prometheus({}, path="/m"), access))
        why = reader.read().error
        reader.close()
    (path, headers), *_ = server.requests
    assert path == "/prefix/m?key=sentinel-query"
    assert headers["authorization"] == "Bearer sentinel-key"
    assert "sentinel" not in why
    assert why.startswith("HTTP 404 ")


def test_a_page_may_have_a_port_of_its_own():
    with page_server() as server:
        port = int(server.url.rpartition(":")[2])
        page = ServerPage(f"http://127.0.0.1:{pick_port()}", Prometheus(SOURCE.values, port=port))
        reader = PageReader(page)
        assert reader.read().values["running"] == 3.0
        reader.close()


def test_the_sampler_reads_the_page_at_its_pace_and_whole_at_the_marks(tmp_path: Path):
    folder = TrialFolder(tmp_path)
    tokens = itertools.count(100)

    def say(_: str) -> tuple[int, str]:
        return 200, PAGE.replace("100", str(next(tokens)))

    with page_server(say) as server:

        async def during(running: Sampler) -> None:
            await running.mark("before")
            await until(lambda: len(server.requests) >= 4)
            await running.mark("after")

        records = of_the_page(sampled(folder, server.page(), during))
        assert server.connections == 1
    marks = [record.values.get("mark") for record in records]
    assert [mark for mark in marks if mark] == ["before", "after"]
    assert marks[-1] == "after"
    assert [record.values["output_tokens_total"] for record in records] == [100.0 + i for i in range(len(records))]
    for record in records:
        assert ("ttft_s_le_0.5" in record.values) is ("mark" in record.values)  # buckets are for the differences
        assert record.values["scrape_s"] < 5
        assert record.reasons == {}
    ticks = [record.t_ns for record in records if "mark" not in record.values]
    assert ticks[-1] - ticks[0] > (len(ticks) - 2) * 500_000_000  # the first may have been late


def test_a_page_that_hangs_delays_neither_the_other_probes_nor_the_end(tmp_path: Path):
    folder = TrialFolder(tmp_path)
    answer = threading.Event()

    def say(_: str) -> tuple[int, str]:
        answer.wait(30)
        return 200, PAGE

    with page_server(say) as server:

        async def during(_: Sampler) -> None:
            await until(lambda: server.requests)
            await until(lambda: sum(record.source == "host" for record in folder.read_telemetry().records) >= 5)

        records = sampled(folder, server.page(), during)
        answer.set()
    assert of_the_page(records) == []
    hosts = [record.t_ns for record in records if record.source == "host"]
    assert len(hosts) >= 5


def test_a_mark_waits_for_its_reading_even_after_a_cancelled_mark(tmp_path: Path):
    folder = TrialFolder(tmp_path)
    answer = threading.Event()

    def say(_: str) -> tuple[int, str]:
        answer.wait(30)
        return 200, PAGE

    with page_server(say) as server:

        async def during(running: Sampler) -> None:
            given_up = asyncio.create_task(running.mark("given up"))
            await until(lambda: server.requests)
            given_up.cancel()
            await asyncio.wait([given_up])
            answer.set()
            await running.mark("after")
            assert [r.values.get("mark") for r in of_the_page(folder.read_telemetry().records)][-1] == "after"

        sampled(folder, server.page(), during)


def test_a_page_that_is_not_there_is_asked_for_once_and_at_the_marks(tmp_path: Path):
    folder = TrialFolder(tmp_path)
    with page_server(lambda _: (501, "start with --metrics")) as server:

        async def during(running: Sampler) -> None:
            await until(lambda: server.requests)
            await until(lambda: sum(r.source == "host" for r in folder.read_telemetry().records) >= 12)
            await running.mark("after")

        records = of_the_page(sampled(folder, server.page(), during))
        assert len(server.requests) == 2
    assert [record.values for record in records] == [{"scrape_s": None}, {"scrape_s": None, "mark": "after"}]
    assert records[0].reasons == {"scrape_s": "HTTP 501 Not Implemented at /metrics"}


def test_a_mark_without_a_page_costs_nothing(tmp_path: Path):
    async def during(running: Sampler) -> None:
        await running.mark("before")

    assert of_the_page(sampled(TrialFolder(tmp_path), None, during)) == []


def test_what_lets_the_sampler_in_stands_in_no_argument_and_no_file(tmp_path: Path):
    folder = TrialFolder(tmp_path)
    secret = "sentinel-of-the-sampler"
    with page_server() as server:

        async def during(running: Sampler) -> None:
            await running.mark("before")
            process = psutil.Process(running._process.pid)
            assert secret not in json.dumps([process.cmdline(), process.environ()])

        sampled(folder, server.page(Access({"x-api-key": secret}, f"key={secret}")), during)
        path, headers = server.requests[0]
    assert secret in path
    assert headers["x-api-key"] == secret
    assert secret.encode() not in folder.telemetry_log.read_bytes()


def test_each_of_several_pages_has_a_source_of_its_own_and_a_mark_waits_for_all_of_them(tmp_path: Path):
    """One page answers its mark only when the other one has been read."""
    folder, seen = TrialFolder(tmp_path), threading.Event()

    def first(_: str) -> tuple[int, str]:
        seen.set()
        return 200, PAGE

    def second(_: str) -> tuple[int, str]:
        seen.wait(20)
        return 200, "running 5\n"

    async def during(running: Sampler) -> None:
        await running.mark("before")
        records = folder.read_telemetry().records
        marked = {record.source for record in records if record.values.get("mark") == "before"}
        assert marked == {"server a:1", "decode b:2"}

    with page_server(first) as one, page_server(second) as other:
        pages = [
            msgspec.structs.replace(server.page(), name=name)
            for server, name in ((one, "server a:1"), (other, "decode b:2"))
        ]
        records = sampled_pages(folder, pages, during)
    running = {record.source: record.values["running"] for record in records if "running" in record.values}
    assert running == {"server a:1": 3.0, "decode b:2": 5.0}
