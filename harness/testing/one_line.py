"""Shows expected errors as one line in pytest's report."""

from types import TracebackType

from bakeoff.engines.secrets import masked
from bakeoff.harness.errors import expected_errors, first_leaf


class OneLine:
    """A context manager that strips the traceback inside bakeoff from expected errors, and masks secrets in them.

    Raises:
        HarnessError, EngineError, WorkloadError, ResultsError: as raised inside the block.
    """

    def __enter__(self) -> None:
        """Enter the block; there is no state to set up."""

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise an expected error again, from this frame."""
        __tracebackhide__ = True  # pytest hides such frames
        error = first_leaf(raised) if raised is not None else None
        if isinstance(error, expected_errors()):
            error.args = (masked(str(error)),)
            raise error.with_traceback(None) from None
