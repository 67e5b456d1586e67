"""docs/dashboard.md is correct: addresses, metrics, the Grafana dashboard, the DuckDB recipes."""

import json
import re
from pathlib import Path

import pytest

from bakeoff.results.dashboard.app import routes
from bakeoff.results.dashboard.prometheus import NAMES
from bakeoff.results.records import Phase
from bakeoff.results.run.run import Run

duckdb = pytest.importorskip("duckdb")
DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "dashboard.md").read_text(encoding="utf-8")
GRAFANA = json.loads((DOCS / "grafana" / "bakeoff.json").read_text(encoding="utf-8"))


def test_every_address_and_every_metric_is_told() -> None:
    for route in routes:
        path = route.path.replace("{run}", "RUN").partition("/export/")[0]  # type: ignore[attr-defined]
        assert f"`{path}" in PAGE, path
    for name in NAMES:
        assert f"| `{name}` |" in PAGE


def test_grafana_asks_for_nothing_else() -> None:
    asked = [target["expr"] for panel in GRAFANA["panels"] for target in panel["targets"]]
    asked += [entry["query"]["query"] for entry in GRAFANA["templating"]["list"] if entry["type"] == "query"]
    names = {name for text in asked for name in re.findall(r"bakeoff_\w+", text)}
    assert names <= NAMES.keys()
    assert len(asked) >= 8
    places = [tuple(panel["gridPos"].values()) for panel in GRAFANA["panels"]]
    assert len({panel["id"] for panel in GRAFANA["panels"]}) == len(set(places)) == len(places)


def test_duckdb_reads_run_folders(demo: Run) -> None:
    first, second = (
        text.replace("runs/RUN", str(demo.path)).replace("runs/*", f"{demo.path.parent}/*")
        for text in re.search(r"```sql\n(.*?)```", PAGE, re.DOTALL)[1].split(";\n")[:2]  # type: ignore[index]
    )
    trials = duckdb.sql(first).fetchall()
    assert len(trials) == len(demo.finished)
    assert {row[0] for row in trials} == {demo.path.name}
    slowest = duckdb.sql(second).fetchall()
    requests = demo.requests
    ok = requests[(requests.outcome == "ok") & (requests.phase == Phase.MEASURED.value)]
    assert [round(row[1], 6) for row in slowest] == [round(1e3 * s, 6) for s in ok.ttft_s.nlargest(10)]
