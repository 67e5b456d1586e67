"""Blocking work in threads that ends soon after its task was cancelled."""

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
_CANCELLED: ContextVar[threading.Event | None] = ContextVar("cancelled", default=None)


class WorkCancelled(Exception):
    """The work was given up, because nobody waits for its result."""


async def in_thread(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run the work in a thread; if cancelled, wait for its end, because it may be writing files.

    Long work calls :func:`check_cancelled` often, so that its end comes soon.
    """
    cancelled = threading.Event()
    token = _CANCELLED.set(cancelled)
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.gather(running, return_exceptions=True)
        raise
    finally:
        _CANCELLED.reset(token)


def check_cancelled() -> None:
    """Give up the work of this thread if its task was cancelled.

    Raises:
        WorkCancelled: it was.
    """
    cancelled = _CANCELLED.get()
    if cancelled is not None and cancelled.is_set():
        raise WorkCancelled
