"""The dashboard's own addresses: every view is one, with its filters in the query."""

from collections.abc import Mapping
from urllib.parse import quote, urlencode


def report_at(run: str) -> str:
    """A run's page."""
    return f"/runs/{quote(run, safe='')}/report"


def live_at(run: str) -> str:
    """A run that goes on."""
    return f"/runs/{quote(run, safe='')}/live"


def compare_at(a: str, b: str) -> str:
    """Two sides, each ``RUN@ENGINE``."""
    return with_query("/compare", {"a": a, "b": b})


def with_query(path: str, values: Mapping[str, str]) -> str:
    """An address with a query; what is empty is left out."""
    told = {key: value for key, value in values.items() if value}
    return f"{path}?{urlencode(told)}" if told else path
