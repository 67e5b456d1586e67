"""axe-core over the dashboard's pages: nothing serious or critical, in both themes."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.results.dashboards import Served
from tests.results.test_dashboard_browser import PAGES, Watched, browser, served

__all__ = ["browser", "served"]
pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("theme", "width"), [("light", 420), ("dark", 1280)])
@pytest.mark.parametrize("path", [*PAGES, "/nothing"])
def test_axe_finds_nothing_serious(browser: Browser, served: Served, path: str, theme: str, width: int) -> None:
    found = Axe().run(Watched(browser, served, path, theme, width).page)
    assert len(found.response["passes"]) > 10
    serious = [one for one in found.response["violations"] if one["impact"] in {"serious", "critical"}]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in serious] == []
