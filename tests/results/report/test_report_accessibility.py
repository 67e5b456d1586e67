"""axe-core over the page: nothing serious or critical, in both themes, wide and narrow."""

from pathlib import Path

import pytest

from bakeoff import results
from bakeoff.results.report import write_html
from tests.results.browsing import Browser, serious
from tests.results.builders import LOADS, Sheet, build_run
from tests.results.report.test_report_browser import Watched, browser
from tests.selection import sampled

__all__ = ["browser"]
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every part that a page can have, but few elements: axe-core examines each of them."""
    sheet = Sheet(loads=(LOADS[1], LOADS[3]), repeats=2, requests=12, gpus=1, invalid=(3,))
    return write_html(results.load(build_run(tmp_path_factory.mktemp("page"), sheet)))


@pytest.mark.parametrize(("theme", "width"), sampled([("light", 390), ("dark", 768), ("dark", 1400)], [("dark", 768)]))
def test_axe_finds_nothing_serious(browser: Browser, report: Path, theme: str, width: int) -> None:
    page = Watched(browser, report, theme=theme, width=width).page
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert serious(page, rules=30) == []


def test_axe_finds_what_is_wrong(browser: Browser, report: Path) -> None:
    """The check can fail: a table that scrolls but cannot be reached with the keyboard."""
    page = Watched(browser, report, width=420).page
    page.evaluate("document.querySelectorAll('.wide').forEach((one) => one.removeAttribute('tabindex'))")
    assert "scrollable-region-focusable" in {rule for rule, _ in serious(page, rules=30)}
