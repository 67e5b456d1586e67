"""A run as one offline HTML page; :mod:`results.report.offline` says what is guaranteed."""

from pathlib import Path

from results.atomic import write_atomic
from results.report.offline import SHELL, asset, rendered
from results.report.page import page_of
from results.run import Run


def render_html(run: Run) -> str:
    """The page of a run.

    Args:
        run: as ``results.load`` gives it, whatever its status.
    """
    return rendered("page.html", page_of(run), packages=[SHELL], style=asset("page.css"), script=report_script())


def report_script() -> str:
    """All of its JavaScript."""
    return asset("theme.js") + asset("page.js") + asset("waterfall.js")


def write_html(run: Run, path: Path | None = None) -> Path:
    """Write the page and return where it is.

    Args:
        run: as ``results.load`` gives it.
        path: where to; ``report.html`` in the run's folder by default.

    Raises:
        NotWritable: the folder is missing, read-only or full.
    """
    path = path or run.path / "report.html"
    write_atomic(path, render_html(run).encode("utf-8", errors="replace"))
    return path
