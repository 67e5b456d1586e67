"""Keeps the index true while somebody looks: scans the folder, and folds new runs in a process of its own.

The work is done where it does not hold up an answer: pages that need a run's logs are made in that process too.
"""

import asyncio
import contextlib
import multiprocessing
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from results.index import Index
from results.index.store import folded

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
        self._scan_s = scan_s
        self._looked = -float("inf")
        self._turn = asyncio.Lock()
        self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
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
            page = await asyncio.get_running_loop().run_in_executor(self._pool, make, *arguments)
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
        loop = asyncio.get_running_loop()
        for run, stamp in runs.items():
            facts = await loop.run_in_executor(self._pool, folded, self.index.root / run)
            await asyncio.to_thread(self.index.keep, facts, stamp)
