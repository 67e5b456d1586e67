"""Records an engine's own account of requests during a profiled trial: its steps, or the spans that it exports."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from bakeoff.engines.access import Access
from bakeoff.engines.base import SupportsSpans
from bakeoff.harness.conduct.engine_start import EngineUnderTest
from bakeoff.harness.conduct.spans import STANDARD_PORT, SpanReceiver, receiving
from bakeoff.harness.conduct.step_log import StepLog
from bakeoff.results.log.store import TrialFolder

_TRACE_PARENT = "00-62616b656f66662070726f66696c6521-70726f66696c6564-01"
"""W3C trace context, sampled: exporters that follow their caller's decision export these requests and no others."""
_UNKNOWN_DELAY_S = 6.0
"""Time to the last export of a server that others started; OpenTelemetry's exporters wait 5 s by default."""

_UNREACHABLE = (
    "the engine cannot reach the receiver of spans: it runs in a container or on another host, or its option "
    "otlp_traces_endpoint names another receiver"
)


class SpanLog:
    """The spans of one trial.

    Args:
        under_test: the running engine.
        receiver: of its exports; None if it cannot reach one.
        folder: of the trial.
        unreachable: why there is no receiver.

    Attributes:
        missing: why there is no record; None if there is one.
    """

    def __init__(
        self, under_test: EngineUnderTest, receiver: SpanReceiver | None, folder: TrialFolder, unreachable: str
    ) -> None:
        self._under_test = under_test
        self._receiver = receiver
        self._folder = folder
        self._unreachable = unreachable
        self.missing: str | None = "the trial did not reach its load"

    def access(self, access: Access) -> Access:
        """Access with the headers that make the engine export these requests."""
        return Access({**access.headers, "traceparent": _TRACE_PARENT}, access.query)

    async def start(self) -> None:
        """Start recording."""
        if self._receiver is None:
            self.missing = self._unreachable
            return
        self._receiver.start(self._folder.span_log)
        self.missing = "the trial was cut off"

    async def stop(self) -> None:
        """Wait for the last export, and stop recording."""
        receiver, engine = self._receiver, self._under_test.engine
        if receiver is None:
            return
        assert isinstance(engine, SupportsSpans)
        await asyncio.sleep(_UNKNOWN_DELAY_S if engine.url else engine.span_delay_s)
        await receiver.stop()
        self.missing = receiver.failure
        if not receiver.batches:
            how = engine.span_command.format(endpoint=receiver.endpoint)
            start = f"; start it with {how}" if engine.url else "; see the engine's log"
            self.missing = f"{engine.adapter} sent no spans to {receiver.endpoint}{start}"


@contextlib.asynccontextmanager
async def recording(under_test: EngineUnderTest, folder: TrialFolder) -> AsyncGenerator[StepLog | SpanLog]:
    """The record of one profiled trial, to start and stop around its load.

    Args:
        under_test: a running engine whose adapter records requests.
        folder: of the trial.
    """
    engine = under_test.engine
    if not isinstance(engine, SupportsSpans):
        yield StepLog(engine, under_test.server, folder)
        return
    async with contextlib.AsyncExitStack() as stack:
        receiver, problem = under_test.spans, _UNREACHABLE
        if engine.url:
            try:
                receiver = await stack.enter_async_context(receiving(STANDARD_PORT))
            except OSError as error:
                problem = (
                    f"port {STANDARD_PORT} cannot be used ({error.strerror}); stop the collector that listens there"
                )
        if receiver:
            stack.push_async_callback(receiver.stop)  # the load may fail
        yield SpanLog(under_test, receiver, folder, problem)
