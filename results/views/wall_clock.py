"""Times of day for files that want them. A label: durations never come from it."""

from datetime import UTC, datetime

from results.run import Run, Trial
from results.units import NS_PER_S


class WallClock:
    """Monotonic nanoseconds of a run as seconds since 1970, its first trial beginning when the run was made."""

    def __init__(self, run: Run) -> None:
        self._first_ns = min((trial.record.started_ns for trial in run.finished), default=0)
        try:
            made = datetime.fromisoformat(run.manifest.created_utc)
        except ValueError:
            made = datetime.fromtimestamp(0, UTC)
        self._made_s = made.timestamp()

    def seconds(self, t_ns: float) -> float:
        """Seconds since 1970."""
        return self._made_s + (t_ns - self._first_ns) / NS_PER_S

    def nanoseconds(self, t_ns: float) -> int:
        """The same in nanoseconds."""
        return round(self._made_s) * NS_PER_S + round(t_ns - self._first_ns)

    def text(self, t_ns: float) -> str:
        """``2026-11-20T10:15:00.123456``, UTC."""
        return datetime.fromtimestamp(self.seconds(t_ns), UTC).replace(tzinfo=None).isoformat()

    def started(self, trial: Trial) -> datetime:
        """When a trial began."""
        return datetime.fromtimestamp(self.seconds(trial.record.started_ns), UTC)
