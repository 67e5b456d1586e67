"""Prometheus' text format, as far as numbers go: one sample for each line that is none of ``# HELP`` and ``# TYPE``.

Read as the exposition format 0.0.4 and OpenMetrics 1.0 have it: labels with escapes, a timestamp or an exemplar behind
the value, ``NaN`` and ``+Inf``. A line that is none of this is skipped: a page is read for what it has.
"""

import re
from collections.abc import Container, Iterator
from typing import NamedTuple

_NAME = re.compile(r"[ \t]*([^#{\s][^{\s]*)")
_LABELS = r'\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\}'
_SAMPLE = re.compile(rf"(?:[ \t]*{_LABELS}[ \t]*|[ \t]+)(?P<value>[^\s#]+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n"}


class Sample(NamedTuple):
    """One number of a page; ``value`` may be infinite, or not a number."""

    name: str
    labels: dict[str, str]
    value: float


def samples(page: str, names: Container[str] | None = None) -> Iterator[Sample]:
    """The samples of a page, in its order.

    Args:
        page: the whole of it.
        names: only these; everything else is passed over unread, which makes long pages cheap. None takes all.
    """
    for raw in page.split("\n"):  # not splitlines: a label's value may hold what Python takes for the end of a line
        head = _NAME.match(raw)
        if head is None or (names is not None and head[1] not in names):
            continue
        found = _SAMPLE.match(raw, head.end())
        value = _number(found["value"]) if found else None
        if found and value is not None:
            yield Sample(head[1], _labels(found["labels"]), value)


def _labels(text: str | None) -> dict[str, str]:
    if not text:
        return {}
    return {name: _ESCAPE.sub(_unescaped, value) if "\\" in value else value for name, value in _LABEL.findall(text)}


def _unescaped(found: re.Match[str]) -> str:
    return _ESCAPED.get(found[1], found[1])


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
