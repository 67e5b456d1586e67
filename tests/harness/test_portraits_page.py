"""The page and the screen of a drawn workload: complete, offline, quiet, and hostile text stays text."""

import base64
import hashlib
import io
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console

from harness.portraits import Subject, print_portrait, render_page, write_page
from results.errors import NotWritable
from tests.harness.portrait_scenes import Scripted, dialogues, singles, subject
from tests.results.hostile import XSS
from workloads.presets import Anchor

ANCHORS = (
    Anchor("input_p50", 1, 9999, "somebody's trace"),
    Anchor("output_p50", 1, 2, "somebody else's"),
    Anchor("day_swing", 3, 5, "nobody's"),
)


class Outline(HTMLParser):
    """Every element with its attributes, and the visible text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._hidden = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._hidden = tag in {"script", "style"}

    def handle_endtag(self, tag: str) -> None:
        self._hidden = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._hidden else data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def shown() -> Subject:
    return subject(dialogues(300), anchors=ANCHORS, given=("scale=1",), tokenizer="/models/tiny")


@pytest.fixture(scope="module")
def page(shown: Subject) -> str:
    return render_page(shown)


def printed(shown: Subject, width: int = 100) -> str:
    out = io.StringIO()
    print_portrait(shown, Console(width=width, force_terminal=width != 100, color_system=None, file=out))
    return out.getvalue()


class TestPage:
    def test_sections_stand_in_their_order(self, page: str) -> None:
        sections = [one["id"] for one in Outline(page).of("section")]
        assert sections == ["arrivals", "lengths", "sessions", "prefixes", "anchors", "reproduce"]

    def test_all_at_once_and_single_requests_leave_out_what_there_is_not(self) -> None:
        outline = Outline(render_page(subject(singles(60, 0.0))))
        assert [one["id"] for one in outline.of("section")] == ["arrivals", "lengths", "prefixes", "reproduce"]
        assert "– all sessions wait when the load begins" in outline.text
        assert "– no prompt begins as an earlier one does" in outline.text
        assert {one["class"] for one in outline.of("svg")} == {"chart columns e0"}

    def test_anchors_say_their_mark_in_words(self, page: str) -> None:
        rows = re.findall(r'<td class="(met|missed|not-judged)">(.*?)</td>', page)
        assert rows == [("met", "✓ met"), ("missed", "✗ missed"), ("not-judged", "– not judged")]

    def test_only_its_own_style_and_script_may_run_and_nothing_is_fetched(self, page: str) -> None:
        outline = Outline(page)
        (policy,) = [one["content"] for one in outline.of("meta") if one.get("http-equiv")]
        rules = dict(rule.strip().split(" ", 1) for rule in (policy or "").split(";"))
        for element, directive in (("style", "style-src"), ("script", "script-src")):
            (text,) = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
            assert rules[directive] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        assert rules["default-src"] == "'none'"
        for tag, attributes in outline.elements:
            assert "style" not in attributes, tag
            assert "src" not in attributes, tag
            assert attributes.get("href", "data:,") == "data:,"

    def test_charts_have_words_for_those_who_do_not_see_them(self, page: str) -> None:
        charts = Outline(page).of("svg")
        assert len(charts) == 5
        assert all(one["role"] == "img" and len(one["aria-label"] or "") > 20 for one in charts)

    def test_the_command_draws_the_same_again(self, page: str) -> None:
        wanted = "bakeoff workloads show scripted --option scale=1 --seed 1 --sessions 2000 --tokenizer /models/tiny"
        assert wanted in Outline(page).text

    def test_it_appears_whole_or_not_at_all(self, shown: Subject, page: str, tmp_path: Path) -> None:
        write_page(shown, tmp_path / "page.html")
        assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
        assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
        with pytest.raises(NotWritable):
            write_page(shown, tmp_path / "missing" / "page.html")

    def test_hostile_texts_are_only_text(self) -> None:
        joined = " ".join(XSS)
        hostile = Scripted(dialogues(5).script, {joined: 1.0}, joined)
        anchors = (Anchor(joined, 0, 1, joined),)
        html = render_page(subject(hostile, joined, anchors=anchors, given=(joined,), tokenizer=joined))
        outline = Outline(html)
        assert {tag for tag, _ in outline.elements} & {"iframe", "img", "math", "a", "b", "form", "object"} == set()
        assert len(outline.of("script")) == 1
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202e]", html)


class TestScreen:
    def test_everything_fits_into_a_pipe(self, shown: Subject) -> None:
        text = printed(shown)
        assert max(map(len, text.splitlines())) <= 100
        for words in ("Arrivals", "Lengths", "Sessions", "Prefix cache", "Anchors  1 of 3 met", "✓", "✗"):
            assert words in text
        assert "…" not in text

    @pytest.mark.parametrize("width", [80, 90, 120, 240])
    def test_and_into_any_terminal(self, shown: Subject, width: int) -> None:
        text = printed(shown, width)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text

    @pytest.mark.parametrize("tokens", [1, 12_345, 1_234_567])
    def test_no_length_is_cut_off(self, tokens: int) -> None:
        text = printed(subject(singles(40, input_tokens=tokens, output_tokens=tokens)))
        assert "…" not in text
        row = next(line for line in text.splitlines() if line.startswith("answer ")).split()
        assert row[1:] == ([f"{tokens:,}"] * 12 if tokens < 10**6 else ["1.2M"] * 12)

    def test_columns_show_when_sessions_come(self) -> None:
        """A silence in the middle third of the time is a hole in the middle third of the plot."""
        starts = [i * 0.1 for i in range(1000)] + [200 + i * 0.1 for i in range(1000)]
        script = tuple((start_s, ((0.0, 100, 10),)) for start_s in starts)
        base = next(line for line in printed(subject(Scripted(script))).splitlines() if "│█" in line).partition("│")[2]
        plot = base[:48]
        assert plot[:15] == "█" * 15
        assert plot[17:31] == " " * 14
        assert plot[33:47] == "█" * 14

    def test_hostile_texts_move_no_cursor(self) -> None:
        name = "a\x1b[2Jb[bold]c\u202e"
        anchors = (Anchor("[red]metric", 0, 1, "[blink]source"),)
        text = printed(subject(Scripted(singles(20).script, {"x\x1b[1A[bold]": 1.0}, name), name, anchors=anchors))
        for words in ("a [2Jb[bold]c", "x [1A[bold]", "[red]metric", "[blink]source"):
            assert words in text
        assert "\x1b" not in text


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not Path("/usr/bin/chromium").exists():
        pytest.fail("/usr/bin/chromium is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 420])
def test_quiet_offline_and_never_wider_than_the_window(
    browser: Browser, shown: Subject, tmp_path: Path, theme: str, width: int
) -> None:
    write_page(shown, tmp_path / "page.html")
    context = browser.new_context(viewport={"width": width, "height": 900})
    page, noise, fetched = context.new_page(), list[str](), list[str]()
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("request", lambda request: fetched.append(request.url))
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    page.goto((tmp_path / "page.html").as_uri())
    assert noise == []
    assert [url for url in fetched if not url.startswith(("file://", "data:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(21, 23, 26)"
    assert dark == (theme == "dark")
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == ("light" if theme == "dark" else "dark")
    context.close()
