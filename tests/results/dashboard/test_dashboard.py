"""The dashboard over HTTP: search, access, and exported files."""

import csv
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pandas as pd
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bakeoff import results
from bakeoff.results.dashboard import access_policy
from bakeoff.results.dashboard.prometheus import NAMES
from bakeoff.results.errors import NotServed
from bakeoff.results.log.run_log import Source
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import RunStatus
from tests.results.amending import amend
from tests.results.builders import FAST, LOADS, SLOW, Sheet, Texts, build_run
from tests.results.dashboards import Served, dashboard
from tests.results.floors import with_floor
from tests.results.hostile import TRAVERSALS

SHEET = Sheet(engines={"reference": FAST, "transformers": SLOW}, loads=LOADS[:1], requests=6, invalid=(), regret=None)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine runs a day apart, the last four slower; one still running, one failed, two damaged.

    The noise between runs is known.
    """
    root = tmp_path_factory.mktemp("runs")
    for day in range(1, 10):
        slower = 1.5 if day >= 6 else 1.0
        speed = replace(FAST, ttft_s=FAST.ttft_s * slower, itl_s=FAST.itl_s * slower)
        path = build_run(
            root, replace(SHEET, engines={"reference": speed, "transformers": SLOW}, run_id=f"day-{day}", seed=day)
        )
        folder = RunFolder(path)
        created, source = f"2026-11-0{day}T10:00:00+00:00", Source(f"{day:09x}ff", "main")
        amend(folder.path, created_utc=created, source=source)
    with_floor(root / "day-1")
    build_run(root, replace(SHEET, run_id="live", status=RunStatus.RUNNING, finished=3))
    build_run(root, replace(SHEET, run_id="dead", status=RunStatus.FAILED, finished=2, texts=Texts(name="other")))
    (build_run(root, replace(SHEET, run_id="torn")) / "run.jsonl").write_text("{\n")
    with (build_run(root, replace(SHEET, run_id="latin")) / "run.jsonl").open("r+b") as log:
        log.seek(len(log.readline()) + 2)
        log.write(b"\xff")
    return root


@pytest.fixture(scope="module")
def served(root: Path) -> Iterator[Served]:
    with dashboard(root) as served:
        served.settle()
        yield served


def page(served: Served, path: str) -> str:
    status, body, headers = served.ask(path, Accept="text/html")
    assert status == 200, body
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    return body.decode()


def data(served: Served, path: str) -> object:
    status, body, _ = served.ask(path)
    assert status == 200, body
    return json.loads(body)


@pytest.mark.slow
def test_the_list_shows_every_run_and_what_is_wrong_with_it(served: Served) -> None:
    text = page(served, "/")
    assert "1–13 of 13 runs" in text
    for day in range(1, 10):
        assert f'href="/runs/day-{day}/report"' in text
    assert 'href="/runs/live/live"' in text
    assert "torn/run.jsonl cannot be read" in text
    assert "latin/run.jsonl: line 2 is damaged" in text
    assert "At c=1, reference delivered " in text


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("name=other", 1), ("engine=reference", 11), ("engine=refer", 0), ("branch=main", 9), ("status=complete", 9),
        ("status=running", 1), ("status=nonsense", 0), ("q=000000003ff", 1), ("q=xeon", 11), ("q=zzz", 0),
        ("page=2", 0), ("page=-1", 13), ("page=x", 13), ("page=99999999999999999999", 0),
    ],
)  # fmt: skip
def test_filters_of_the_list(served: Served, query: str, count: int) -> None:
    assert page(served, f"/?{query}").count('type="checkbox"') == count


@pytest.mark.slow
def test_a_run_has_its_report_with_the_way_back_and_its_files(served: Served) -> None:
    text = page(served, "/runs/day-1/report")
    assert "<h1>demo</h1>" in text
    assert '<a href="/">Runs</a>' in text
    assert 'href="export/requests.parquet"' in text


def test_a_report_is_made_anew_when_its_run_has_changed(root: Path, served: Served) -> None:
    folder = RunFolder(root / "dead")
    assert "the first failure" not in page(served, "/runs/dead/report")
    amend(folder.path, failure="the first failure")
    served.settle()
    assert "the first failure" in page(served, "/runs/dead/report")


def test_two_runs_are_compared_the_older_one_is_the_baseline(served: Served) -> None:
    text = page(served, "/compare?run=day-9&run=day-1")
    assert '<option value="day-1@reference" selected>' in text
    assert '<option value="day-9@reference" selected>' in text
    assert "Regression." in text
    turned = page(served, "/compare?a=day-9@reference&b=day-1@reference")
    assert "▲ better" in turned
    assert "▼ worse" not in turned
    single_run = page(served, "/compare?run=day-1")
    assert '<option value="day-1@transformers" selected>' in single_run, "one run: its two engines"


def test_what_cannot_be_compared_says_why(served: Served) -> None:
    assert "unknown metric &#39;zzz&#39;" in page(served, "/compare?a=day-1&b=day-2&primary=zzz")
    assert "has no engine &#39;x&#39;" in page(served, "/compare?a=day-1@x&b=day-2")
    assert "cannot be read" in page(served, "/compare?a=day-1&b=torn")
    for query in ("", "?a=day-1", "?a=day-1&b=nothing", "?run=nothing"):
        assert served.ask(f"/compare{query}")[0] == 404


def test_the_history_shows_steps_with_their_commits(served: Served) -> None:
    text = page(served, "/history?name=demo&engine=reference&metric=itl_p50_s")
    assert "000000005..000000006" in text
    assert 'href="/runs/day-6/report"' in text
    assert 'href="/compare?a=day-5%40reference&amp;b=day-6%40reference"' in text
    assert text.count("<svg") == 1
    assert "worse" in text
    assert "latin is left out: " in text
    assert "needs 3 runs before" in page(served, "/history?name=demo&branch=main&engine=none")
    assert "there is no complete run" in page(served, "/history?name=other")
    assert "unknown metric" in page(served, "/history?name=demo&metric=zzz")


def test_the_live_view_tells_trials_and_exchanges(served: Served) -> None:
    assert "3 of 6 trials ended" in page(served, "/runs/live/live")
    now = data(served, "/api/runs/live/live")
    assert isinstance(now, dict)
    assert [step["state"] for step in now["steps"]] == ["VALID"] * 3 + ["planned"] * 3
    assert now["status"] == "running"


def test_programs_get_the_same_in_json(served: Served) -> None:
    runs = data(served, "/api/runs?name=demo&status=complete")
    assert isinstance(runs, list)
    assert [run["id"] for run in runs] == [f"day-{day}" for day in range(9, 0, -1)]
    assert data(served, "/api/runs?status=nonsense") == []
    run = data(served, "/api/runs/day-3")
    assert isinstance(run, dict)
    assert run["source"] == {"commit": "000000003ff", "branch": "main"}


@pytest.mark.slow
def test_every_table_in_every_format(served: Served, root: Path) -> None:
    run = results.load(root / "day-1")
    for name in ("summary", "trials", "requests", "chunks", "telemetry"):
        frame = getattr(run, name)
        status, body, headers = served.ask(f"/runs/day-1/export/{name}.parquet")
        assert (status, headers["Content-Disposition"]) == (200, f'attachment; filename="{name}.parquet"')
        read = pd.read_parquet(io.BytesIO(body))
        assert list(read.columns) == list(frame.columns)
        assert len(read) == len(frame)
        rows = list(csv.DictReader(io.StringIO(served.ask(f"/runs/day-1/export/{name}.csv")[1].decode())))
        assert len(rows) == len(frame)
        assert len(data(served, f"/runs/day-1/export/{name}.json")) == len(frame)  # type: ignore[arg-type]
    trials = pd.read_parquet(io.BytesIO(served.ask("/runs/day-1/export/trials.parquet")[1]))
    assert trials["ttft_p50_s"].tolist() == run.trials["ttft_p50_s"].tolist(), "to the last digit"
    for wrong in ("trials.xlsx", "secrets.csv", "trials", ".csv"):
        assert served.ask(f"/runs/day-1/export/{wrong}")[0] == 404


def test_prometheus_reads_the_metrics(served: Served) -> None:
    status, body, headers = served.ask("/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert families.keys() == NAMES.keys()
    states = {tuple(s.labels.values()): s.value for s in families["bakeoff_trials"].samples}
    assert states == {("demo", "live", "VALID"): 3.0, ("demo", "live", "planned"): 3.0}
    (result,) = [
        sample for sample in families["bakeoff_result"].samples
        if sample.labels["engine"] == "reference" and sample.labels["metric"] == "itl_p50_s"
    ]  # fmt: skip
    assert result.labels["run"] == "day-9", "the newest complete run"


@pytest.mark.parametrize("text", TRAVERSALS)
def test_no_path_leads_out_of_the_folder(served: Served, text: str) -> None:
    for path in (
        f"/{text}",
        f"/runs/{text}",
        f"/runs/{text}/report",
        f"/runs/day-1/export/{text}",
        f"/api/runs/{text}",
    ):
        assert served.ask(path)[0] == 404, path
    assert served.ask(f"/compare?a={text}&b={text}")[0] == 404


def test_there_are_sixty_of_them() -> None:
    assert len(set(TRAVERSALS)) >= 60


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example", "127.0.0.2:1", "[::2]"]
)
def test_a_foreign_host_is_turned_away(served: Served, host: str) -> None:
    for path in ("/", "/api/runs", "/metrics", "/runs/day-1/report", "/nothing"):
        assert served.ask(path, Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:99"])
def test_our_own_names_are_let_in(served: Served, host: str) -> None:
    assert served.ask("/api/runs", Host=host)[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1.evil.example", "file://"])
def test_a_foreign_origin_is_turned_away(served: Served, origin: str) -> None:
    for path in ("/", "/api/runs", "/metrics"):
        assert served.ask(path, Origin=origin)[0] == 403
    assert served.ask("/api/runs", Origin=served.address)[0] == 200


CLICK = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document", "Sec_Fetch_User": "?1"}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize(
    "asked",
    [
        {"Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"},
        {"Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "empty", "Sec_Purpose": "prefetch"},
        {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe", "Sec_Fetch_User": "?1"},
        {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"},
        {**CLICK, "Sec_Purpose": "prefetch"},
        {},
    ],
)
def test_what_another_sites_page_asks_for_is_turned_away(served: Served, site: str, asked: dict[str, str]) -> None:
    """An image or a prefetch carries no ``Origin``."""
    for path in ("/", "/metrics", "/runs/day-1/report", "/api/runs/live/live"):
        assert served.ask(path, Sec_Fetch_Site=site, **asked)[0] == 403


@pytest.mark.parametrize("site", ["none", "same-origin"])
def test_what_our_own_pages_and_the_user_ask_for_is_answered(served: Served, site: str) -> None:
    assert served.ask("/api/runs", Sec_Fetch_Site=site, Sec_Fetch_Mode="cors", Sec_Fetch_Dest="empty")[0] == 200
    assert served.ask("/", Sec_Fetch_Site="cross-site", **CLICK)[0] == 200, "a link that was clicked"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(served: Served, method: str) -> None:
    for path in ("/", "/runs/day-1/report", "/api/runs/day-1"):
        assert served.ask(path, method=method)[0] in {404, 405}


def test_every_answer_is_guarded(served: Served) -> None:
    for path in ("/", "/api/runs", "/nothing", "/runs/day-1/export/trials.csv", "/runs/nothing/report"):
        for accept in ("text/html", "*/*"):
            _, _, headers = served.ask(path, Accept=accept)
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["Cache-Control"] == "no-store"
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert ("default-src 'none'" in headers["Content-Security-Policy"]) == (
                "html" not in headers["Content-Type"]
            )


def test_what_is_not_there_is_told_as_a_page_or_a_line(served: Served) -> None:
    status, body, headers = served.ask("/runs/nothing/report", Accept="text/html,*/*")
    assert (status, headers.get_content_type()) == (404, "text/html")
    assert b'<a href="/">All runs</a>' in body
    assert served.ask("/runs/nothing/report")[1] == b"404: there is no such run; see the list\n"


def test_beyond_loopback_only_when_asked_for_and_with_a_token() -> None:
    for host in ("0.0.0.0", "192.168.1.4", "::", "bench.example"):
        with pytest.raises(NotServed, match="can be reached from other machines; add --network"):
            access_policy(host)
        assert len(access_policy(host, network=True).token or "") >= 32
    assert access_policy("0.0.0.0", network=True).token != access_policy("0.0.0.0", network=True).token
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert access_policy(host).token is None
        assert access_policy(host, token="mine").token == "mine", "where other users of this machine may not look"


@pytest.mark.slow
def test_the_token_opens_the_door_and_stays_in_a_cookie(root: Path) -> None:
    access = access_policy("0.0.0.0", network=True, names=("Bench.example",), token="päss word")
    with dashboard(root, access) as served:
        assert served.ask("/")[0] == 401
        assert served.ask("/", Host="bench.example:8321")[0] == 401
        assert served.ask("/", Host="other.example")[0] == 403
        assert served.ask("/?token=wrong")[0] == 401
        assert served.ask("/", Authorization="Bearer wrong")[0] == 401
        assert served.ask("/nothing")[0] == 401
        status, body, headers = served.ask(f"/?q=a+b&token={quote('päss word')}&page=2", Accept="text/html")
        assert (status, body, headers["Location"]) == (303, b"", "/?q=a+b&page=2"), "it stays in no history"
        cookie = headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert "Secure" not in cookie
        assert served.ask("/", Cookie=cookie.split(";")[0])[0] == 200
        token = f"token={quote('päss word')}"
        assert served.ask(f"//evil.example/x?{token}", Accept="text/html")[2]["Location"] == "/evil.example/x"
        _, _, headers = served.ask(f"/?{token}", Accept="text/html", X_Forwarded_Proto="https")
        assert "Secure" in headers["Set-Cookie"], "behind a proxy with TLS"
        status, _, headers = served.ask(f"/api/runs?{token}")
        assert (status, headers["Set-Cookie"]) == (200, None), "a program is answered at once"


@pytest.mark.slow
def test_cells_that_a_spreadsheet_would_run_are_defused(tmp_path: Path) -> None:
    formulas = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\tx", "\rx", "plain", "1=1"]
    for number, text in enumerate(formulas):
        sheet = replace(
            SHEET, engines={text: FAST}, repeats=1, requests=3, run_id=f"run-{number}", texts=Texts(workload=text)
        )
        build_run(tmp_path, sheet)
    with dashboard(tmp_path) as served:
        served.settle()
        for number, text in enumerate(formulas):
            safe = text if text in {"plain", "1=1"} else f"'{text}"
            for table in ("trials", "requests", "summary"):
                body = served.ask(f"/runs/run-{number}/export/{table}.csv")[1].decode()
                (row, *_) = csv.DictReader(io.StringIO(body, newline=""))
                assert (row["engine"], row["workload"]) == (safe, safe)
                cells = [cell for line in csv.reader(io.StringIO(body, newline="")) for cell in line]
                assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "\t", "\r"))]


@pytest.mark.slow
def test_a_run_that_began_since_the_last_scan_is_found_at_once(tmp_path: Path) -> None:
    build_run(tmp_path, SHEET)
    with dashboard(tmp_path, scan_s=3_600) as served:
        served.settle()
        for number, path in enumerate(("/runs/{}/report", "/api/runs/{}", "/runs/{}/live", "/compare?run={}")):
            build_run(tmp_path, replace(SHEET, run_id=f"new-{number}"))
            assert served.ask(path.format(f"new-{number}"))[0] == 200
        assert served.ask("/runs/none/report")[0] == 404


@pytest.mark.slow
def test_a_folder_that_was_deleted_and_made_again_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    build_run(folder, SHEET)
    with dashboard(folder) as served:
        served.settle()
        assert "demo" in page(served, "/")
        shutil.rmtree(folder)
        build_run(folder, replace(SHEET, texts=Texts(name="again")))
        served.settle()
        assert "again" in page(served, "/")
