"""Rendering of offline HTML pages: templates with one style and one script.

Guarantees: one file; no network requests, except from a served page to its own server; a content security policy that
allows only the page's own style and script, by hash; all text autoescaped; data for the script only in
``application/json`` islands in which ``<``, ``>``, ``&`` and line separators are escaped.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

import jinja2
import msgspec
from markupsafe import Markup

from bakeoff.results.text.format import plain_block

SHELL = "bakeoff.results.report"
"""Package of ``shell.html``, the base of every page, and of the shared style and theme switch."""
_ISLAND_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def rendered(
    template: str, page: object, *, packages: Sequence[str], style: str, script: str, served: bool = False
) -> str:
    """Render a page.

    Args:
        template: name of a template that extends ``shell.html``.
        page: content, ``page`` in the template.
        packages: packages whose ``templates`` folders are searched, in this order.
        style: all CSS of the page.
        script: all JavaScript of the page; the page must be complete without it.
        served: whether forms and script may send requests to the page's own server.
    """
    policy = _policy(style, script, "'self'" if served else "'none'")
    return (
        _environment(tuple(packages))
        .get_template(template)
        .render(page=page, policy=Markup(policy), style=Markup(style), script=Markup(script))  # noqa: S704  (our own files)
    )


def fragment(template: str, content: Mapping[str, object]) -> Markup:
    """Render a part of the report.

    Args:
        template: name of a template.
        content: values by the names that the template uses.
    """
    return Markup(_environment((SHELL,)).get_template(template).render(content))  # noqa: S704  (autoescaped)


def asset(name: str, package: str = SHELL) -> str:
    """Text of a file in a package's ``templates`` folder."""
    return (resources.files(package) / "templates" / name).read_text(encoding="utf-8")


@cache
def _environment(packages: tuple[str, ...]) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package) for package in packages]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters["island"] = _island
    return environment


def _finalize(value: object) -> object:
    """Remove control characters from text; markup is our own."""
    return plain_block(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _island(value: object) -> Markup:
    """JSON, safe inside a script element."""
    text = msgspec.json.encode(value).decode()
    for character, escaped in _ISLAND_ESCAPES.items():
        text = text.replace(character, escaped)
    return Markup(text)  # noqa: S704  (nothing in it can end the element)


def _policy(style: str, script: str, own_server: str) -> str:
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        f"img-src data:; base-uri 'none'; connect-src {own_server}; form-action {own_server}"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
