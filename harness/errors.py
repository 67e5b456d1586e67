"""Errors of the harness.

::

    HarnessError
    └── BadExperiment     the user's mistake: the experiment file is missing, malformed or contradicts itself

The other packages have trees of their own: ``EngineError``, ``WorkloadError`` and ``ResultsError``. The command line
turns all four into one line and a non-zero exit; anything else is our bug and keeps its traceback.
"""


class HarnessError(Exception):
    """Root of every error that this package raises on purpose; the message says what to do next."""


class BadExperiment(HarnessError):
    """The experiment file is missing, malformed or contradicts itself."""


def first_leaf(error: BaseException) -> BaseException:
    """What went wrong inside a task group: the first exception that is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
