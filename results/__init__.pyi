from .errors import (
    NotComparable,
    NotExportable,
    NotImportable,
    NotWritable,
    ResultsError,
    RunNotFound,
    RunUnreadable,
)
from .run.run import Cell, Run, Trial, load

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
