"""Runs the engine on its own thread and brings its tokens to the event loop.

The two sides share one queue of commands under a condition; in the other direction there is one
`call_soon_threadsafe` per step, whatever the number of tokens. The thread sleeps on the condition when idle.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from reference_engine.errors import EngineUnavailableError, RequestError
from reference_engine.request import Request, TokenOutput

if TYPE_CHECKING:
    from reference_engine.engine import Engine, StepReport  # imports torch, which the server must not wait for

_log = logging.getLogger(__name__)


class TokenStream:
    """The tokens of one or more requests, in the order in which the engine made them. Used on the event loop only."""

    def __init__(self, thread: "EngineThread", request_ids: Sequence[str]) -> None:
        self._thread = thread
        self._open = set(request_ids)
        self._ready: deque[TokenOutput] = deque()
        self._arrived = asyncio.Event()
        self._failure: EngineUnavailableError | RequestError | None = None
        self.num_finished_early = 0

    async def next_outputs(self) -> list[TokenOutput]:
        """All tokens since the last call, waiting for the first; empty when every request has ended.

        Raises:
            EngineUnavailableError: the engine crashed or stops; what was made before is lost.
            RequestError: the engine refuses the requests.
        """
        while not self._ready and self._open and self._failure is None:
            self._arrived.clear()
            await self._arrived.wait()
        if self._failure is not None:
            raise self._failure
        outputs = list(self._ready)
        self._ready.clear()
        return outputs

    def finish(self, request_id: str) -> None:
        """Ends one request early; its later tokens are dropped."""
        if request_id in self._open:
            self._open.discard(request_id)
            self.num_finished_early += 1
            self._thread.cancel([request_id])

    def close(self) -> int:
        """Ends all requests that still run and says how many; must be called, also after errors and cancellation."""
        aborted = len(self._open)
        if aborted:
            self._thread.cancel(list(self._open))
            self._open.clear()
        return aborted

    def put(self, output: TokenOutput) -> None:
        """Called by the thread's delivery."""
        if output.finish_reason is not None:
            self._open.discard(output.request_id)
        self._ready.append(output)
        self._arrived.set()

    def fail(self, failure: EngineUnavailableError | RequestError) -> None:
        """Called by the thread's delivery."""
        self._failure = failure
        self._arrived.set()


class EngineThread:
    """Owns an engine and its thread.

    Args:
        engine: nobody else may touch it from now on.
        loop: where tokens and reports are delivered.
        on_report: called on the loop after each step, before its tokens are delivered.
    """

    def __init__(
        self, engine: "Engine", loop: asyncio.AbstractEventLoop, on_report: "Callable[[StepReport], None]"
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._on_report = on_report
        self._streams: dict[str, TokenStream] = {}  # touched on the loop only
        self._wake = threading.Condition()
        self._added: list[Request] = []  # under _wake
        self._cancelled: list[str] = []  # under _wake
        self._resetting = False  # under _wake
        self._stopping = False  # under _wake
        self.failure: EngineUnavailableError | None = None
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[Request]) -> TokenStream:
        """Hands requests to the engine, each with its siblings, whose tokens come out of the same stream.

        Raises:
            EngineUnavailableError: the engine crashed or stops.
            RequestError: one of them can never be computed here, or too many wait; none is queued then.
        """
        for leader in requests:
            longest = max(one.sampling.max_tokens for one in (leader, *leader.siblings))
            self._engine.limits.check(leader.token_ids, longest, leader.width)
        if self.failure is not None:
            raise self.failure
        self._engine.check_queue(len(self._added) + len(requests))
        everyone = [one for leader in requests for one in (leader, *leader.siblings)]
        stream = TokenStream(self, [request.request_id for request in everyone])
        for request in everyone:
            self._engine.stamp(request)
            self._streams[request.request_id] = stream
        with self._wake:
            self._added.extend(requests)
            self._wake.notify()
        return stream

    def cancel(self, request_ids: Sequence[str]) -> None:
        """Ends requests; their blocks are free before the next step."""
        for request_id in request_ids:
            self._streams.pop(request_id, None)
        with self._wake:
            self._cancelled.extend(request_ids)
            self._wake.notify()

    def reset_prefix_cache(self) -> None:
        """Empties the prefix cache before the next step: a request submitted from now on finds nothing of before.

        Raises:
            EngineUnavailableError: the engine crashed or stops.
        """
        if self.failure is not None:
            raise self.failure
        with self._wake:
            self._resetting = True
            self._wake.notify()

    async def stop(self) -> None:
        """Fails what is in flight and waits for the thread, which ends after the step it is in."""
        self._fail(EngineUnavailableError("the server is stopping"))
        with self._wake:
            self._stopping = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _main(self) -> None:
        try:
            while self._take_commands():
                # A step without work computes nothing, but its report tells that the last cancelled request is gone.
                self._loop.call_soon_threadsafe(self._deliver, self._engine.step())
        except Exception as error:  # noqa: BLE001 (every crash must reach the requests and /health)
            _log.exception("the engine's step loop crashed")
            self._report_crash(error)
        finally:
            self._engine.close()

    def _take_commands(self) -> bool:
        """Waits until there is work, then applies what came in; False when it is time to end."""
        with self._wake:
            while not (self._has_commands() or self._engine.has_work):
                self._wake.wait()
            added, self._added = self._added, []
            cancelled, self._cancelled = self._cancelled, []
            resetting, self._resetting = self._resetting, False
            if self._stopping:
                return False
        for request in added:
            self._add(request)
        for request_id in cancelled:
            self._engine.cancel(request_id)
        if resetting:
            self._engine.reset_prefix_cache()
        return True

    def _add(self, request: Request) -> None:
        try:
            self._engine.add(request)
        except RequestError as error:  # too many wait
            self._loop.call_soon_threadsafe(self._refuse, request.request_id, error)

    def _has_commands(self) -> bool:
        return bool(self._added or self._cancelled or self._resetting or self._stopping)

    def _report_crash(self, error: Exception) -> None:
        failure = EngineUnavailableError(f"the engine crashed ({type(error).__name__}: {error}); restart the server")
        try:
            self._loop.call_soon_threadsafe(self._fail, failure)
        except RuntimeError:
            _log.warning("the event loop was closed before the crash could be reported")

    def _deliver(self, report: "StepReport") -> None:
        self._on_report(report)
        for output in report.outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue  # cancelled while the step ran
            if output.finish_reason is not None:
                del self._streams[output.request_id]
            stream.put(output)

    def _refuse(self, request_id: str, error: RequestError) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.fail(error)

    def _fail(self, failure: EngineUnavailableError) -> None:
        if self.failure is None:
            self.failure = failure
        for stream in set(self._streams.values()):
            stream.fail(failure)
        self._streams.clear()
