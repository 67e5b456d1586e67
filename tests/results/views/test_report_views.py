"""Other tools' numbers on the page equal those of the views and stand beside ours, each with its definition."""

import re

import pytest

from bakeoff import results
from bakeoff.results.report import render_html
from bakeoff.results.report.sections.views import Views, views_section
from bakeoff.results.statistics import log_t_interval
from bakeoff.results.views import VIEWS, views
from tests.results.builders import FAST, LOADS, Sheet, Texts, build_run


def section_of(run: results.Run) -> Views:
    section = views_section(run)
    assert section is not None
    return section


@pytest.mark.slow
def test_the_numbers_are_the_views(demo: results.Run) -> None:
    """vLLM's mean of medians at c=8, computed from the log."""
    section = section_of(demo)
    (panel,) = [panel for panel in section.panels if panel.primary]
    (reference,) = [engine for engine in panel.engines if engine.engine == "reference"]
    (vllm,) = [row for row in reference.tools if row.title == VIEWS["vllm"].title]
    medians = [
        views(trial)["vllm"].figures["Median TTFT (ms)"].value.value
        for trial in demo.finished
        if (trial.record.engine, trial.record.load.label) == ("reference", "c=8")
    ]
    interval = log_t_interval([value for value in medians if value])
    assert interval is not None
    assert vllm.numbers[0].text == f"{interval.centre:.1f} ms"


@pytest.mark.slow
def test_the_difference_from_our_value_is_shown(demo: results.Run) -> None:
    """GuideLLM's TPOT includes the time to the first token: (a_k − s) / N against (a_k − a₁) / (N − n₁)."""
    for panel in section_of(demo).panels:
        for engine in panel.engines:
            own_ms = float(engine.ours[2].text.split()[0])
            (guidellm,) = [row.numbers[2] for row in engine.tools if row.title == "GuideLLM"]
            apart = float(guidellm.text.split()[0]) / own_ms - 1
            assert guidellm.difference.startswith("+")
            assert float(guidellm.difference[1:].split()[0]) == pytest.approx(100 * apart, abs=1)


@pytest.mark.slow
def test_every_number_links_to_what_its_tool_means(demo: results.Run) -> None:
    section = section_of(demo)
    anchors = {meaning.anchor for meaning in section.definitions}
    for panel in section.panels:
        for engine in panel.engines:
            for row in engine.tools:
                assert all(number.anchor in anchors or number.text == "–" for number in row.numbers), row.title
    assert sum(bool(meaning.tool) for meaning in section.definitions) == len(VIEWS)
    assert len(section.definitions) == sum(len(tool.definitions) for tool in VIEWS.values())


def test_what_the_log_cannot_tell_is_said(demo: results.Run) -> None:
    assert any("LoadGen has no closed loop at this concurrency" in line for line in section_of(demo).missing)


def test_a_level_without_valid_trials_has_no_numbers(tmp_path) -> None:
    sheet = Sheet(engines={"only": FAST}, loads=LOADS[:1], repeats=1, requests=6, invalid=(0,))
    page = render_html(results.load(build_run(tmp_path, sheet)))
    section = page[page.index('<div class="body" id="views">') :]
    assert "– No engine has a valid trial at this load." in section
    assert re.search(r"\d ms", section[: section.index("<details>")]) is None


def test_engines_that_are_called_like_markup(tmp_path) -> None:
    sheet = Sheet(engines={"<b>bold</b>": FAST}, loads=LOADS[:1], requests=6, texts=Texts(workload="<i>w</i>"))
    page = render_html(results.load(build_run(tmp_path, sheet)))
    assert "<b>" not in page
    assert "<i>w" not in page
