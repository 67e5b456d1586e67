"""An index of the runs in a folder: what lists, histories and filters need of each, without folding it anew.

Run folders are the truth; the index is made of them and may be thrown away at any time.
"""

from results.index.facts import CellFacts, Headline, RunFacts, Spread, facts_of
from results.index.query import Order, Query
from results.index.store import INDEX_FILE, Index, Scan

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
