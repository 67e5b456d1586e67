"""Token streams on the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from reference_engine.engine.outputs import TokenOutput
from reference_engine.errors import EngineUnavailableError, RequestError


class TokenStream:
    """The tokens of one or more requests, in the engine's order. Used on the event loop only.

    Args:
        cancel: ends requests in the engine.
        request_ids: of all requests of the stream.

    Attributes:
        num_finished_early: requests that were ended by `finish`.
    """

    def __init__(self, cancel: Callable[[Sequence[str]], None], request_ids: Sequence[str]) -> None:
        self.num_finished_early = 0
        self._cancel = cancel
        self._open = set(request_ids)
        self._ready: deque[TokenOutput] = deque()
        self._arrived = asyncio.Event()
        self._failure: EngineUnavailableError | RequestError | None = None

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
            self._cancel([request_id])

    def close(self) -> int:
        """Ends all requests that still run and says how many; must be called, also after errors and cancellation."""
        aborted = len(self._open)
        if aborted:
            self._cancel(list(self._open))
            self._open.clear()
        return aborted

    def put(self, output: TokenOutput) -> None:
        """Adds a token."""
        if output.finish_reason is not None:
            self._open.discard(output.request_id)
        self._ready.append(output)
        self._arrived.set()

    def fail(self, failure: EngineUnavailableError | RequestError) -> None:
        """Ends the stream with an error."""
        self._failure = failure
        self._arrived.set()
