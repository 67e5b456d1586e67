"""The dashboard's pages: the report's shell, style and theme, and a little of its own."""

from collections.abc import Sequence
from pathlib import Path

from results.report.html import report_script
from results.report.offline import SHELL, asset, rendered
from results.report.page import page_of
from results.run import load

_OWN = "results.dashboard"


def served(template: str, page: object, *scripts: str) -> str:
    """A page of the dashboard.

    Args:
        template: in this package.
        page: what it shows.
        scripts: names of files beside it; comfort only.
    """
    return rendered(
        template,
        page,
        packages=[_OWN, SHELL],
        style=_style(),
        script=asset("theme.js") + "".join(asset(name, _OWN) for name in scripts),
        served=True,
    )


def report_html(path: Path) -> str:
    """A run's report with the way back and its files."""
    page, script = page_of(load(path)), report_script()
    return rendered("run.html", page, packages=[_OWN, SHELL], style=_style(), script=script, served=True)


def message_html(title: str, text: str, actions: Sequence[tuple[str, str]] = ()) -> str:
    """A page that says one thing."""
    return served("message.html", {"name": title, "text": text, "actions": list(actions)})


def _style() -> str:
    return asset("page.css") + asset("dashboard.css", _OWN)
