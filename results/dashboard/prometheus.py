"""Prometheus metrics: trials and sensors of running runs, results of complete ones."""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from bakeoff.results.dashboard.live import Live, LiveRuns
from bakeoff.results.errors import ResultsError
from bakeoff.results.index import Index, Query, RunFacts
from bakeoff.results.log.store import RunFolder
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import RunStatus

NAMES = {
    "bakeoff_runs": "Runs in the folder, by status.",
    "bakeoff_trials": "Trials of a running run, by state: planned, running, VALID, INVALID.",
    "bakeoff_exchanges": "Exchanges of the trial under way that ended, warm-up included, by how they ended.",
    "bakeoff_first_byte_p50_seconds": "Median time from planned start to first byte, over its last exchanges.",
    "bakeoff_sensor": "Last sample of each sensor of the trial under way; the unit is in the sensor's name.",
    "bakeoff_result": "Geometric mean over the valid trials of each experiment's newest complete run, by metric.",
}
"""Metric names and their help texts."""
CONTENT_TYPE = CONTENT_TYPE_LATEST


def exposition(index: Index, live: LiveRuns) -> bytes:
    """Content of ``/metrics``.

    Args:
        index: of the folder of runs.
        live: incremental readers of running runs.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(index, live))
    return generate_latest(registry)


class _Collector:
    def __init__(self, index: Index, live: LiveRuns) -> None:
        self._index = index
        self._live_runs = live

    def collect(self) -> Iterator[Metric]:
        yield self._runs()
        running = [self._live(facts) for facts in self._index.runs(Query(status=RunStatus.RUNNING))]
        yield from _of_live(state for state in running if state is not None)
        yield self._results()

    def _runs(self) -> Metric:
        family = _family("bakeoff_runs", "status")
        for status in RunStatus:
            family.add_metric([status.value], self._index.count(Query(status=status)))
        return family

    def _live(self, facts: RunFacts) -> Live | None:
        try:
            return self._live_runs.read(RunFolder.open(self._index.root / facts.id))
        except ResultsError:
            return None  # deleted or damaged since the scan

    def _results(self) -> Metric:
        family = _family("bakeoff_result", "experiment", "engine", "load", "metric", "run")
        for name in self._index.choices()["name"]:
            for run in self._index.runs(Query(name=name, status=RunStatus.COMPLETE, limit=1)):
                for cell in run.cells:
                    for metric in CATALOGUE.keys() & cell.metrics.keys():
                        family.add_metric([name, cell.engine, cell.level, metric, run.id], cell.metrics[metric].mean)
        return family


def _of_live(runs: Iterable[Live]) -> Iterator[Metric]:
    trials = _family("bakeoff_trials", "experiment", "run", "state")
    exchanges = _family("bakeoff_exchanges", "experiment", "run", "trial", "end")
    first_byte = _family("bakeoff_first_byte_p50_seconds", "experiment", "run", "trial")
    sensors = _family("bakeoff_sensor", "experiment", "run", "trial", "source", "sensor")
    for run in runs:
        for trial_state, count in Counter(step.state for step in run.steps).items():
            trials.add_metric([run.name, run.run, trial_state], count)
        if (current := run.current) is None:
            continue
        labels = [run.name, run.run, current.id]
        for end, count in current.ends.items():
            exchanges.add_metric([*labels, end], count)
        if current.first_byte_p50_s is not None:
            first_byte.add_metric(labels, current.first_byte_p50_s)
        for source, values in current.telemetry.items():
            for sensor, value in values.items():
                if isinstance(value, int | float):
                    sensors.add_metric([*labels, source, sensor], value)
    yield from (trials, exchanges, first_byte, sensors)


def _family(name: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, NAMES[name], labels=labels)
