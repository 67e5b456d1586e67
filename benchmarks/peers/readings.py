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
        """Add the trial of a round."""
        self._trials.setdefault((scenario, client), []).append(trial)

    def fail(self, scenario: str, client: str) -> None:
        """Record that the client failed."""
        self._failed.add((scenario, client))

    def failed(self, scenario: str, client: str) -> bool:
        """Whether the client failed in any round."""
        return (scenario, client) in self._failed

    def failures(self, client: str) -> int:
        """The number of scenarios in which the client failed."""
        return sum(name == client for _, name in self._failed)

    def trials(self, client: str, scenario: str | None = None) -> list[Trial]:
        """The trials of one client, in one scenario or in all."""
        return [
            trial
            for (trial_scenario, trial_client), trials in self._trials.items()
            if trial_client == client and scenario in (None, trial_scenario)
            for trial in trials
        ]

    def median(self, scenario: str, client: str, read: Read) -> float | None:
        """The median over the rounds; None without any trial."""
        trials = self._trials.get((scenario, client))
        return statistics.median(map(read, trials)) if trials else None


def ttft_error_ms(trial: Trial) -> float:
    """Reported mean minus true mean."""
    return (trial.figures.ttft_mean_ms or 0) - (trial.truth.latencies.ttft_mean_ms or 0)


def itl_p99_error_ms(trial: Trial) -> float:
    """Reported p99 minus true p99 of the gaps."""
    return (trial.figures.itl_p99_ms or 0) - (trial.truth.latencies.itl_p99_ms or 0)


def cpu_s_per_1m_chunks(trial: Trial) -> float:
    """CPU time during the load, per million of the server's chunks."""
    return trial.cpu_load_s / trial.truth.chunks * 1e6


def later_cpu_s_per_1m_chunks(trial: Trial) -> float:
    """CPU time after the load, for deferred parsing and the report, per million chunks."""
    return trial.cpu_report_s / trial.truth.chunks * 1e6


def rss_mb(trial: Trial) -> float:
    """Peak memory of all the client's processes."""
    return trial.footprint.peak_rss_bytes / 1e6
