"""Every number of the page links to its definition."""

import re

import pytest

from bakeoff import results
from bakeoff.results.metrics.catalogue import FAMILIES
from bakeoff.results.report import render_html
from bakeoff.results.report.page import all_sections


@pytest.fixture(scope="module")
def page(demo: results.Run) -> str:
    return render_html(demo)


def part(page: str, key: str) -> str:
    match = re.search(rf'<div class="body" id="{key}">.*?</section>', page, re.DOTALL)
    assert match is not None
    return match[0]


@pytest.mark.slow
def test_every_link_ends_somewhere_and_every_name_is_given_once(page: str) -> None:
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)


def test_the_contents_are_the_sections_in_their_order(page: str) -> None:
    # One address and model, no search, prices, faults, grid; one request in each session, so that no prompt is cached.
    absent = {
        "addresses", "cache_gap", "capacity", "classes", "cost", "faults", "models", "objectives", "sessions",
        "settings",
    }  # fmt: skip
    sections = [section for section in all_sections() if section.id not in absent]
    assert [section.id for section in sections] == re.findall(r'<div class="body" id="([^"]+)">', page)
    for section in sections:
        assert f'<a href="#{section.id}">{section.title}</a>' in page


def test_no_figure_of_the_summary_stands_without_a_link(page: str) -> None:
    summary = part(page, "summary")
    figures = re.findall(r'<td class="number[^"]*" data-label="([^"]+)">(.*?)</td>', summary, re.DOTALL)
    assert len(figures) == 8 * 8
    for title, cell in figures:
        assert '<a href="#' in cell or cell.startswith("–"), title
        outside = re.sub(r"<a .*?</a>|<span .*?</span>|<svg.*?</svg>", "", cell, flags=re.DOTALL)
        assert not re.search(r"\d", outside), title


def test_no_number_of_the_metric_tables_stands_without_a_link(page: str) -> None:
    tables = part(page, "summary").split("<summary>All metrics")[1]
    rows = re.findall(r"<tr>(.*?)</tr>", tables, re.DOTALL)
    cells = [cell for row in rows for cell in re.findall(r"<td>(.*?)</td>", row, re.DOTALL)[1:]]
    linked = [cell for cell in cells if re.match('<a href="#(metric-|answers)', cell)]
    assert len(linked) == 156
    assert all(cell.startswith("–") for cell in set(cells) - set(linked))


def test_a_definition_leads_to_its_observations_and_window(page: str) -> None:
    definitions = part(page, "definitions")
    for family, basis in FAMILIES.items():
        row = re.search(rf'<tr id="metric-{family}">.*?</tr>', definitions, re.DOTALL)
        assert row is not None, family
        assert f"<td>{basis.span.value}</td>" in row[0]
        target = re.search(r'<a href="#(basis-\w+)">', row[0])
        assert target is not None
        counted = re.search(rf'<tr id="{target[1]}">.*?</tr>', definitions, re.DOTALL)
        assert counted is not None
        assert f'href="#metric-{family}"' in counted[0], "and back"
        assert len(re.findall(r'<td class="number[^"]*">[\d,]+</td>', counted[0])) == 8
