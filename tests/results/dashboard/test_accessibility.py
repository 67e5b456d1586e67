"""axe-core over the dashboard's pages: nothing serious or critical, in both themes."""

import pytest

from tests.results.browsing import Browser, serious
from tests.results.dashboard.test_browser import WIDTHS, Watched, browser, served
from tests.results.dashboards import Served
from tests.selection import sampled

__all__ = ["browser", "served"]
pytestmark = pytest.mark.browser
VIEWS = ("/", "/compare?run=day-9&run=day-1", "/history", "/runs/live/live")
OTHERS = ("/history?metric=itl_p50_s", "/compare?a=day-1&b=day-2&primary=x", "/runs/live/report", "/nothing")


@pytest.mark.parametrize("theme", sampled(["light", "dark"], ["dark"]))
@pytest.mark.parametrize("path", VIEWS)
def test_axe_finds_nothing_serious_at_any_width(browser: Browser, served: Served, path: str, theme: str) -> None:
    page = Watched(browser, served, path, theme).page
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert serious(page, rules=10) == [], width


@pytest.mark.parametrize("theme", sampled(["light", "dark"], ["dark"]))
@pytest.mark.parametrize("path", sampled(OTHERS, OTHERS[1:3]))
def test_axe_finds_nothing_serious_on_other_pages(browser: Browser, served: Served, path: str, theme: str) -> None:
    assert serious(Watched(browser, served, path, theme, WIDTHS[0]).page, rules=10) == []
