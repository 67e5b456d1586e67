"""Results: the run folder, the metrics, the statistics and the reports.

Imports nothing of the other packages. The public API is :func:`load`, which gives a run as pandas frames.
"""

from results.errors import (
    NotComparable,
    NotExportable,
    NotImportable,
    NotWritable,
    ResultsError,
    RunNotFound,
    RunUnreadable,
)
from results.run import Cell, Run, Trial, load

__all__ = [
    "Cell",
    "NotComparable",
    "NotExportable",
    "NotImportable",
    "NotWritable",
    "ResultsError",
    "Run",
    "RunNotFound",
    "RunUnreadable",
    "Trial",
    "load",
]
