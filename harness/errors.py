"""Errors of the harness.

::

    HarnessError
    ├── BadExperiment     the user's mistake: the experiment file is missing, malformed or contradicts itself
    ├── BadGrid           the user's mistake: a calibration that cannot be driven
    ├── ClientFailed      a worker of the measuring client broke: our bug, or the machine's (memory, a killed process)
    ├── BadSchedule       the user's mistake: a truth server's schedule has a value out of range
    └── TruthFailed       the machine's state: a truth server cannot listen there, or on that core

The other packages have trees of their own: ``EngineError``, ``WorkloadError`` and ``ResultsError``. The command line
turns all four into one line and a non-zero exit; anything else is our bug and keeps its traceback.
"""


class HarnessError(Exception):
    """Root of every error that this package raises on purpose; the message says what to do next."""


class BadExperiment(HarnessError):
    """The experiment file is missing, malformed or contradicts itself."""


class BadGrid(HarnessError):
    """A load, a core or a number of workers of a calibration is impossible."""


class ClientFailed(HarnessError):
    """A worker of the measuring client broke or cannot be started."""


class BadSchedule(HarnessError):
    """A truth server's schedule has a value out of range or contradicts itself."""


class TruthFailed(HarnessError):
    """A truth server cannot be started: its port or its core is not to be had."""


def first_leaf(error: BaseException) -> BaseException:
    """What went wrong inside a task group: the first exception that is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def expected_errors() -> tuple[type[Exception], ...]:
    """Roots of the four error trees; the other three are imported only once something has failed."""
    from engines.errors import EngineError  # noqa: PLC0415
    from results.errors import ResultsError  # noqa: PLC0415
    from workloads.errors import WorkloadError  # noqa: PLC0415

    return (EngineError, HarnessError, ResultsError, WorkloadError)
