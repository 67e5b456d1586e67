"""Addresses of the dashboard's pages; filters are in the query string."""

from collections.abc import Mapping
from urllib.parse import quote, urlencode


def report_at(run: str) -> str:
    """Address of a run's report."""
    return f"/runs/{quote(run, safe='')}/report"


def live_at(run: str) -> str:
    """Address of a running run's live page."""
    return f"/runs/{quote(run, safe='')}/live"


def compare_at(a: str, b: str) -> str:
    """Address of the comparison of two sides, each ``RUN@ENGINE``."""
    return with_query("/compare", {"a": a, "b": b})


def with_query(path: str, values: Mapping[str, str]) -> str:
    """Address with a query string; empty values are omitted."""
    filled = {key: value for key, value in values.items() if value}
    return f"{path}?{urlencode(filled)}" if filled else path
