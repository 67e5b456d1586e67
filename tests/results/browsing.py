"""Debian's Chromium, for the tests that look at pages."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import pytest

pytest.importorskip("playwright")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

__all__ = ["Browser", "Page", "launched", "listen", "only_page", "serious"]
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """A browser for the tests of one file."""
    if not CHROMIUM.exists():
        pytest.fail(f"{CHROMIUM} is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()
        _listening.clear()


_shared: WeakKeyDictionary[Browser, Page] = WeakKeyDictionary()
"""The page of each browser, which its tests use in turn: a renderer for each test would cost more than the drawing."""
_listening: list[tuple[str, Callable[[Any], Any]]] = []
"""Listeners on the shared page."""
_FORGET = "() => { if (location.protocol !== 'about:') localStorage.clear(); }"


def only_page(
    browser: Browser, *, theme: str = "light", width: int = 1280, js: bool = True, scale: float = 1.0
) -> Page:
    """An empty page. Earlier pages are closed or emptied, since a live page would go on querying its server."""
    scheme: Literal["light", "dark"] = "dark" if theme == "dark" else "light"
    shared, size = _shared.get(browser), ViewportSize(width=width, height=900)
    for earlier in browser.contexts:
        if shared is None or earlier is not shared.context:
            earlier.close()
    if shared is not None:
        _empty(shared)
    if not js or scale != 1.0:
        context = browser.new_context(
            color_scheme=scheme, viewport=size, java_script_enabled=js, device_scale_factor=scale
        )
        return context.new_page()
    if shared is None:
        shared = _shared[browser] = browser.new_context().new_page()
    shared.set_viewport_size(size)
    shared.emulate_media(media="null", color_scheme=scheme)
    return shared


def listen(page: Page, event: Any, listener: Callable[[Any], Any]) -> None:
    """Listen until the page is emptied for the next test."""
    page.on(event, listener)
    if page in _shared.values():
        _listening.append((event, listener))


def _empty(shared: Page) -> None:
    """Restore the state of a new page: no listeners, an empty storage, the pointer at the origin."""
    shared.evaluate(_FORGET)
    shared.goto("about:blank")
    shared.mouse.move(0, 0)
    for event, listener in _listening:
        shared.remove_listener(event, listener)
    _listening.clear()


def serious(page: Page, *, rules: int) -> list[tuple[str, str]]:
    """The serious and critical violations that axe-core finds: the rule, and the first element that breaks it.

    Args:
        page: the page to examine.
        rules: more rules than this must have passed; otherwise axe-core has not examined the page.
    """
    # With this option all other result types list one element each.
    axe_results = Axe().run(page, options={"resultTypes": ["violations"]}).response
    assert len(axe_results["passes"]) > rules
    broken = [violation for violation in axe_results["violations"] if violation["impact"] in {"serious", "critical"}]
    return [(violation["id"], violation["nodes"][0]["html"][:200]) for violation in broken]
