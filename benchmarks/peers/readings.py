"""Statistics of one trial, and their medians over rounds."""

import statistics
from collections.abc import Callable

from benchmarks.peers.running import Trial

Read = Callable[[Trial], float]


class Results:
    """Trials by scenario and client."""

    def __init__(self) -> None:
        self._trials: dict[tuple[str, str], list[Trial]] = {}
        self._failed: set[tuple[str, str]] = set()

    def add(self, scenario: str, client: str, trial: Trial) -> None:
        """One more round."""
        self._trials.setdefault((scenario, client), []).append(trial)

    def fail(self, scenario: str, client: str) -> None:
        """The client ended badly."""
        self._failed.add((scenario, client))

    def failed(self, scenario: str, client: str) -> bool:
        """Whether it did so in any round."""
        return (scenario, client) in self._failed

    def failures(self, client: str) -> int:
        """In how many scenarios it did."""
        return sum(who == client for _, who in self._failed)

    def trials(self, client: str, scenario: str | None = None) -> list[Trial]:
        """One client's, of one scenario or of all."""
        return [
            trial
            for (where, who), trials in self._trials.items()
            if who == client and scenario in (None, where)
            for trial in trials
        ]

    def median(self, scenario: str, client: str, read: Read) -> float | None:
        """Over the rounds; None when there was none."""
        trials = self._trials.get((scenario, client))
        return statistics.median(map(read, trials)) if trials else None


def ttft_error_ms(trial: Trial) -> float:
    """Reported mean less true mean."""
    return (trial.figures.ttft_mean_ms or 0) - (trial.truth.latencies.ttft_mean_ms or 0)


def itl_p99_error_ms(trial: Trial) -> float:
    """Reported p99 less true p99 of the gaps."""
    return (trial.figures.itl_p99_ms or 0) - (trial.truth.latencies.itl_p99_ms or 0)


def cpu_s_per_1m_chunks(trial: Trial) -> float:
    """While the load was on, over the server's chunks."""
    return trial.cpu_load_s / trial.truth.chunks * 1e6


def later_cpu_s_per_1m_chunks(trial: Trial) -> float:
    """After the load: parsing that was put off, and the report."""
    return trial.cpu_report_s / trial.truth.chunks * 1e6


def rss_mb(trial: Trial) -> float:
    """Peak over the client's processes."""
    return trial.footprint.peak_rss_bytes / 1e6
