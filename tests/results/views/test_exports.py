"""Exported files have the keys of vLLM's own files and the values of our views.

``tests/results/views/vllm.keys`` are the keys of a file that vLLM wrote; ``make acceptance AREA=views`` writes them.
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


def keys() -> set[str]:
    return set((FOLDER / "vllm.keys").read_text(encoding="utf-8").split())


def test_vllm_has_every_key(run: Run, tmp_path: Path) -> None:
    files = exported(run, "vllm", tmp_path)
    assert set(files) == {f"{trial.record.id}.json" for trial in run.finished}
    for document in files.values():
        assert keys() <= key_paths(document)


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
