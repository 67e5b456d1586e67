"""Debian's Chromium, for the tests that look at pages."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

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


def only_page(
    browser: Browser, *, theme: str = "light", width: int = 1280, js: bool = True, scale: float = 1.0
) -> Page:
    """An empty page; those of earlier tests are closed, since a live one would go on asking its server."""
    for earlier in browser.contexts:
        earlier.close()
    scheme: Literal["light", "dark"] = "dark" if theme == "dark" else "light"
    size = {"width": width, "height": 900}
    context = browser.new_context(color_scheme=scheme, viewport=size, java_script_enabled=js, device_scale_factor=scale)
    return context.new_page()


def serious(page: Page, *, rules: int) -> list[tuple[str, str]]:
    """What axe-core finds that is serious or critical: the rule, and the first element that breaks it.

    Args:
        page: to look at.
        rules: more than so many must have found something to look at, or it is no answer.
    """
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response  # the others with one element each
    assert len(found["passes"]) > rules
    broken = [one for one in found["violations"] if one["impact"] in {"serious", "critical"}]
    return [(one["id"], one["nodes"][0]["html"][:200]) for one in broken]
