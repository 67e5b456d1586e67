"""Exported files have the keys of the tools' own files and the values of our views.

``tests/results/views/*.keys`` are the keys of files that the tools wrote; ``make acceptance AREA=views`` writes them,
and reads our exports with the tools' own readers.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from bakeoff.results import NotExportable, NotWritable, Run, load
from bakeoff.results.records import Load
from bakeoff.results.views import VIEWS, Log
from bakeoff.results.views.exports import EXPORTS, export
from tests.acceptance.real.tools import key_paths
from tests.results.builders import FAST, SLOW, Sheet, build_run

FOLDER = Path(__file__).parents[1] / "views"
LOADS = (Load(concurrency=4), Load(rate_per_s=2.0, arrival="poisson"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One engine without failures and one with failures, in a closed and an open loop."""
    sheet = Sheet(engines={"fast": FAST, "slow": SLOW}, loads=LOADS, repeats=1, invalid=())
    return load(build_run(tmp_path_factory.mktemp("runs"), sheet))


def exported(run: Run, tool: str, out: Path) -> dict[str, Any]:
    """Every exported JSON file by its name."""
    paths = export(run, tool, out)
    return {str(path.relative_to(out)): json.loads(path.read_text()) for path in paths if path.suffix == ".json"}


def keys_of(tool: str) -> set[str]:
    return set((FOLDER / f"{tool}.keys").read_text(encoding="utf-8").split())


def test_vllm_has_every_key(run: Run, tmp_path: Path) -> None:
    files = exported(run, "vllm", tmp_path)
    assert set(files) == {f"{trial.record.id}.json" for trial in run.finished}
    for document in files.values():
        assert keys_of("vllm") <= key_paths(document)


def test_vllm_says_what_the_view_says(run: Run, tmp_path: Path) -> None:
    files = exported(run, "vllm", tmp_path)
    for trial in run.finished:
        document = files[f"{trial.record.id}.json"]
        figures = VIEWS["vllm"].view(Log.of(trial)).figures
        for name, tag in {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2EL": "e2el"}.items():
            assert document[f"mean_{tag}_ms"] == figures[f"Mean {name} (ms)"].value.value
            assert document[f"p99_{tag}_ms"] == figures[f"P99 {name} (ms)"].value.value
        assert document["completed"] + document["failed"] == document["num_prompts"] == trial.record.planned_requests
        assert document["output_throughput"] == figures["Output token throughput (tok/s)"].value.value
        lists = (
            "input_lens",
            "output_lens",
            "ttfts",
            "itls",
            "latencies",
            "start_times",
            "queue_times",
            "errors",
            "bakeoff_chunk_tokens",
        )
        assert {len(document[name]) for name in lists} == {document["num_prompts"]}
        failed = [i for i, error in enumerate(document["errors"]) if error]
        assert len(failed) == document["failed"]
        assert all(document["ttfts"][i] == document["output_lens"][i] == 0 for i in failed)


def test_aiperf_has_only_its_keys_and_the_ones_that_matter(run: Run, tmp_path: Path) -> None:
    files = exported(run, "aiperf", tmp_path)
    for name, document in files.items():
        assert name.endswith("/profile_export_aiperf.json")
        paths = {path for path in key_paths(document) if not path.startswith((".metadata", ".error_"))}
        assert paths <= keys_of("aiperf")
        assert {".time_to_first_token", ".inter_token_latency", ".request_latency", ".output_token_throughput"} <= paths
        percentiles = {f"p{q}" for q in (1, 5, 10, 25, 50, 75, 90, 95, 99)}
        names = percentiles | {"unit", "avg", "min", "max", "std", "count", "sum"}
        assert set(document["time_to_first_token"]) == names


def test_aiperf_has_a_line_for_every_request(run: Run, tmp_path: Path) -> None:
    files = exported(run, "aiperf", tmp_path)
    for trial in run.finished:
        text = (tmp_path / trial.record.id / "profile_export.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        summary = files[f"{trial.record.id}/profile_export_aiperf.json"]
        good = [line for line in lines if "error" not in line]
        assert len(lines) == trial.record.planned_requests
        assert len(good) == summary["request_count"]["avg"] == summary["time_to_first_token"]["count"]
        ttfts = [line["metrics"]["time_to_first_token"]["value"] for line in good]
        assert sum(ttfts) / len(ttfts) == pytest.approx(summary["time_to_first_token"]["avg"])
        failures = sum(error["count"] for error in summary["error_summary"])
        assert failures == len(lines) - len(good) == summary.get("error_request_count", {"avg": 0})["avg"]
        assert lines[0]["metadata"]["request_start_ns"] > 1_700_000_000_000_000_000, "a time of day"


def test_guidellm_is_one_report_with_a_benchmark_for_each_trial(run: Run, tmp_path: Path) -> None:
    (report,) = exported(run, "guidellm", tmp_path).values()
    assert len(report["benchmarks"]) == len(run.finished)
    assert [benchmark["config"]["strategy"]["type_"] for benchmark in report["benchmarks"]] == [
        "concurrent", "poisson", "concurrent", "poisson",
    ]  # fmt: skip
    tool_paths = keys_of("guidellm")
    paths = key_paths(report)
    assert {path for path in paths - tool_paths if ".config" not in path} <= {
        f".benchmarks[].metrics.request_{name}.{status}"
        for name in ("dispatch_delay", "scheduled_latency")
        for status in ("successful", "errored", "incomplete", "total")
    }
    lacking = {path for path in tool_paths - paths if path.startswith(".benchmarks[].metrics.")}
    optional = {"root_dispatch_delay", "slo_attainment", "request_goodput", "turns"}
    optional_paths = {path for path in lacking if path.split(".")[3].startswith(("turn", *optional))}
    assert {path for path in lacking - optional_paths if ".text." not in path} == set()


def test_guidellm_says_what_the_view_says(run: Run, tmp_path: Path) -> None:
    (report,) = exported(run, "guidellm", tmp_path).values()
    for trial, benchmark in zip(run.finished, report["benchmarks"], strict=True):
        figures = VIEWS["guidellm"].view(Log.of(trial)).figures
        metrics = benchmark["metrics"]
        pairs = {
            "TTFT ms": "time_to_first_token_ms",
            "ITL ms": "inter_token_latency_ms",
            "TPOT ms": "time_per_output_token_ms",
            "Request Latency Sec": "request_latency",
        }
        for name, tag in pairs.items():
            statistics = metrics[tag]["successful"]
            assert statistics["mean"] == figures[f"{name} Mean"].value.value
            assert statistics["percentiles"]["p99"] == figures[f"{name} p99"].value.value
        assert metrics["request_totals"]["total"] == trial.record.planned_requests
        assert len(benchmark["requests"]["errored"]) == metrics["request_totals"]["errored"]
        assert benchmark["duration"] == pytest.approx(figures["Dur Sec"].value.value, abs=1e-5)
        first = benchmark["requests"]["successful"][0]
        timings = first["info"]["timings"]
        ttft_ms = 1e3 * (timings["first_token_iteration"] - timings["request_start"])
        assert first["time_to_first_token_ms"] == pytest.approx(ttft_ms, abs=1e-2)


@pytest.mark.parametrize("tool", EXPORTS)
def test_a_folder_that_cannot_be_made_is_one_line(run: Run, tool: str, tmp_path: Path) -> None:
    if tool == "parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match="cannot make the folder"):
        export(run, tool, tmp_path / "file" / "out")


@pytest.mark.parametrize("tool", EXPORTS)
def test_a_run_without_a_finished_trial_is_one_line(tool: str, tmp_path: Path) -> None:
    run = load(build_run(tmp_path, Sheet(engines={"fast": FAST}, loads=LOADS[:1], finished=0)))
    with pytest.raises(NotExportable, match="no finished trial"):
        export(run, tool, tmp_path / "out")
