"""Rendering of the dashboard's pages, with the report's shell, style and theme."""

from collections.abc import Sequence
from pathlib import Path

from bakeoff.results.report.html import report_script
from bakeoff.results.report.offline import SHELL, asset, rendered
from bakeoff.results.report.page import page_of
from bakeoff.results.run.run import load

_PACKAGE = "bakeoff.results.dashboard"


def served(template: str, page: object, *scripts: str) -> str:
    """Render a page of the dashboard.

    Args:
        template: name, in this package.
        page: content, ``page`` in the template.
        scripts: names of script files in this package; the page must be complete without them.
    """
    return rendered(
        template,
        page,
        packages=[_PACKAGE, SHELL],
        style=_style(),
        script=asset("theme.js") + "".join(asset(name, _PACKAGE) for name in scripts),
        served=True,
    )


def report_html(path: Path) -> str:
    """A run's report, with links to the list and to its files."""
    page, script = page_of(load(path)), report_script()
    return rendered("run.html", page, packages=[_PACKAGE, SHELL], style=_style(), script=script, served=True)


def message_html(title: str, text: str, actions: Sequence[tuple[str, str]] = ()) -> str:
    """A page with one message and links."""
    return served("message.html", {"name": title, "text": text, "actions": list(actions)})


def _style() -> str:
    return asset("page.css") + asset("dashboard.css", _PACKAGE)
