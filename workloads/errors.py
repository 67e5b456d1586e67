"""Errors of the workloads package.

::

    WorkloadError
    ├── UnknownWorkload    the user's mistake: no workload or arrival process of that name
    ├── BadOption          the user's mistake: an option is unknown or out of range
    └── NoTokenizer        token-exact prompts need the model's tokenizer, and there is none
"""


class WorkloadError(Exception):
    """Root of every error that this package raises on purpose; the message says what to do next."""


class UnknownWorkload(WorkloadError):
    """No workload or arrival process has that name."""


class BadOption(WorkloadError):
    """An option is unknown or out of range."""


class NoTokenizer(WorkloadError):
    """The model's tokenizer files are missing."""
