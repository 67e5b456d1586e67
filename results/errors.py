"""Errors of the results package.

::

    ResultsError
    ├── RunNotFound       the user's mistake: no run folder at that path
    ├── RunUnreadable     a run is damaged beyond a torn last line, of another schema, or leads elsewhere
    ├── NotWritable       the results folder cannot be written
    ├── NotComparable     two runs differ in what must be equal before they may be compared
    ├── NoEvidence        a side of a comparison has no valid trial, or too few
    ├── NotImportable     another tool's result file is damaged, or holds too little to make a run of it
    ├── NotCalibrated     the client's error on this machine was asked for before it was measured
    ├── NotServed         the dashboard cannot listen there, or may not
    └── NotReachable      a run that lies in a store cannot be fetched

Each message is one line that says what to do next.
"""


class ResultsError(Exception):
    """Root of every error that this package raises on purpose."""


class RunNotFound(ResultsError):
    """The path is not a run folder."""


class RunUnreadable(ResultsError):
    """A file of the run cannot be read."""


class NotWritable(ResultsError):
    """The results folder cannot be written."""


class NotComparable(ResultsError):
    """The runs differ in workload, model or machine."""


class NoEvidence(ResultsError):
    """A side of a comparison has too few valid trials."""


class NotExportable(ResultsError):
    """A run has nothing for another tool's result file."""


class NotImportable(ResultsError):
    """Another tool's result file cannot become a run."""


class NotCalibrated(ResultsError):
    """No calibration is stored."""


class NotServed(ResultsError):
    """The dashboard cannot listen at that address, or may not."""


class NotReachable(ResultsError):
    """A run that lies in a store cannot be fetched."""
