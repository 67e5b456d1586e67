"""Send the figures of a run to a service that collects them: MLflow, or a collector of OpenTelemetry's metrics (OTLP).

Each service gets the cells of the summary (an engine at a load): the centre and the 95 % interval over the valid
trials, by the names of the catalogue. Trials and requests stay in the run. The services' own packages speak to them, so
their own environment variables hold, such as ``MLFLOW_TRACKING_TOKEN`` and ``OTEL_EXPORTER_OTLP_HEADERS``.
"""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from bakeoff.installation import how_to_install
from bakeoff.results.errors import NotExportable, NotReachable
from bakeoff.results.log.remote import without_user
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import RunStatus
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.run import Run
from bakeoff.results.units import NS_PER_S

_MAX_PARAMETER = 500
"""Characters of a parameter's value that every MLflow server takes."""
_MLFLOW = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # it would report its use to its makers
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # it would try for minutes
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # which is ours
}
"""Settings of the client of MLflow, unless the user's environment has others."""
_MLFLOW_STATUS = {RunStatus.COMPLETE: "FINISHED", RunStatus.RUNNING: "RUNNING", RunStatus.INTERRUPTED: "KILLED"}
"""Others have failed."""
_ADDRESS, _SLASHES = re.compile(r"https?://[^/\s\[\]]|https?://\[[0-9a-fA-F:.]+\]"), 2
"""A collector's address, and the slashes of one without a path."""
_METRICS_PATH = "/v1/metrics"
_UCUM = {"tok/s": "{token}/s", "/s": "{request}/s", "/h": "{session}/h", "B": "By", "share": "1", "": "1"}
"""Units that the Unified Code for Units of Measure, which OpenTelemetry prescribes, writes otherwise."""


class Service(StrEnum):
    """Where figures can be sent."""

    MLFLOW = "mlflow"
    OTLP = "otlp"


def send(run: Run, service: Service, address: str) -> list[str]:
    """Send the figures of a run's valid trials.

    Args:
        run: a loaded run.
        service: kind of the service.
        address: MLflow's tracking URI, or the URL of the collector, whose path defaults to ``/v1/metrics``.

    Returns:
        what was made or changed there: MLflow's runs, one per cell, or the collector's address.

    Raises:
        NotExportable: no trial is valid, a collector's address is none, or the service's package is not installed.
        NotReachable: the service did not take the figures.
    """
    cells = [cell for cell in run.cells if cell.intervals]
    if not cells:
        raise NotExportable(f"{run.path} has no valid trial to export; see: bakeoff report {run.path}")
    try:
        return _SENDERS[service](run, cells, address)
    except ImportError as error:
        raise NotExportable(f"--as {service} needs a package: {how_to_install(service)}") from error


def _figures(cell: Cell) -> Iterator[tuple[str, str, float]]:
    """Metric, which bound of its interval, and value."""
    for name, interval in cell.intervals.items():
        for bound in ("centre", "low", "high"):
            if (value := getattr(interval, bound)) is not None:
                yield name, bound, value


def _about_run(run: Run) -> dict[str, str]:
    """What is known of the whole run, by the attributes of OpenTelemetry where it has them."""
    manifest = run.manifest
    source = manifest.source
    known = {
        "bakeoff.run": manifest.run_id,
        "bakeoff.version": manifest.bakeoff_version,
        "bakeoff.status": manifest.status.value,
        "host.name": manifest.host,
        "gen_ai.request.model": (manifest.experiment.get("model") or {}).get("name"),
        "vcs.ref.head.revision": source.commit if source else None,
        "vcs.ref.head.name": source.branch if source else None,
    }
    return {name: str(value) for name, value in known.items() if value}


def _about_cell(cell: Cell) -> dict[str, str]:
    return {"engine": cell.engine, "workload": cell.workload, "load": cell.load}


def _moments_ns(run: Run) -> tuple[int, int]:
    """Start and end of the run by the wall clock; the start where it has no end."""
    begun = run.manifest.created_utc
    times = [datetime.fromisoformat(moment).timestamp() for moment in (begun, run.manifest.ended_utc or begun)]
    return round(times[0] * NS_PER_S), round(times[1] * NS_PER_S)


def _settings(run: Run, cell: Cell) -> dict[str, str]:
    """Settings of the cell's engine by their path, such as ``options.max_num_seqs``."""
    engines = run.manifest.experiment.get("engines", [])
    own = next((each for each in engines if (each.get("label") or each.get("adapter")) == cell.engine), {})
    return {name: str(value)[:_MAX_PARAMETER] for name, value in _flat(own) if value not in (None, "", [])}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _send_to_mlflow(run: Run, cells: list[Cell], address: str) -> list[str]:
    """One run of MLflow per cell, in the experiment of the run's name; a cell that is there already is updated."""
    for name, value in _MLFLOW.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient  # noqa: PLC0415  (an extra)
    from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415
    from mlflow.exceptions import MlflowException  # noqa: PLC0415

    start_ms, end_ms = (moment // 1_000_000 for moment in _moments_ns(run))
    ended = _MLFLOW_STATUS.get(run.status, "FAILED")
    tags, made = _about_run(run), []
    try:
        client = MlflowClient(tracking_uri=address)
        known = client.get_experiment_by_name(run.manifest.name)
        experiment = known.experiment_id if known else client.create_experiment(run.manifest.name)
        sent = client.search_runs([experiment], f"tags.`bakeoff.run` = '{run.manifest.run_id}'")
        by_cell = {each.data.tags.get("bakeoff.cell"): each.info.run_id for each in sent}
        for cell in cells:
            about = _about_cell(cell)
            key = " ".join(about.values())
            own_tags = {**tags, "bakeoff.cell": key, "bakeoff.trials": f"{cell.valid} of {cell.planned} valid"}
            target = by_cell.get(key) or client.create_run(
                experiment, start_time=start_ms, tags=own_tags, run_name=f"{cell.engine} {cell.load}"
            ).info.run_id  # fmt: skip
            parameters = {**about, **_settings(run, cell)}
            client.log_batch(
                target,
                metrics=[
                    Metric(name if bound == "centre" else f"{name}.{bound}", value, end_ms, 0)
                    for name, bound, value in _figures(cell)
                ],
                params=[Param(name, value) for name, value in list(parameters.items())[:100]],
                tags=[RunTag(name, value) for name, value in own_tags.items()],
            )
            client.update_run(target, ended) if ended == "RUNNING" else client.set_terminated(target, ended, end_ms)
            made.append(f"{without_user(address.rstrip('/'))}/#/experiments/{experiment}/runs/{target}")
    except MlflowException as error:
        reason = " ".join(str(error).split())
        raise NotReachable(without_user(f"{address} did not take the figures: {reason}")) from error
    return made


def _send_by_otlp(run: Run, cells: list[Cell], address: str) -> list[str]:
    """Gauges at the end of the run; ``bound`` tells the centre from the ends of its interval."""
    from opentelemetry.exporter.otlp.proto.http import metric_exporter  # noqa: PLC0415  (an extra)
    from opentelemetry.sdk.metrics import export as sdk  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    if not _ADDRESS.match(address):
        raise NotExportable(f"{without_user(address)} is no collector's address, such as http://127.0.0.1:4318")
    start_ns, end_ns = _moments_ns(run)
    points: dict[str, list[Any]] = {}
    for cell in cells:
        for name, bound, value in _figures(cell):
            attributes = {**_about_cell(cell), "bound": bound}
            points.setdefault(name, []).append(sdk.NumberDataPoint(attributes, start_ns, end_ns, value))
    metrics = []
    for name, of_metric in points.items():
        metric = CATALOGUE[name]
        unit = _UCUM.get(metric.unit, metric.unit.value)
        metrics.append(sdk.Metric(f"bakeoff.{name}", metric.definition, unit, sdk.Gauge(of_metric)))
    resource = Resource({"service.name": "bakeoff", **_about_run(run)})
    scope = sdk.ScopeMetrics(InstrumentationScope("bakeoff", run.manifest.bakeoff_version), metrics, "")
    endpoint = address if address.rstrip("/").count("/") > _SLASHES else address.rstrip("/") + _METRICS_PATH
    said = _Lines()
    logger = logging.getLogger(metric_exporter.__name__)
    logger.addHandler(said)
    propagates, logger.propagate = logger.propagate, False  # its lines become one of ours
    try:
        exporter = metric_exporter.OTLPMetricExporter(endpoint)
        result = exporter.export(sdk.MetricsData([sdk.ResourceMetrics(resource, [scope], "")]))
    finally:
        logger.removeHandler(said)
        logger.propagate = propagates
    if result is not sdk.MetricExportResult.SUCCESS:
        raise NotReachable(without_user(f"{endpoint} did not take the figures: {'; '.join(said.lines)}"))
    return [without_user(endpoint)]


class _Lines(logging.Handler):
    """Keeps the first and the last line that were logged: the cause, and what became of it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines = [*self.lines[:1], " ".join(record.getMessage().split())]


_SENDERS: dict[Service, Callable[[Run, list[Cell], str], list[str]]] = {
    Service.MLFLOW: _send_to_mlflow,
    Service.OTLP: _send_by_otlp,
}
