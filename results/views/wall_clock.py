"""Wall-clock times for file formats that need them. Labels only: durations never come from them."""

from datetime import UTC, datetime

from bakeoff.results.run.cells import Trial
from bakeoff.results.run.run import Run
from bakeoff.results.units import NS_PER_S


class WallClock:
    """Converts a run's monotonic times to wall-clock time; the first trial starts at the creation of the run."""

    def __init__(self, run: Run) -> None:
        self._first_ns = min((trial.record.started_ns for trial in run.finished), default=0)
        try:
            created = datetime.fromisoformat(run.manifest.created_utc)
        except ValueError:
            created = datetime.fromtimestamp(0, UTC)
        self._created_s = created.timestamp()

    def seconds(self, t_ns: float) -> float:
        """Seconds since 1970."""
        return self._created_s + (t_ns - self._first_ns) / NS_PER_S

    def nanoseconds(self, t_ns: float) -> int:
        """Nanoseconds since 1970."""
        return round(self._created_s) * NS_PER_S + round(t_ns - self._first_ns)

    def text(self, t_ns: float) -> str:
        """``2026-11-20T10:15:00.123456``, UTC."""
        return datetime.fromtimestamp(self.seconds(t_ns), UTC).replace(tzinfo=None).isoformat()

    def started(self, trial: Trial) -> datetime:
        """Start of a trial."""
        return datetime.fromtimestamp(self.seconds(trial.record.started_ns), UTC)
