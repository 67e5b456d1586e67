"""Token streams on the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from bakeoff.reference_engine.core.outputs import TokenOutput
from bakeoff.reference_engine.errors import EngineUnavailableError, RequestError

_MAX_OUTPUTS = 256  # per call: a reader that lags behind must not get everything in one write


class Sink(Protocol):
    """Takes the tokens of a step without waking a task, which costs more than most of the work for a token.

    Encoding and writing are separate, so that many streams are encoded before the first is written: system calls in
    between would evict the code from the processor's caches and slow encoding down.
    """

    def encode(self, outputs: Sequence[TokenOutput]) -> bool:
        """Takes the tokens; returns False to leave them to `TokenStream.next_outputs`."""
        ...

    def write(self) -> None:
        """Writes the encoded tokens."""
        ...


class TokenStream:
    """The tokens of one or more requests, in the engine's order. Used on the event loop only.

    Args:
        cancel: ends requests in the engine.
        request_ids: of all requests of the stream.

    Attributes:
        num_finished_early: requests that `finish` ended.
    """

    __slots__ = ("_cancel", "_failure", "_open", "_ready", "_sink", "_waiter", "num_finished_early")

    def __init__(self, cancel: Callable[[Sequence[str]], None], request_ids: Sequence[str]) -> None:
        self.num_finished_early: int = 0
        self._cancel = cancel
        self._open = set(request_ids)
        self._ready: list[TokenOutput] = []
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._failure: Exception | None = None

    async def next_outputs(self, sink: Sink | None = None) -> list[TokenOutput]:
        """All tokens since the last call, at most 256; waits for the first. Empty when every request has ended.

        The tokens of one step come together.

        Args:
            sink: gets the tokens of steps that end while this waits, except the last step's.

        Raises:
            EngineUnavailableError: the engine crashed or stops; earlier tokens are lost.
            RequestError: the engine refuses the requests.
            Exception: any that the sink raised.
        """
        self._sink = sink
        while not self._ready and self._open and self._failure is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._failure is not None:
            raise self._failure
        outputs = self._ready
        self._ready = outputs[_MAX_OUTPUTS:]
        del outputs[_MAX_OUTPUTS:]
        return outputs

    @property
    def is_over(self) -> bool:
        """Whether every request has ended and all tokens have been taken."""
        return not self._open and not self._ready

    def finish(self, request_id: str) -> None:
        """Ends one request early; its later tokens are dropped."""
        if request_id in self._open:
            self._open.discard(request_id)
            self.num_finished_early += 1
            self._cancel([request_id])

    def close(self) -> int:
        """Ends all requests that still run and returns their number; must always be called, even after errors."""
        aborted = len(self._open)
        if aborted:
            self._cancel(list(self._open))
            self._open.clear()
        return aborted

    def put(self, output: TokenOutput) -> bool:
        """Adds a token; returns whether `deliver` must be called after the last token of the step."""
        if output.finish_reason is not None:
            self._open.discard(output.request_id)
        self._ready.append(output)
        return len(self._ready) == 1

    def deliver(self) -> bool:
        """Passes the tokens to the sink or the waiting task; returns whether `write` must be called."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return False  # its task is busy, or has been woken or cancelled
        if self._sink is None or not self._open or self._failure is not None:
            waiter.set_result(None)
            return False
        try:
            is_taken = self._sink.encode(self._ready)
        except Exception as error:  # noqa: BLE001 (belongs to this stream's task, not to the engine's connection)
            self._failure = error
            is_taken = False
        if is_taken:
            self._ready.clear()
        if not is_taken or not self._open:  # a stop string may have ended the last request
            waiter.set_result(None)
        return is_taken

    def write(self) -> None:
        """Writes what the sink has encoded."""
        if self._sink is not None:
            self._sink.write()

    def fail(self, failure: EngineUnavailableError | RequestError) -> None:
        """Ends the stream with an error."""
        self._failure = failure
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
