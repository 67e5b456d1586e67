"""Records an engine's steps during a profiled trial, and moves the files into the trial's folder."""

import shutil
from pathlib import Path

from bakeoff.engines import Engine, Server
from bakeoff.engines.base import SupportsStepLog
from bakeoff.engines.errors import StepLogMissing
from bakeoff.harness.sizing.step_costs import trial_costs
from bakeoff.results.errors import RunUnreadable
from bakeoff.results.log.step_costs import TrialCosts
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import EngineDescription


class StepLog:
    """The record of one trial.

    Args:
        engine: under test.
        server: its running process.
        folder: of the trial.

    Attributes:
        missing: why there is no record; None if there is one.
    """

    def __init__(self, engine: Engine, server: Server, folder: TrialFolder) -> None:
        self._engine = engine
        self._server = server
        self._folder = folder
        self._is_on = False
        self.missing: str | None = "the trial did not reach its load"

    async def start(self) -> None:
        """Start recording; a refusal of the server is noted in :attr:`missing`."""
        assert isinstance(self._engine, SupportsStepLog)
        try:
            await self._engine.start_step_log(self._server)
        except StepLogMissing as error:
            self.missing = str(error)
        else:
            self._is_on, self.missing = True, "the trial was cut off"

    async def stop(self) -> None:
        """Stop recording, and move the files."""
        assert isinstance(self._engine, SupportsStepLog)
        if not self._is_on:
            return
        try:
            paths = [Path(path) for path in await self._engine.stop_step_log(self._server)]
            for kind in ("front-end", "steps"):
                for number, path in enumerate(sorted(path for path in paths if path.name.startswith(kind))):
                    shutil.move(path, self._folder.path / f"{kind}-{number}.frames")
            self.missing = None
        except StepLogMissing as error:
            self.missing = str(error)
        except OSError as error:
            self.missing = f"{error.filename} cannot be moved here ({error.strerror}): it lies on the engine's machine"

    def write_costs(self, description: EngineDescription | None) -> None:
        """Store bytes and operations of the recorded steps, or why they are unknown; nothing without a record.

        Args:
            description: of the engine that took the steps.
        """
        if self.missing is not None:
            return
        try:
            costs = trial_costs(description, self._folder.read_steps())
        except RunUnreadable as error:  # the requests are measured nevertheless
            costs = TrialCosts(missing=str(error))
        self._folder.write_step_costs(costs)
