"""Index of the runs in a folder, so that lists, histories and filters need not read their logs.

The index is derived from the run folders and can be deleted at any time.
"""

from bakeoff.results.index.facts import CellFacts, Headline, RunFacts, Spread, facts_of
from bakeoff.results.index.query import Order, Query
from bakeoff.results.index.store import INDEX_FILE, Index, Scan

__all__ = [
    "INDEX_FILE",
    "CellFacts",
    "Headline",
    "Index",
    "Order",
    "Query",
    "RunFacts",
    "Scan",
    "Spread",
    "facts_of",
]
