"""Records an engine's kernels for a moment after a profiled trial, under the same load.

torch's profiler slows an engine down, so the trial itself runs without it. The profile and the engine's steps of that
moment are stored in the trial's folder, and the trace shows them after the trial.
"""

import asyncio
import contextlib
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from bakeoff.engines import Engine, Server
from bakeoff.engines.base import SupportsKernels, SupportsStepLog
from bakeoff.engines.errors import StepLogMissing
from bakeoff.harness.conduct.step_log import StepLog
from bakeoff.results.files.atomic import write_atomic
from bakeoff.results.log.store import TrialFolder

LOAD_S = 3.0
"""Seconds during which requests are sent."""
_BEFORE_S, _RECORDED_S = 1.0, 1.0


async def record_kernels(
    engine: Engine, server: Server, folder: TrialFolder, load: Callable[[TrialFolder], Awaitable[object]]
) -> str | None:
    """Record for a second; returns why there is no record, or None.

    Args:
        engine: under test.
        server: its running process.
        folder: of the profiled trial.
        load: sends requests for :data:`LOAD_S`, into a folder of their own.
    """
    if not isinstance(engine, SupportsKernels):
        return f"the adapter '{engine.adapter}' cannot record them"
    try:  # the first start of a profiler can take longer than the load
        await engine.start_kernels(server)
        _delete(await engine.stop_kernels(server))
    except StepLogMissing as error:
        return str(error)
    inner = folder.kernels
    inner.create()
    log = StepLog(engine, server, inner) if isinstance(engine, SupportsStepLog) else None
    if log:
        await log.start()
    sending = asyncio.ensure_future(load(inner))
    try:
        await asyncio.sleep(_BEFORE_S)
        await engine.start_kernels(server)
        await asyncio.sleep(_RECORDED_S)
        paths = [Path(path) for path in await engine.stop_kernels(server)]
        write_atomic(inner.clock, str(time.time_ns() - time.monotonic_ns()).encode())
        for number, path in enumerate(sorted(paths)):
            shutil.move(path, inner.path / f"kernels-{number}.json.gz")
    except asyncio.CancelledError:
        sending.cancel()
        raise
    except StepLogMissing as error:
        return str(error)
    except OSError as error:
        return f"{error.filename} cannot be moved here ({error.strerror}): it lies on the engine's machine"
    finally:
        await asyncio.wait([sending])
        if log:
            await log.stop()
    sending.result()  # raises the error that ended the load
    return log.missing if log else None


def _delete(paths: Iterable[str]) -> None:
    with contextlib.suppress(OSError):  # files of another machine are reported when they are to be moved
        for path in paths:
            Path(path).unlink()
