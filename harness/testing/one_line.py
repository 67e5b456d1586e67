"""Errors that were expected, as a test's report should show them."""

from types import TracebackType

from engines.secrets import masked
from harness.errors import expected_errors, first_leaf


class OneLine:
    """A block whose expected errors keep their kind and their line, and lose the traceback inside bakeoff.

    Raises:
        HarnessError, EngineError, WorkloadError, ResultsError: what was raised inside, without secrets.
    """

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise it again, from here."""
        __tracebackhide__ = True  # pytest leaves such frames out of what it prints
        error = first_leaf(raised) if raised is not None else None
        if isinstance(error, expected_errors()):
            error.args = (masked(str(error)),)
            raise error.with_traceback(None) from None
