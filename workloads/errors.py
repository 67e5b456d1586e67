"""Errors of the workloads package.

::

    WorkloadError
    ├── UnknownWorkload    the user's mistake: no workload or arrival process of that name
    ├── BadOption          the user's mistake: an option is unknown or out of range
    ├── BadTrace           the user's file: a row cannot be read
    └── NoTokenizer        token-exact prompts need the model's tokenizer, and there is none
"""


class WorkloadError(Exception):
    """Root of every error that this package raises on purpose; the message says what to do next."""


class UnknownWorkload(WorkloadError):
    """No workload or arrival process has that name."""


class BadOption(WorkloadError):
    """An option is unknown or out of range."""


class BadTrace(WorkloadError):
    """A trace's file is missing, broken, or holds a row that cannot be right; the message names file and row."""


class NoTokenizer(WorkloadError):
    """The model's tokenizer files are missing."""
