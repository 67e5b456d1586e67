"""A run as one offline HTML page.

This module owns the rendering of HTML. It guarantees: one file; no request to any network; a content security policy
that lets only this page's own style and script run, by their hashes; every text autoescaped; data for the script only
in ``application/json`` islands in which ``<``, ``>``, ``&`` and the line separators are escaped. The page is complete
without its script.
"""

import base64
import hashlib
from importlib import resources
from pathlib import Path

import jinja2
import msgspec
from markupsafe import Markup

from results.atomic import write_atomic
from results.report.format import plain_block
from results.report.page import page_of
from results.run import Run

_ISLAND_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def render_html(run: Run) -> str:
    """The page of a run.

    Args:
        run: as ``results.load`` gives it, whatever its status.
    """
    style, script = _asset("page.css"), _asset("page.js")
    return (
        _environment()
        .get_template("page.html")
        .render(page=page_of(run), policy=Markup(_policy(style, script)), style=Markup(style), script=Markup(script))  # noqa: S704  (our own files)
    )


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


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("results.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters["island"] = _island
    return environment


def _finalize(value: object) -> object:
    """Control characters never reach the page; what is already markup was made by us."""
    return plain_block(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _island(value: object) -> Markup:
    """JSON that may stand inside a script element."""
    text = msgspec.json.encode(value).decode()
    for character, escaped in _ISLAND_ESCAPES.items():
        text = text.replace(character, escaped)
    return Markup(text)  # noqa: S704  (nothing in it can end the element)


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return (resources.files("results.report") / "templates" / name).read_text(encoding="utf-8")
