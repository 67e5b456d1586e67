"""The report of a run as one offline HTML page, with the guarantees of :mod:`bakeoff.results.report.offline`."""

from pathlib import Path

from bakeoff.results.files.atomic import write_atomic
from bakeoff.results.report.offline import SHELL, asset, rendered
from bakeoff.results.report.page import page_of
from bakeoff.results.run.run import Run


def render_html(run: Run) -> str:
    """Render the report.

    Args:
        run: of any status.
    """
    return rendered("page.html", page_of(run), packages=[SHELL], style=asset("page.css"), script=report_script())


def report_script() -> str:
    """All JavaScript of the report."""
    return asset("theme.js") + asset("page.js") + asset("waterfall.js")


def write_html(run: Run, path: Path | None = None) -> Path:
    """Write the report and return its path.

    Args:
        run: of any status.
        path: default: ``report.html`` in the run's folder.

    Raises:
        NotWritable: the folder is missing, read-only or full.
    """
    path = path or run.path / "report.html"
    write_atomic(path, render_html(run).encode("utf-8", errors="replace"))
    return path
