"""The page: complete, one file, safe and small; checked without a browser."""

import base64
import hashlib
import json
import re
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bakeoff import results
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import RunStatus
from bakeoff.results.report import render_html, write_html
from bakeoff.results.text.findings import sentence
from bakeoff.results.text.format import error_text
from tests.results.builders import FAST, LOADS, SLOW, Sheet, Texts, build_run
from tests.results.hostile import XSS


class Outline(HTMLParser):
    """Every element with its attributes, and the visible text without the contents."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style", "nav"} & set(self._open):
            self.text += data


@pytest.fixture(scope="module")
def page(demo: results.Run) -> str:
    return render_html(demo)


@pytest.fixture(scope="module")
def outline(page: str) -> Outline:
    return Outline(page)


def island(page: str) -> str:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    return match[1]


@pytest.mark.slow
def test_sections_stand_in_their_order(outline: Outline) -> None:
    ids = [attrs.get("id") for tag, attrs in outline.elements if attrs.get("class") == "body"]
    assert ids == [
        "summary", "engines", "frontier", "distributions", "over-time", "dependence", "attribution", "views", "answers",
        "timelines", "trials", "failures", "instrument", "environment", "definitions", "configuration", "reproduce",
    ]  # fmt: skip


def test_every_engine_at_every_load_with_its_trials(demo: results.Run, page: str, outline: Outline) -> None:
    for cell in demo.cells:
        assert outline.text.count(cell.engine) >= 8
        assert cell.load in outline.text
    assert page.count('class="chart strip') == 8 * 6
    assert page.count('class="chart ecdf"') == 4 * 4
    assert page.count('class="chart timeline"') == 24
    assert page.count('class="chart heat ') == 8 * 2
    assert page.count('class="chart scatter"') == 4 + 2
    assert page.count('class="chart frontier"') == 2  # token match against memory is also a chart


def test_summary_numbers_are_the_cells_numbers(demo: results.Run, outline: Outline) -> None:
    from bakeoff.results.text.format import interval_parts  # noqa: PLC0415

    for cell in demo.cells:
        for name in ("ttft_p50_s", "output_tokens_per_s", "peak_host_bytes"):
            for part in interval_parts(CATALOGUE[name], cell.intervals[name]):
                assert part in outline.text


def test_absent_values_stand_with_their_reason(outline: Outline) -> None:
    assert "– p99 needs 662 observations, there are 24" in outline.text
    assert "– the engine did not report its prompt tokens" in outline.text
    assert "– no GPU was sampled" in outline.text


def test_invalid_trials_and_failures_are_shown(demo: results.Run, outline: Outline) -> None:
    voided = {sentence(finding) for trial in demo.finished for finding in trial.record.invalidating}
    warned = {f"warning: {sentence(finding)}" for trial in demo.finished for finding in trial.record.warnings}
    assert (len(voided), len(warned)) == (1, 1)
    assert all(text in outline.text for text in voided | warned)
    assert "HTTP 503: server busy" in outline.text


def test_every_metric_is_defined(outline: Outline) -> None:
    definitions = outline.text[outline.text.index("Definitions") :]
    for name in CATALOGUE:
        assert name in definitions


def test_policy_lets_only_this_style_and_script_run(page: str, outline: Outline) -> None:
    policy = next(a["content"] for t, a in outline.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for element, directive in (("style", "style-src"), ("script", "script-src")):
        (text,) = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(directive) == f"'sha256-{digest}'"
    assert rules == {
        "default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "connect-src": "'none'",
        "form-action": "'none'",
    }  # fmt: skip


def test_nothing_is_fetched_and_nothing_is_inline(page: str, outline: Outline) -> None:
    for tag, attributes in outline.elements:
        assert "style" not in attributes, tag
        assert not any(name.startswith("on") for name in attributes), tag
        assert (attributes.get("href") or "").startswith(("#", "data:,")) or "href" not in attributes
        assert "src" not in attributes
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|innerHTML|insertAdjacentHTML|eval\(", page)


def test_the_island_is_json_without_markup(demo: results.Run, page: str) -> None:
    raw = island(page)
    assert not set("<>&\u2028\u2029") & set(raw)
    data = json.loads(raw)
    assert len(data["bars"]) == 24
    assert data["cells"][0]["intervals"]["ttft_p50_s"]["centre"] == demo.cells[0].intervals["ttft_p50_s"].centre


def test_charts_have_words_for_those_who_do_not_see_them(outline: Outline) -> None:
    charts = [attrs for tag, attrs in outline.elements if tag == "svg"]
    assert all(attrs["role"] == "img" and len(attrs["aria-label"] or "") > 20 for attrs in charts)
    assert sum(tag == "desc" for tag, _ in outline.elements) == len(charts)


def test_the_page_without_its_data_is_small(page: str) -> None:
    """Without the data island and the charts only words, tables, style and script remain."""
    bare = re.sub(r'<script type="application/json".*?</script>|<svg.*?</svg>', "", page, flags=re.DOTALL)
    assert len(bare.encode()) < 400_000
    assert len(page.encode()) < 900_000


@pytest.mark.slow
def test_the_report_of_a_big_run_stays_small(tmp_path: Path) -> None:
    """24 trials × 60 requests × 48 tokens exceed the budgets: longer answers add nothing to charts or script.

    One byte for each additional chunk would be a tenth of the page.
    """
    run, longer = (
        results.load(build_run(tmp_path / str(tokens), Sheet(requests=60, tokens=tokens, repeats=3)))
        for tokens in (48, 120)
    )
    size, longer_size = (len(render_html(loaded_run).encode()) for loaded_run in (run, longer))
    assert max(size, longer_size) < 1_250_000
    assert longer_size < 1.04 * size


def test_writing_goes_to_the_run_by_default(tmp_path: Path, one_trial: results.Run) -> None:
    path = write_html(one_trial)
    assert path == one_trial.path / "report.html"
    assert path.read_text() == render_html(one_trial)
    assert write_html(one_trial, tmp_path / "other.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("status", [RunStatus.RUNNING, RunStatus.INTERRUPTED, RunStatus.FAILED])
@pytest.mark.parametrize("finished", [0, 1, 7])
def test_a_cut_off_run_has_a_banner_and_no_verdict(tmp_path: Path, status: RunStatus, finished: int) -> None:
    run = results.load(build_run(tmp_path, Sheet(status=status, finished=finished)))
    text = Outline(render_html(run)).text
    assert f"INCOMPLETE ({status.value})" in text
    assert "No verdict" in text
    assert text.count("never ended") == 24 - finished
    assert "INCOMPLETE (incomplete)" not in text
    assert ("– (not recorded)" in text) is (status is RunStatus.RUNNING)


def test_a_trial_without_telemetry_is_drawn_as_far_as_it_goes(tmp_path: Path) -> None:
    path = build_run(tmp_path, Sheet(engines={"only": FAST}, loads=LOADS[:1], repeats=2, requests=4, invalid=()))
    first, _ = sorted((path / "trials").iterdir())
    (first / "telemetry.jsonl").unlink()
    text = Outline(render_html(results.load(path))).text
    assert "– nothing was sampled, so memory and processors are not shown" in text


@pytest.mark.slow
def test_more_engines_than_colours_and_two_workloads(tmp_path: Path) -> None:
    engines = {f"engine-{i}": (FAST if i % 2 else SLOW) for i in range(7)}
    page = render_html(results.load(build_run(tmp_path, Sheet(engines=engines, loads=LOADS[:2], requests=4))))
    assert 'class="engine e0 again"' in page


@pytest.mark.slow
def test_hostile_texts_are_only_text(tmp_path: Path) -> None:
    joined = " ".join(XSS)
    texts = Texts(*[joined] * len(fields(Texts)))
    engines = {f"x{XSS[1]}": FAST, f"y{XSS[2]}": SLOW}
    page = render_html(results.load(build_run(tmp_path, Sheet(engines=engines, requests=12, texts=texts))))
    outline = Outline(page)
    assert {tag for tag, _ in outline.elements} & {
        "iframe",
        "img",
        "math",
        "b",
        "form",
        "object",
        "embed",
    } == set()
    assert sum(tag == "script" for tag, _ in outline.elements) == 2
    links = [attributes["href"] or "" for tag, attributes in outline.elements if tag == "a"]
    assert all(re.fullmatch(r"#[a-z0-9_-]+", link) for link in links)
    assert "<script" not in island(page)
    assert "{{ 7*7 }}" in outline.text
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202e]", page)


def test_the_clients_error_is_named_in_words(demo: results.Run, outline: Outline) -> None:
    instrument = outline.text[outline.text.index("Client error") : outline.text.index("Environment")]
    for cell in demo.cells:
        assert error_text(cell.error_s("ttft_p50_s") or 0) in instrument
    assert "client error: at most 0.56 ms in TTFT p50" in outline.text
    assert "is this client’s own" in outline.text
    assert "not calibrated" not in outline.text


def test_an_uncalibrated_run_says_why(tmp_path: Path) -> None:
    text = Outline(render_html(results.load(build_run(tmp_path, Sheet(error_s=None, loads=LOADS[:1]))))).text
    assert "client error is missing: not calibrated: client.calibrate is off." in text
    assert "in this run not calibrated: client.calibrate is off." in text


@pytest.mark.slow
def test_bold_needs_a_difference_beyond_the_error(tmp_path: Path) -> None:
    sheet = Sheet(engines={"a": FAST, "b": replace(FAST, ttft_s=0.05)}, loads=LOADS[:1], requests=40, invalid=())
    bold = [
        re.search(r'<td class="number nowrap( better)?" data-label="TTFT p50, ms">', render_html(results.load(path)))
        for path in (
            build_run(tmp_path / "1", replace(sheet, error_s=0.000_1)),
            build_run(tmp_path / "2", replace(sheet, error_s=0.1)),
        )
    ]
    assert [match and match[1] for match in bold] == [" better", None]


def test_the_clients_workers_are_listed_when_there_are_several(tmp_path: Path, outline: Outline) -> None:
    sheet = Sheet(loads=LOADS[:1], hosts=("near", "far"), requests=6)
    text = Outline(render_html(results.load(build_run(tmp_path, sheet)))).text
    table = text[text.index("Client workers") :].partition("Definitions")[0]
    for words in ("near", "the harness’s own", "far", "1.50 s ± 0.085 ms", "41.0 MiB"):
        assert words in table
    assert "Client workers" not in outline.text
