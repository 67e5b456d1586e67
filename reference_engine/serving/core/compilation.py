"""Compiles the grammars of new requests while the step loop runs."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.sampling.grammar import Grammars


class Compilation:
    """Holds requests until a thread has compiled their grammars, one at a time.

    Args:
        grammars: compile them; None if no request has one.
        wake: called from the thread when a request is ready.
    """

    def __init__(self, grammars: Grammars | None, wake: Callable[[], None]) -> None:
        self._grammars = grammars
        self._wake = wake
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._held: dict[str, Request] = {}
        self._compiled: deque[str] = deque()

    def hold(self, request: Request) -> bool:
        """Holds a request, with its siblings, if its grammar must be compiled first; returns whether it does."""
        grammar = request.sampling.grammar
        if grammar is None or self._grammars is None or self._grammars.is_compiled(grammar):
            return False
        self._held[request.request_id] = request
        self._thread.submit(self._compile, request.request_id, grammar, self._grammars)
        return True

    def cancel(self, request_id: str) -> bool:
        """Drops a request if it is held here; returns whether it was."""
        return self._held.pop(request_id, None) is not None

    def take(self) -> list[Request]:
        """Returns the requests that have become ready since the last call."""
        ready: list[Request] = []
        while self._compiled:
            request = self._held.pop(self._compiled.popleft(), None)
            if request is not None:
                ready.append(request)
        return ready

    def close(self) -> None:
        """Drops all requests."""
        self._held.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _compile(self, request_id: str, grammar: str, grammars: Grammars) -> None:
        try:
            if request_id in self._held:
                grammars.compile(grammar)
        finally:  # errors of a grammar are reported when its request is added
            self._compiled.append(request_id)
            self._wake()
