"""The steps of a virtual engine that batches: each gives one token to every running answer."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from bakeoff.harness.virtual.answer import Answer
from bakeoff.harness.virtual.draws import Batched
from bakeoff.results.units import NS_PER_S

T = TypeVar("T")


class _Row(Generic[T]):
    """An answer in progress; ``until_chunk`` tokens are missing from its next chunk."""

    __slots__ = ("answer", "begun_ns", "factor", "hangs", "key", "prompt_tokens", "until_chunk")

    def __init__(
        self, key: T, answer: Answer, prompt_tokens: int, begun_ns: int, factor: float, *, hangs: bool
    ) -> None:
        self.key = key
        self.answer = answer
        self.prompt_tokens = prompt_tokens
        self.begun_ns = begun_ns
        self.factor = factor
        self.hangs = hangs
        self.until_chunk = answer.chunk_tokens[0] if answer.chunk_tokens else 1


class Batch(Generic[T]):
    """The answers that an engine computes together.

    Args:
        service: duration of a step.
        finished: called with the key of each answer that has ended, and the time.
    """

    def __init__(self, service: Batched, finished: Callable[[T, int], None]) -> None:
        self._service = service
        self._finished = finished
        self._running: dict[T, _Row[T]] = {}
        self._joining: dict[T, _Row[T]] = {}
        self._is_stepping = False

    def add(self, key: T, answer: Answer, prompt_tokens: int, begun_ns: int, factor: float, *, hangs: bool) -> None:
        """Begin an answer with the next step.

        Args:
            key: identifies it.
            answer: its chunks; their times are added as they are sent.
            prompt_tokens: to compute in its first step.
            begun_ns: when it got a slot: now.
            factor: multiplies the time of its steps.
            hangs: whether it never ends.
        """
        self._joining[key] = _Row(key, answer, prompt_tokens, begun_ns, factor, hangs=hangs)
        if not self._is_stepping:
            self._is_stepping = True
            # later in this instant, so that answers that begin together share their first step
            asyncio.get_running_loop().call_at(begun_ns / NS_PER_S, self._step, begun_ns)

    def __contains__(self, key: T) -> bool:
        return key in self._running or key in self._joining

    def remove(self, key: T) -> None:
        """Stop an answer; the step in progress takes no less time."""
        self._running.pop(key, None)
        self._joining.pop(key, None)

    def _step(self, now_ns: int) -> None:
        rows, prompt_tokens = [*self._running.values(), *self._joining.values()], 0
        if not rows:
            self._is_stepping = False
            return
        for row in self._joining.values():
            prompt_tokens += row.prompt_tokens
        self._running |= self._joining
        self._joining.clear()
        service = self._service
        step_s = service.step_s + len(rows) * service.row_s + prompt_tokens * service.prompt_token_s
        end_ns = now_ns + round(step_s * max(row.factor for row in rows) * NS_PER_S)
        asyncio.get_running_loop().call_at(end_ns / NS_PER_S, self._end, rows, end_ns)

    def _end(self, rows: list[_Row[T]], now_ns: int) -> None:
        """Send the tokens of a step; answers that end free their slots before the next step begins."""
        ended: list[T] = []
        for row in rows:
            if row.key not in self._running:
                continue
            times_ns, counts = row.answer.chunk_ns, row.answer.chunk_tokens
            if len(times_ns) < len(counts):
                row.until_chunk -= 1
                if row.until_chunk == 0:
                    times_ns.append(now_ns - row.begun_ns)
                    row.until_chunk = counts[len(times_ns)] if len(times_ns) < len(counts) else 1
            if len(times_ns) == len(counts):
                del self._running[row.key]
                if not row.hangs:
                    ended.append(row.key)
        for key in ended:
            self._finished(key, now_ns)
        self._step(now_ns)
