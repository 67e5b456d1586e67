"""Errors of the harness.

::

    HarnessError
    ├── BadExperiment     the user's mistake: the experiment file is missing, malformed or contradicts itself
    └── RunFailed         an engine failed, so the run could not go on; what was measured is kept

The other packages have trees of their own: ``EngineError``, ``WorkloadError`` and ``ResultsError``. The command line
turns all four into one line and a non-zero exit; anything else is our bug and keeps its traceback.
"""


class HarnessError(Exception):
    """Root of every error that this package raises on purpose; the message says what to do next."""


class BadExperiment(HarnessError):
    """The experiment file is missing, malformed or contradicts itself."""


class RunFailed(HarnessError):
    """The run could not go on; what was measured is kept."""
