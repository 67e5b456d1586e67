"""Errors of the harness.

::

    HarnessError
    ├── BadExperiment     the user's mistake: the experiment file is missing, malformed or contradicts itself
    ├── BadPlan           the user's mistake: a model, GPU or option that cannot be planned for
    ├── BadGrid           the user's mistake: a calibration that cannot be driven
    ├── ClientFailed      our bug or the machine's (out of memory, killed process): a client worker crashed
    ├── BadSchedule       the user's mistake: a truth server's schedule has a value out of range
    ├── EvaluationFailed  the user's mistake, or a server's: a model, text or question cannot be evaluated
    ├── FaultFailed       the machine's state, or the user's mistake: a fault could not be caused or ended
    ├── ReferenceMissing  the machine's state: the reference engine's packages are not installed
    └── TruthFailed       the machine's state: a truth server's port or core is unavailable

The other packages have their own trees: ``EngineError``, ``WorkloadError`` and ``ResultsError``. The command line turns
all four into one line and a non-zero exit code; any other exception is our bug, and exits with 3.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bakeoff.results import Run


class HarnessError(Exception):
    """Root of all errors that this package raises on purpose; the message says what to do next."""


class BadExperiment(HarnessError):
    """The experiment file is missing, malformed or contradicts itself."""


class BadPlan(HarnessError):
    """A model, GPU, run or option cannot be planned for."""


class BadGrid(HarnessError):
    """A calibration's load, core or number of workers is impossible."""


class ClientFailed(HarnessError):
    """A worker of the measuring client crashed or cannot be started."""


class WorkerLost(ClientFailed):
    """A worker's process ended or stopped during a load; another one can take its place."""


class BadSchedule(HarnessError):
    """A truth server's schedule has a value out of range or contradicts itself."""


class FaultFailed(HarnessError):
    """A fault could not be caused or ended under load; the trial's record says so."""


class EvaluationFailed(HarnessError):
    """A model cannot be evaluated: the files given, the server or the reference engine failed."""


class ReferenceMissing(HarnessError):
    """The reference engine cannot run here, because packages that it needs are not installed."""


class TruthFailed(HarnessError):
    """A truth server cannot be started: its port or its core is unavailable."""


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C during a run; ``run`` has the finished trials."""

    def __init__(self, run: "Run") -> None:
        plans = run.manifest.trials
        finished = sum(plan.id in run.log.finished for plan in plans)
        super().__init__(f"{finished} of {len(plans)} trials finished")
        self.run = run


def first_leaf(error: BaseException) -> BaseException:
    """The first exception in nested exception groups that is not itself a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def expected_errors() -> tuple[type[Exception], ...]:
    """Roots of the four error trees. Imports the other packages only when called, that is, after a failure."""
    from bakeoff.engines.errors import EngineError  # noqa: PLC0415
    from bakeoff.results.errors import ResultsError  # noqa: PLC0415
    from bakeoff.workloads.errors import WorkloadError  # noqa: PLC0415

    return (EngineError, HarnessError, ResultsError, WorkloadError)
