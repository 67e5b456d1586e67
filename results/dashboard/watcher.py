"""Keeps the index true while somebody looks: scans the folder, and folds new runs in a process of its own.

The work is done where it does not hold up an answer: pages that need a run's logs are made in that process too.
"""

import asyncio
import contextlib
import multiprocessing
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from results.dashboard.live import LiveRuns
from results.errors import RunUnreadable
from results.index import Index
from results.index.store import folded, unreadable

R = TypeVar("R")

SCAN_S = 2.0
_PAGES = 32


class Watcher:
    """An index that follows its folder.

    Args:
        index: of the folder.
        scan_s: a look at the folder is at most so old, in seconds, when somebody asks.
    """

    def __init__(self, index: Index, scan_s: float = SCAN_S) -> None:
        self.index = index
        self.live = LiveRuns()
        self._scan_s = scan_s
        self._looked = -float("inf")
        self._turn = asyncio.Lock()
        self._pool = _pool()
        self._folding: asyncio.Task[None] | None = None
        self._pages: OrderedDict[tuple[Any, ...], str] = OrderedDict()

    async def look(self, *, wait: bool = False) -> None:
        """See to it that the index is no older than it may be.

        Args:
            wait: until it is; else an answer is given from what is known, and the next one will be newer.
        """
        if asyncio.get_running_loop().time() - self._looked < self._scan_s:
            return
        if wait or self._looked < 0:
            await self._scan()
        elif not self._turn.locked():
            self._scanning = asyncio.create_task(self._scan())

    async def settled(self) -> None:
        """Wait until every run that the last scan found is folded."""
        if self._folding is not None:
            await self._folding

    async def made(self, key: tuple[Any, ...], make: Callable[..., str], *arguments: Any) -> str:  # noqa: ANN401
        """A page that ``make(*arguments)`` renders in the other process; the newest are kept.

        Args:
            key: changes whenever the page would.
            make: a function of a module.
            arguments: what it is given.
        """
        if key not in self._pages:
            page = await self._beside(make, *arguments)
            self._pages[key] = page
            while len(self._pages) > _PAGES:
                self._pages.popitem(last=False)
        self._pages.move_to_end(key)
        return self._pages[key]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator["Watcher"]:
        """The watcher, until the block ends."""
        try:
            yield self
        finally:
            if self._folding is not None:
                self._folding.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._folding
            self._pool.shutdown(cancel_futures=True)

    async def _scan(self) -> None:
        async with self._turn:
            loop = asyncio.get_running_loop()
            if loop.time() - self._looked < self._scan_s:
                return
            scan = await asyncio.to_thread(self.index.scan)
            self._looked = loop.time()
            if scan.unfolded and (self._folding is None or self._folding.done()):
                self._folding = asyncio.create_task(self._fold(scan.unfolded))

    async def _fold(self, runs: Mapping[str, str]) -> None:
        for run, stamp in runs.items():
            try:
                facts = await self._beside(folded, self.index.root / run)
            except RunUnreadable as error:
                facts = unreadable(run, error)
            await asyncio.to_thread(self.index.keep, facts, stamp)

    async def _beside(self, work: Callable[..., R], *arguments: Any) -> R:  # noqa: ANN401
        """Do it in the other process; where that was killed, the next piece of work gets a new one."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
        except BrokenProcessPool as error:
            self._pool = _pool()
            raise RunUnreadable("the process that reads runs was killed, by the kernel for its memory?") from error


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
