"""A workload profile in the terminal and as a page: complete, offline, no console noise, safe with hostile text."""

import base64
import hashlib
import io
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from bakeoff.harness.traffic.profile import ShownProfile, print_profile, render_page, write_page
from bakeoff.harness.traffic.profile.figures import arrival_lines, prefix_lines, session_lines
from bakeoff.results.errors import NotWritable
from bakeoff.workloads.presets import Anchor
from tests.harness.profile_scenes import Scripted, dialogues, shown_profile, singles
from tests.results.browsing import Browser, launched, listen, only_page
from tests.results.hostile import XSS

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
def profile() -> ShownProfile:
    return shown_profile(dialogues(300), anchors=ANCHORS, option_texts=("scale=1",), tokenizer="/models/tiny")


@pytest.fixture(scope="module")
def page(profile: ShownProfile) -> str:
    return render_page(profile)


def printed(profile: ShownProfile, width: int = 100) -> str:
    out = io.StringIO()
    print_profile(profile, Console(width=width, force_terminal=width != 100, color_system=None, file=out))
    return out.getvalue()


class TestPage:
    def test_sections_stand_in_their_order(self, page: str) -> None:
        sections = [section["id"] for section in Outline(page).of("section")]
        assert sections == ["arrivals", "lengths", "sessions", "prefixes", "anchors", "reproduce"]

    def test_all_at_once_and_single_requests_leave_out_what_there_is_not(self) -> None:
        outline = Outline(render_page(shown_profile(singles(60, 0.0))))
        assert [section["id"] for section in outline.of("section")] == ["arrivals", "lengths", "prefixes", "reproduce"]
        assert "– all sessions are waiting when the load begins" in outline.text
        assert "– No two prompts share a prefix" in outline.text
        assert {svg["class"] for svg in outline.of("svg")} == {"chart columns e0"}

    def test_anchors_say_their_mark_in_words(self, page: str) -> None:
        rows = re.findall(r'<td class="(met|missed|not-checked)">(.*?)</td>', page)
        assert rows == [("met", "✓ met"), ("missed", "✗ missed"), ("not-checked", "– not checked")]

    def test_only_its_own_style_and_script_may_run_and_nothing_is_fetched(self, page: str) -> None:
        outline = Outline(page)
        (policy,) = [meta["content"] for meta in outline.of("meta") if meta.get("http-equiv")]
        rules = dict(rule.strip().split(" ", 1) for rule in (policy or "").split(";"))
        for element, directive in (("style", "style-src"), ("script", "script-src")):
            (text,) = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
            assert rules[directive] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        assert rules["default-src"] == "'none'"
        for tag, attributes in outline.elements:
            assert "style" not in attributes, tag
            assert "src" not in attributes, tag
            assert attributes.get("href", "data:,") in {"data:,", "#content"}

    def test_charts_have_words_for_those_who_do_not_see_them(self, page: str) -> None:
        charts = Outline(page).of("svg")
        assert len(charts) == 5
        assert all(chart["role"] == "img" and len(chart["aria-label"] or "") > 20 for chart in charts)

    def test_the_command_draws_the_same_again(self, page: str) -> None:
        wanted = "bakeoff workloads show scripted --option scale=1 --seed 1 --sessions 2000 --tokenizer /models/tiny"
        assert wanted in Outline(page).text

    def test_it_appears_whole_or_not_at_all(self, profile: ShownProfile, page: str, tmp_path: Path) -> None:
        write_page(profile, tmp_path / "page.html")
        assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
        assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
        with pytest.raises(NotWritable):
            write_page(profile, tmp_path / "missing" / "page.html")

    def test_hostile_texts_are_only_text(self) -> None:
        joined = " ".join(XSS)
        hostile = Scripted(dialogues(5).script, {joined: 1.0}, joined)
        anchors = (Anchor(joined, 0, 1, joined),)
        html = render_page(shown_profile(hostile, joined, anchors=anchors, option_texts=(joined,), tokenizer=joined))
        outline = Outline(html)
        assert {tag for tag, _ in outline.elements} & {"iframe", "img", "math", "b", "form", "object"} == set()
        assert [link["href"] for link in outline.of("a")] == ["#content"]
        assert len(outline.of("script")) == 1
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202e]", html)


class TestTerminal:
    def test_everything_fits_into_a_pipe(self, profile: ShownProfile) -> None:
        text = printed(profile)
        assert max(map(len, text.splitlines())) <= 100
        assert "…" not in text
        for title in ("Arrivals", "Sessions", "Prefix cache", "Anchors"):
            assert f"\n{title}\n" in text

    @pytest.mark.parametrize("width", [80, 90, 120, 240])
    def test_and_into_any_terminal(self, profile: ShownProfile, width: int) -> None:
        text = printed(profile, width)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text

    def test_every_quantity_has_its_count_mean_and_quantiles(self, profile: ShownProfile) -> None:
        """300 sessions of 2 or 3 requests with prompts of 100, 200 and 400 tokens, pauses of 2 and 6 s."""
        rows = [re.split(r"\s{2,}", line.strip()) for line in printed(profile).splitlines()]
        assert ["quantity", "count", "mean", "p50", "p90", "p99", "max"] in rows
        assert ["prompt tokens", "750", "200", "200", "400", "400", "400"] in rows
        assert ["answer tokens", "750", "20", "20", "20", "20", "20"] in rows
        assert ["requests per session", "300", "2.5", "2.5", "3", "3", "3"] in rows
        assert ["pause", "450", "3.33 s", "2.00 s", "6.00 s", "6.00 s", "6.00 s"] in rows

    def test_every_figure_of_the_page_is_printed(self, profile: ShownProfile) -> None:
        text = printed(profile)
        for line in (*arrival_lines(profile), *session_lines(profile), *prefix_lines(profile)):
            assert re.search(rf"^{re.escape(line.title)} +{re.escape(line.text)}", text, re.MULTILINE)

    def test_anchors_that_are_not_met_are_listed(self, profile: ShownProfile) -> None:
        text = printed(profile)
        assert "1 of 3 met" in text
        assert re.search(r"^output_p50 +20  missed; expected 1 – 2 \(somebody else's\)", text, re.MULTILINE)
        assert re.search(r"^day_swing +–  not in the sample; expected 3 – 5", text, re.MULTILINE)
        assert "input_p50" not in text

    def test_long_lengths_are_not_cut_off(self) -> None:
        text = printed(shown_profile(singles(40, input_tokens=1_234_567, output_tokens=1_234_567)), 80)
        assert "…" not in text
        assert re.search(r"^answer tokens +40( +1,234,567){5}$", text, re.MULTILINE)

    def test_hostile_text_cannot_move_the_cursor(self) -> None:
        name = "a\x1b[2Jb[bold]c\u202e"
        anchors = (Anchor("[red]metric", 0, 1, "[blink]source"),)
        workload = Scripted(singles(20).script, {"x\x1b[1A[bold]": 1.0}, name)
        text = printed(shown_profile(workload, name, anchors=anchors))
        for fragment in ("a [2Jb[bold]c", "x [1A[bold]", "[red]metric", "[blink]source"):
            assert fragment in text
        assert "\x1b" not in text


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 420])
def test_quiet_offline_and_never_wider_than_the_window(
    browser: Browser, profile: ShownProfile, tmp_path: Path, theme: str, width: int
) -> None:
    write_page(profile, tmp_path / "page.html")
    page, noise, fetched = only_page(browser, theme=theme, width=width), list[str](), list[str]()
    listen(page, "console", lambda message: noise.append(message.text))
    listen(page, "pageerror", lambda error: noise.append(str(error)))
    listen(page, "request", lambda request: fetched.append(request.url))
    page.goto((tmp_path / "page.html").as_uri())
    assert noise == []
    assert [url for url in fetched if not url.startswith(("file://", "data:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(21, 23, 26)"
    assert dark == (theme == "dark")
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == ("light" if theme == "dark" else "dark")
