"""Parser of the samples in Prometheus' text format 0.0.4 and OpenMetrics 1.0.

Source: https://prometheus.io/docs/instrumenting/exposition_formats. Labels can have escapes, a value can be ``NaN`` or
``+Inf``, and a timestamp or an exemplar can follow it. Invalid lines are skipped, so that the rest of a page is read.
"""

import re
from collections.abc import Container, Iterator
from typing import NamedTuple

_NAME = re.compile(r"[ \t]*([^#{\s][^{\s]*)")
_LABELS = r'\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\}'
_SAMPLE = re.compile(rf"(?:[ \t]*{_LABELS}[ \t]*|[ \t]+)(?P<value>[^\s#]+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_COUNTER = re.compile(r"^# TYPE[ \t]+(\S+)[ \t]+counter[ \t\r]*$", re.MULTILINE)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n"}


class Sample(NamedTuple):
    """One sample of a page; ``value`` can be infinite or NaN."""

    name: str
    labels: dict[str, str]
    value: float


def samples(page: str, names: Container[str] | None = None) -> Iterator[Sample]:
    """The samples of a page, in order.

    Args:
        page: text of the page.
        names: names to parse; other lines are skipped early, which makes long pages cheap. None for all.
    """
    for raw in page.split("\n"):  # not splitlines(): label values can contain Unicode line separators
        head = _NAME.match(raw)
        if head is None or (names is not None and head[1] not in names):
            continue
        sample = _SAMPLE.match(raw, head.end())
        value = _number(sample["value"]) if sample else None
        if sample and value is not None:
            yield Sample(head[1], _labels(sample["labels"]), value)


def declared_counters(page: str) -> set[str]:
    """Names of the samples of counters that the page declares by ``# TYPE``, with or without samples."""
    # OpenMetrics declares a counter without the suffix that its samples have.
    return {name for declared in _COUNTER.findall(page) for name in (declared, f"{declared}_total")}


def _labels(text: str | None) -> dict[str, str]:
    if not text:
        return {}
    return {name: _ESCAPE.sub(_unescaped, value) if "\\" in value else value for name, value in _LABEL.findall(text)}


def _unescaped(escape: re.Match[str]) -> str:
    return _ESCAPED.get(escape[1], escape[1])


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
