"""Errors of the results package.

::

    ResultsError
    ├── RunNotFound       the path is not a run folder
    ├── RunUnreadable     a run is damaged beyond an incomplete last line, has another schema, or links outside itself
    ├── NotWritable       the results folder cannot be written
    ├── NotComparable     runs differ in a condition that must be equal, or a comparison is misconfigured
    ├── NoEvidence        a side of a comparison has no valid trial, or too few
    ├── BadPrice          a price is malformed, or none is given
    ├── NotExportable     a run has nothing to write in another tool's format
    ├── NotImportable     another tool's result file is damaged or incomplete
    ├── NotCalibrated     no calibration of this machine is stored
    ├── NotServed         the dashboard cannot, or must not, listen on that address
    └── NotReachable      a run in a remote store cannot be read or stored, or a service does not take figures

Each message is one line that tells the user what to do.
"""

import msgspec

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding damaged bytes raises: text that is not UTF-8 and deep nesting raise Python's own errors."""


class ResultsError(Exception):
    """Base class of every error that this package raises deliberately."""


class RunNotFound(ResultsError):
    """The path is not a run folder."""


class RunUnreadable(ResultsError):
    """A file of the run cannot be read."""


class NotWritable(ResultsError):
    """A file or folder cannot be written. What to do depends on the command, which adds it to a message without advice.

    Attributes:
        has_advice: whether the message says what to do.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}; {advice}" if advice else message)
        self.has_advice: bool = bool(advice)


class NotComparable(ResultsError):
    """The runs differ in workload, model or machine, or the comparison is misconfigured."""


class NoEvidence(ResultsError):
    """A side of a comparison has too few valid trials."""


class BadPrice(ResultsError):
    """A price is malformed, or none is given."""


class NotExportable(ResultsError):
    """A run has nothing to write in another tool's format."""


class NotImportable(ResultsError):
    """Another tool's result file cannot be turned into a run."""


class NotCalibrated(ResultsError):
    """No calibration of this machine is stored."""


class NotServed(ResultsError):
    """The dashboard cannot, or must not, listen on that address."""


class NotReachable(ResultsError):
    """A run in a remote store cannot be read or stored, or a service does not take figures."""
