"""Profiles the step loop with torch's profiler: a trace for Perfetto or chrome://tracing."""

import os
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from bakeoff.reference_engine.errors import UserMistakeError


class Profiler:
    """Records from `start` to `stop`.

    Args:
        directory: for traces; empty if profiling is off.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory) if directory else None
        self._running: profile | None = None

    def start(self) -> str:
        """Starts a profile; returns the path of its trace.

        Raises:
            UserMistakeError: there is no directory, or a profile runs already.
        """
        if self._directory is None:
            raise UserMistakeError("there is no place for a profile; start the server with --profile-dir")
        if self._running is not None:
            raise UserMistakeError("a profile runs already; POST /stop_profile ends it")
        wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
        self._running = profile(activities=wanted & supported_activities(), record_shapes=True)
        self._running.start()
        return str(self._directory)

    def step(self) -> AbstractContextManager[object]:
        """Marks one step in the trace as `engine step`."""
        return nullcontext() if self._running is None else record_function("engine step")

    def stop(self) -> str:
        """Ends the profile and writes the trace; returns its path. The step loop waits meanwhile.

        Raises:
            UserMistakeError: no profile runs, or the directory cannot be written to.
        """
        running, self._running = self._running, None
        if running is None or self._directory is None:
            raise UserMistakeError("no profile runs; POST /start_profile begins one")
        running.stop()
        path = self._directory / f"step-loop-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.json.gz"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            running.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            raise UserMistakeError(f"the profile cannot be written to {path}: {error}") from error
        return str(path)
