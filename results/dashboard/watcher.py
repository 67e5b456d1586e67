"""Keeps the index up to date on request: scans the folder and folds new runs in a worker process.

Pages that need a run's logs are rendered in that process too, so that they do not block other requests.
"""

import asyncio
import contextlib
import multiprocessing
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from bakeoff.results.dashboard.live import LiveRuns
from bakeoff.results.errors import RunUnreadable
from bakeoff.results.index import Index
from bakeoff.results.index.store import folded, unreadable

R = TypeVar("R")

SCAN_S = 2.0
_PAGES = 32


class Watcher:
    """Index that follows its folder, and a cache of rendered pages.

    Args:
        index: of the folder.
        scan_s: age in seconds after which a request triggers a scan.
    """

    def __init__(self, index: Index, scan_s: float = SCAN_S) -> None:
        self.index = index
        self.live: LiveRuns = LiveRuns()
        self._scan_s = scan_s
        self._scan_began = self._scanned = -float("inf")
        self._scan_lock = asyncio.Lock()
        self._pool = _pool()
        self._folding: asyncio.Task[None] | None = None
        self._pages: OrderedDict[tuple[Any, ...], str] = OrderedDict()

    async def refresh(self, *, wait: bool = False) -> None:
        """Scan the folder if the last scan is too old.

        Args:
            wait: wait for the scan; otherwise scan in the background, except for the first scan.
        """
        if asyncio.get_running_loop().time() - self._scanned < self._scan_s:
            return
        if wait or self._scanned < 0:
            await self._scan()
        elif not self._scan_lock.locked():
            self._scanning = asyncio.create_task(self._scan())

    async def rescan(self) -> None:
        """Scan the folder, however young the last scan is: for a run that it may have missed."""
        asked = asyncio.get_running_loop().time()
        async with self._scan_lock:
            if self._scan_began < asked:
                await self._scan_folder()

    async def all_folded(self) -> None:
        """Wait until all runs of the last scan are folded."""
        if self._folding is not None:
            await self._folding

    async def rendered(self, key: tuple[Any, ...], render: Callable[..., str], *arguments: Any) -> str:  # noqa: ANN401
        """Page that ``render(*arguments)`` returns in the worker process; the most recent pages are cached.

        Args:
            key: cache key, which changes whenever the page would.
            render: a module-level function.
            arguments: of ``render``.
        """
        if key not in self._pages:
            page = await self._in_worker(render, *arguments)
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
        async with self._scan_lock:
            loop = asyncio.get_running_loop()
            if loop.time() - self._scanned >= self._scan_s:
                await self._scan_folder()

    async def _scan_folder(self) -> None:
        loop = asyncio.get_running_loop()
        self._scan_began = loop.time()
        scan = await asyncio.to_thread(self.index.scan)
        self._scanned = loop.time()
        if scan.unfolded and (self._folding is None or self._folding.done()):
            self._folding = asyncio.create_task(self._fold(scan.unfolded))

    async def _fold(self, runs: Mapping[str, str]) -> None:
        for run, stamp in runs.items():
            try:
                facts = await self._in_worker(folded, self.index.root / run)
            except RunUnreadable as error:
                facts = unreadable(run, error)
            await asyncio.to_thread(self.index.keep, facts, stamp)

    async def _in_worker(self, work: Callable[..., R], *arguments: Any) -> R:  # noqa: ANN401
        """Run a function in the worker process; a killed worker is replaced for the next call."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
        except BrokenProcessPool as error:
            self._pool = _pool()
            raise RunUnreadable("the process that reads runs was killed; the kernel may be out of memory") from error


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
