"""The dashboard in a real browser: every page in both themes, no errors; hostile text stays text."""

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import pytest

from bakeoff.results.log.run_log import Source, TrialFinished
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import RunStatus, TelemetryRecord
from tests.results.amending import amend, append, begin_trial
from tests.results.browsing import Browser, launched, listen, only_page
from tests.results.builders import FAST, LOADS, SLOW, Sheet, Texts, build_run
from tests.results.dashboards import Served, dashboard
from tests.results.hostile import XSS
from tests.selection import sampled

pytestmark = pytest.mark.browser
SHEET = Sheet(engines={"reference": FAST, "transformers": SLOW}, loads=LOADS[:1], requests=6, invalid=(1,), regret=None)
PAGES = (
    "/", "/?q=reference&engine=reference&page=1", "/history", "/history?metric=itl_p50_s",
    "/compare?run=day-9&run=day-1", "/compare?run=day-1", "/compare?a=day-1&b=day-2&primary=x",
    "/runs/live/live", "/runs/live/report", "/runs/day-1/report",
)  # fmt: skip

WIDTHS = (390, 768, 1400)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


def runs_in(root: Path, texts: Texts, engine: str, *, days: int = 9, branch: str = "main") -> None:
    """Runs a day apart, slower from the sixth on, and one still running."""
    for day in range(1, days + 1):
        slower = 1.5 if day >= 6 else 1.0
        speed = replace(FAST, ttft_s=FAST.ttft_s * slower, itl_s=FAST.itl_s * slower)
        sheet = replace(
            SHEET, engines={engine: speed, "transformers": SLOW}, run_id=f"day-{day}", seed=day, texts=texts
        )
        folder = RunFolder(build_run(root, sheet))
        source = Source(f"{day:09x}{branch}", branch)
        experiment = {"name": texts.name, "model": {"name": branch, "path": f"/models/{branch}"}}
        created = f"2026-11-0{day}T10:00:00+00:00"
        amend(folder.path, created_utc=created, source=source, experiment=experiment)
    live = replace(
        SHEET, engines={engine: FAST, "b": SLOW}, run_id="live", status=RunStatus.RUNNING, finished=3, texts=texts
    )
    folder = RunFolder(build_run(root, live))
    trial = folder.trial(folder.read_manifest().trials[3].id)
    trial.create()
    begin_trial(folder, trial.path.name)
    readings = {"rss_bytes": 805.7 * 2**20, "cpu_share": 0.625, "power_w": 412.5, "processes": 1200, "cpu_s": None}
    sample = TelemetryRecord(1, engine, {**readings, texts.error: texts.error})
    trial.telemetry_log.write_bytes(msgspec.json.encode(sample) + b"\n")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("runs")
    runs_in(root, Texts(), "reference")
    with dashboard(root) as served:
        served.settle()
        yield served


class Watched:
    """A page whose console messages, requests and dialogs are recorded."""

    def __init__(self, browser: Browser, served: Served, path: str, theme: str = "light", width: int = 1280) -> None:
        self.page = only_page(browser, theme=theme, width=width)
        self.noise: list[str] = []
        self._own = served.address
        listen(self.page, "console", lambda message: self.noise.append(message.text))
        listen(self.page, "pageerror", lambda error: self.noise.append(str(error)))
        listen(self.page, "dialog", lambda dialog: (self.noise.append(dialog.message), dialog.dismiss()))
        listen(self.page, "request", lambda request: self._asked(request.url))
        self.page.goto(served.address + path)

    def _asked(self, url: str) -> None:
        if not url.startswith((self._own + "/", "data:")):
            self.noise.append(f"asked for {url}")


@pytest.mark.parametrize("theme", sampled(["light", "dark"], ["light"]))
@pytest.mark.parametrize("path", PAGES)
def test_quiet_and_never_wider_than_the_window(browser: Browser, served: Served, path: str, theme: str) -> None:
    watched = Watched(browser, served, path, theme)
    for width in WIDTHS:
        watched.page.set_viewport_size({"width": width, "height": 900})
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
    assert watched.page.locator("a.skip[href='#content'] ~ main#content").count() == 1
    assert watched.noise == []
    assert watched.page.locator("h1").count() == 1


@pytest.mark.parametrize(
    ("path", "cells"), [("/compare?run=day-9&run=day-1", ".word, .why"), ("/", ".sentence, .validity")]
)
def test_judgements_and_results_are_seen_on_a_phone_without_scrolling(
    browser: Browser, served: Served, path: str, cells: str
) -> None:
    page = Watched(browser, served, path, width=WIDTHS[0]).page
    boxes = page.locator(f"tbody td:is({cells})").evaluate_all("cells => cells.map(c => c.getBoundingClientRect())")
    assert boxes
    assert all(box["left"] >= 0 and box["right"] <= WIDTHS[0] for box in boxes)
    assert page.evaluate("document.querySelector('.wide').scrollWidth") <= WIDTHS[0]


def test_two_runs_are_chosen_and_a_third_lets_go_of_the_first(browser: Browser, served: Served) -> None:
    page = Watched(browser, served, "/").page
    button = page.get_by_role("button", name="Compare two")
    assert button.is_disabled()
    for run in ("day-1", "day-2", "day-3"):
        page.get_by_label(f"compare {run}", exact=True).check()
    assert page.locator("input:checked").evaluate_all("boxes => boxes.map(b => b.value).sort()") == ["day-2", "day-3"]
    button.click()
    assert page.input_value("select[name=a]") == "day-2@reference"
    assert page.input_value("select[name=b]") == "day-3@reference"


def test_filters_work_by_keyboard_and_stay_in_the_address(browser: Browser, served: Served) -> None:
    page = Watched(browser, served, "/").page
    page.get_by_label("Search").focus()
    page.keyboard.type("000000003main")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=000000003main**")
    assert page.locator("tbody tr").count() == 1
    page.get_by_role("link", name="demo").click()
    assert page.url.endswith("/runs/day-3/report")
    page.get_by_role("link", name="Runs").click()
    assert page.url == served.address + "/"


def test_the_live_view_follows_the_run(browser: Browser, tmp_path: Path) -> None:
    runs_in(tmp_path, Texts(), "reference", days=0)
    with dashboard(tmp_path) as served:
        page = Watched(browser, served, "/runs/live/live").page
        assert page.inner_text("#progress") == "3 of 6 trials ended"
        sensors = [row.split("\t")[1:] for row in page.inner_text("#sensors").splitlines()]
        assert ["rss_bytes", "805.7 MiB"] in sensors
        assert ["cpu_share", "62.5 %"] in sensors
        assert ["power_w", "412.5 W"] in sensors
        assert ["processes", "1,200"] in sensors
        assert ["cpu_s", "–"] in sensors
        folder = RunFolder(tmp_path / "live")
        plans = folder.read_manifest().trials
        record = folder.read_log().finished[plans[0].id]
        append(folder, TrialFinished(record=msgspec.structs.replace(record, id=plans[3].id)))
        page.get_by_text("4 of 6 trials ended").wait_for()
        amend(folder.path, status=RunStatus.COMPLETE)
        page.locator("#status", has_text="complete").wait_for()
        assert page.is_hidden("#now")


def test_hostile_texts_do_not_run_on_any_page(browser: Browser, tmp_path: Path) -> None:
    joined = " ".join(XSS)
    texts = Texts(**{field.name: joined for field in fields(Texts)})
    runs_in(tmp_path, texts, joined, branch=joined)
    hostile = "'\"><img src=x onerror=alert(99)>"
    (tmp_path / "day-2").rename(tmp_path / hostile)
    with dashboard(tmp_path) as served:
        served.settle()
        for path in (*PAGES, "/?status=running", "/compare?a=%3Cscript%3Ealert(1)%3C/script%3E&b=day-1"):
            watched = Watched(browser, served, path)
            page = watched.page
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # two frames
            assert [line for line in watched.noise if "404" not in line] == [], path
            assert page.locator("iframe, img, object, embed, base, svg script, meta[http-equiv=refresh]").count() == 0
            assert page.locator("script:not([type]), script[type='application/json']").count() <= 2
            targets = page.evaluate("[...document.querySelectorAll('a[href],form')].map(e => e.href ?? e.action)")
            assert all(target.startswith(served.address) for target in targets), targets


def test_there_are_forty_of_them() -> None:
    assert len(set(XSS)) >= 40
