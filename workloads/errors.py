"""Errors of the workloads package.

::

    WorkloadError
    ├── UnknownWorkload    user error: no workload or arrival process has that name
    ├── BadOption          user error: an option is unknown or out of range
    ├── BadTrace           user error: a row of a file cannot be read
    ├── BadTokenizer       the model's tokenizer or chat template cannot be read, or fails
    └── NoTokenizer        token-exact prompts need the model's tokenizer, which is missing
"""


class WorkloadError(Exception):
    """Base class of this package's errors; the message says what to do next."""


class UnknownWorkload(WorkloadError):
    """No workload or arrival process has that name."""


class BadOption(WorkloadError):
    """An option is unknown or out of range."""


class BadTrace(WorkloadError):
    """A trace's file is missing, damaged, or has an invalid row; the message names file and row."""


class BadTokenizer(WorkloadError):
    """The model's tokenizer or chat template cannot be read, or fails; the message names the file."""


class NoTokenizer(WorkloadError):
    """The model's tokenizer files are missing."""
