"""The page in a real browser: no errors, no requests, both themes, and hostile text stays text."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from bakeoff import results
from bakeoff.results.report import write_html
from bakeoff.results.report.sections.waterfalls import slowest_of
from tests.results.browsing import Browser, Page, launched, listen, only_page
from tests.results.builders import FAST, LOADS, SLOW, Sheet, Texts, build_run
from tests.results.hostile import XSS

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


class Watched:
    """A page whose console messages, requests and dialogs are recorded."""

    def __init__(
        self, browser: Browser, path: Path, *, theme: str = "light", width: int = 1280, js: bool = True
    ) -> None:
        self.page = only_page(browser, theme=theme, width=width, js=js)
        self.noise: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        listen(self.page, "console", lambda message: self.noise.append(message.text))
        listen(self.page, "pageerror", lambda error: self.noise.append(str(error)))
        listen(self.page, "request", lambda request: self.requests.append(request.url))
        listen(self.page, "dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        self.page.goto(path.as_uri())

    def is_quiet(self) -> bool:
        fetched = [url for url in self.requests if not url.startswith(("file://", "data:"))]
        return not self.noise and not fetched and not self.dialogs and len(self.requests) <= 2


@pytest.fixture(scope="module")
def report(demo: results.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_html(demo, tmp_path_factory.mktemp("page") / "report.html")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 768, 390])
def test_quiet_offline_and_never_wider_than_the_window(browser: Browser, report: Path, theme: str, width: int) -> None:
    watched = Watched(browser, report, theme=theme, width=width)
    assert watched.is_quiet(), (watched.noise, watched.requests, watched.dialogs)
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
    dark = watched.page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(21, 23, 26)"
    assert dark == (theme == "dark")


CONTRAST = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (c) => rgb(c).map((v) => v / 255).map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = light(getComputedStyle(document.documentElement).backgroundColor);
  const probe = document.body.appendChild(document.createElement("i"));
  return ["--ink", "--soft", "--bad", "--good", "--e0", "--e1", "--e2", "--e3", "--e4", "--e5"].map((name) => {
    probe.style.color = `var(${name})`;
    const c = light(getComputedStyle(probe).color);
    return [name, (Math.max(c, ground) + .05) / (Math.min(c, ground) + .05)];
  });
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_ink_is_readable_on_its_paper(browser: Browser, report: Path, theme: str) -> None:
    """WCAG AA requires 4.5 to 1 for text; names are also written in engine colours."""
    for name, ratio in Watched(browser, report, theme=theme).page.evaluate(CONTRAST):
        assert ratio >= 4.5, name


def test_the_theme_can_be_turned(browser: Browser, report: Path) -> None:
    page = Watched(browser, report).page
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == "dark"
    assert page.inner_text("#theme") == "Light"
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == "light"


def test_print_is_black_on_white_and_shows_every_level(browser: Browser, report: Path) -> None:
    page = Watched(browser, report, theme="dark").page
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".panel:visible").count() == 4 * 4
    assert page.locator("details.trial:visible").count() == 24
    assert page.locator("#views .panel h3:visible").all_inner_texts() == ["c=1", "c=4", "c=8", "poisson 2/s"]
    assert page.locator("#request-view:visible, nav:visible, .switch:visible").count() == 0


def test_levels_and_trials_are_chosen(browser: Browser, report: Path) -> None:
    """A level chosen in one section is chosen in all."""
    watched = Watched(browser, report)
    page = watched.page
    page.evaluate(UNFOLD)
    assert [panel.get_attribute("data-title") for panel in page.locator(".panel:visible").all()] == ["c=8"] * 4
    page.click("#over-time .switch button:has-text('c=1')")
    assert [panel.get_attribute("data-title") for panel in page.locator(".panel:visible").all()] == ["c=1"] * 4
    assert page.locator(".switch button[aria-pressed=true]").all_inner_texts() == ["c=1"] * 4
    assert page.locator("details.trial:visible").count() == 1
    page.select_option("#trial", index=5)
    assert page.get_attribute("details.trial:visible", "id") == "trial5"
    assert watched.is_quiet(), watched.noise


UNFOLD = "document.querySelectorAll('section > details').forEach((one) => { one.open = true; })"


def bar(page: Page, trial: str, nth: int) -> tuple[float, float, int]:
    """The middle of a bar on the screen, and the bar's request."""
    lane, left, right, index, _ = page.evaluate(
        f"JSON.parse(document.getElementById('data').textContent).bars.{trial}[{nth}]"
    )
    chart = page.locator(f"#{trial} svg.timeline")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    top, step = (float(part) for part in (chart.get_attribute("data-lane") or "").split())
    factor = box["width"] / 1100
    return box["x"] + (left + right) / 2 * factor, box["y"] + (top + (lane + 0.5) * step) * factor, index


def test_read_outs_follow_the_pointer(browser: Browser, report: Path) -> None:
    page = Watched(browser, report).page
    page.locator("svg.ecdf:visible").first.hover()
    text = page.locator(".charts:visible .readout").first.inner_text()
    assert text.startswith("at or below ")
    assert "reference" in text
    x, y, index = bar(page, "trial2", 6)
    page.mouse.move(x, y)
    readout = page.locator("details.trial:visible .readout").inner_text()
    assert readout.startswith(f"request {index}: ok, first token ")


def test_a_request_is_shown_chunk_by_chunk(browser: Browser, report: Path, demo: results.Run) -> None:
    """The arrivals in its table equal those of the log."""
    watched = Watched(browser, report)
    page = watched.page
    trial = demo.finished[2]
    assert page.locator("#request option").count() == len(trial.requests)
    assert page.input_value("#request") == str(slowest_of(trial)[0].index), "the slowest is shown first"
    page.select_option("#request", value="7")
    (request,) = [request for request in trial.requests if request.index == 7]
    rows = [row.split("\t") for row in page.locator("[data-part=table] tr").all_inner_texts()]
    expected = [(t - request.planned_ns) / 1e6 for t in request.chunk_ns]
    assert [float(row[1]) for row in rows] == pytest.approx(expected, abs=0.0051)
    assert [int(row[3]) for row in rows] == request.chunk_tokens
    assert int(rows[-1][4]) == request.total_chunk_tokens
    assert page.inner_text("[data-part=said]") == "The ship sails at dawn."
    assert "session s7: ok, 107 prompt tokens, sent " in page.inner_text("[data-part=words]")
    assert page.locator("[data-part=drawing] svg").get_attribute("aria-label") == (
        f"Request 7, ok: {len(request.chunk_ns)} chunks; the table below has each."
    )
    assert page.locator("#trial2 svg.timeline .chosen").count() == 1
    assert watched.is_quiet(), watched.noise


def test_a_bar_chooses_its_request_and_another_trial_its_own(browser: Browser, report: Path) -> None:
    page = Watched(browser, report).page
    x, y, index = bar(page, "trial2", 9)
    page.mouse.click(x, y)
    assert page.input_value("#request") == str(index)
    page.select_option("#trial", index=6)
    assert page.locator("#request option").count() == 26
    failed = page.locator("#request option", has_text="no token").first.get_attribute("value")
    page.select_option("#request", value=failed)
    assert page.inner_text("[data-part=error]") == "HTTP 503: server busy"
    assert page.locator("[data-part=chunks]").is_hidden()


def test_the_keyboard_reaches_every_control(browser: Browser, report: Path) -> None:
    page = Watched(browser, report).page
    page.focus("#trial")
    page.keyboard.press("ArrowDown")
    assert page.get_attribute("details.trial:visible", "id") == "trial3"
    page.keyboard.press("Tab")
    seen: set[str] = set()
    for _ in range(6):
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
        page.keyboard.press("Tab")
    assert {"request", "wide", "chunks"} <= seen
    page.focus("#request")
    page.keyboard.press("Home")
    before = page.inner_text("[data-part=words]")
    page.keyboard.press("ArrowDown")
    assert page.inner_text("[data-part=words]") != before
    page.focus("#over-time .switch button")
    page.keyboard.press("Enter")
    assert page.get_attribute("#distributions .panel:visible", "data-title") == "c=1"


def test_a_link_opens_the_folded_section_that_it_leads_to(browser: Browser, report: Path) -> None:
    page = Watched(browser, report).page
    page.click(".contents a[href='#definitions']")
    page.wait_for_selector("#definitions", state="visible")
    assert page.locator(".contents").bounding_box() is not None, "the contents stay where they can be seen"
    assert page.evaluate("document.querySelector('.contents').getBoundingClientRect().top") >= 0
    assert page.evaluate("scrollY") > 0


def test_the_page_of_two_engines_at_two_levels_is_at_most_fifteen_screens_long(
    browser: Browser, tmp_path: Path
) -> None:
    sheet = Sheet(engines={"a": FAST, "b": SLOW}, loads=LOADS[:2])
    page = Watched(browser, write_html(results.load(build_run(tmp_path, sheet))), width=1200).page
    assert page.evaluate("document.documentElement.scrollHeight") <= 15 * 1000


def test_a_figure_leads_to_its_definition(browser: Browser, report: Path) -> None:
    page = Watched(browser, report).page
    page.focus("#summary td[data-label='ITL p50, ms'] a")
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector(':target').id") == "metric-itl"
    page.click("#metric-itl a")
    assert page.evaluate("document.querySelector(':target').id") == "basis-itl"
    page.evaluate(UNFOLD)
    page.locator("#views .panel:visible .tools a[href^='#view-vllm']").first.click()
    assert page.locator("#views details").get_attribute("open") is not None, "what is linked to opens"


def test_complete_without_javascript(browser: Browser, report: Path) -> None:
    page = Watched(browser, report, js=False).page
    page.evaluate(UNFOLD)
    assert page.locator(".panel:visible").count() == 4 * 4
    assert page.locator("details.trial:visible").count() == 24
    assert not page.is_visible("#theme")
    assert not page.is_visible("#request-view")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.locator("details.trial svg.waterfall:visible").count() == 24


@pytest.mark.parametrize("hostile", ["engine", "texts"])
def test_hostile_texts_do_not_run(browser: Browser, tmp_path: Path, hostile: str) -> None:
    joined = " ".join(XSS)
    engines = {f"a {joined}" if hostile == "engine" else "a": FAST, "b": SLOW}
    texts = Texts(**{field.name: joined for field in fields(Texts)}) if hostile == "texts" else Texts()
    sheet = Sheet(engines=engines, repeats=2, requests=12, invalid=(0,), texts=texts)
    watched = Watched(browser, write_html(results.load(build_run(tmp_path, sheet))))
    page = watched.page
    page.mouse.move(200, 300)
    for request in ("2", "12"):  # one that ended ok, one that failed
        page.select_option("#trial", label=page.locator("#trial option").nth(4).inner_text())
        page.select_option("#request", value=request)
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # two frames drawn
    assert watched.is_quiet(), (watched.noise, watched.requests, watched.dialogs)
    assert page.locator("script").count() == 2
    assert page.locator("iframe, img, form, object, embed, a:not([href^='#'])").count() == 0
    assert "<script" not in page.evaluate("document.getElementById('data').textContent").replace("\\u003c", "")
