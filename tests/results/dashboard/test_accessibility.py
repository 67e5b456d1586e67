"""axe-core over the dashboard's pages: nothing serious or critical, in both themes."""

import pytest
from playwright.sync_api import Browser

from tests.results.browsing import serious
from tests.results.dashboard.test_browser import PAGES, Watched, browser, served
from tests.results.dashboards import Served

__all__ = ["browser", "served"]
pytestmark = pytest.mark.browser
FINISHED = "/runs/day-1/report"
"""The page of `test_report_accessibility.py`."""


@pytest.mark.parametrize(("theme", "width"), [("light", 420), ("dark", 1280)])
@pytest.mark.parametrize("path", [*(path for path in PAGES if path != FINISHED), "/nothing"])
def test_axe_finds_nothing_serious(browser: Browser, served: Served, path: str, theme: str, width: int) -> None:
    assert serious(Watched(browser, served, path, theme, width).page, rules=10) == []
