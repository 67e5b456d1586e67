"""What MLflow and a collector of OTLP metrics receive, through their own packages, is the run's summary."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from bakeoff.results import NotExportable, Run, load
from bakeoff.results.errors import NotReachable
from bakeoff.results.export.services import Service, send
from tests.results.builders import FAST, LOADS, SLOW, Sheet, build_run

SHEET = Sheet(engines={"fast": FAST, "slow": SLOW}, loads=LOADS[:2], repeats=3, requests=8, invalid=())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load(build_run(tmp_path_factory.mktemp("runs"), SHEET))


def summary_of(run: Run) -> dict[tuple[str, ...], float]:
    """Engine, workload, load, metric and bound → value, from the table of the summary."""
    return {
        (row["engine"], row["workload"], row["load"], row["metric"], bound): row[bound]
        for row in run.summary.to_dict("records")
        for bound in ("centre", "low", "high")
        if row[bound] == row[bound] and row[bound] is not None
    }


class Collector(HTTPServer):
    """Answers each export with ``status`` and keeps it."""

    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: list[str] = []
        self.bodies: list[bytes] = []


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.paths.append(self.path)
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class's name)
        """Print nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_collector_gets_the_summary(run: Run, collector: Collector) -> None:
    address = f"http://127.0.0.1:{collector.server_port}"
    assert send(run, Service.OTLP, address) == [f"{address}/v1/metrics"]
    (body,) = collector.bodies
    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    about = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert about["service.name"] == "bakeoff"
    assert about["bakeoff.run"] == run.manifest.run_id
    received: dict[tuple[str, ...], float] = {}
    units: dict[str, str] = {}
    for metric in resource.scope_metrics[0].metrics:
        units[metric.name] = metric.unit
        for point in metric.gauge.data_points:
            own = {each.key: each.value.string_value for each in point.attributes}
            key = (own["engine"], own["workload"], own["load"], metric.name.removeprefix("bakeoff."), own["bound"])
            received[key] = point.as_double
    assert received == pytest.approx(summary_of(run))
    assert units["bakeoff.ttft_p50_s"] == "s"
    assert units["bakeoff.output_tokens_per_s"] == "{token}/s"


def test_a_collector_that_refuses_is_an_error_of_one_line(run: Run, collector: Collector) -> None:
    collector.status = 400
    address = f"http://127.0.0.1:{collector.server_port}/other"
    with pytest.raises(NotReachable, match=r"other did not take the figures: .*400"):
        send(run, Service.OTLP, address)
    assert collector.paths == ["/other"]


def test_mlflow_gets_a_run_per_cell_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    address = (tmp_path / "mlruns").as_uri()
    made = send(run, Service.MLFLOW, address)
    assert send(run, Service.MLFLOW, address) == made, "a second export updates them"
    received: dict[tuple[str, ...], float] = {}
    for folder in (path.parent for path in tmp_path.rglob("params")):
        params = {path.name: path.read_text() for path in (folder / "params").iterdir()}
        for path in (path for path in (folder / "metrics").rglob("*") if path.is_file()):
            name, _, bound = path.relative_to(folder / "metrics").as_posix().partition(".")
            value = float(path.read_text().splitlines()[-1].split()[1])
            received[params["engine"], params["workload"], params["load"], name, bound or "centre"] = value
        assert (folder / "tags" / "bakeoff.run").read_text() == run.manifest.run_id
    assert received == pytest.approx(summary_of(run))
    assert len(made) == len(run.cells)


def test_what_cannot_be_sent_is_an_error_of_one_line(run: Run, tmp_path: Path) -> None:
    for address in ("tables", "http://", "http://[::1", "http:/127.0.0.1"):
        with pytest.raises(NotExportable, match="no collector's address"):
            send(run, Service.OTLP, address)
    with pytest.raises(NotReachable, match="did not take the figures"):
        send(run, Service.MLFLOW, str(tmp_path / "mlruns"))
    nothing = load(build_run(tmp_path, Sheet(repeats=1, requests=4, finished=0, run_id="nothing")))
    with pytest.raises(NotExportable, match="no valid trial"):
        send(nothing, Service.OTLP, "http://127.0.0.1:9")
