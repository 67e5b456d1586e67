"""Checks that each tool's own reader, in its own environment, reads our export for that tool."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bakeoff.harness.run_import import import_vllm
from bakeoff.results import load
from bakeoff.results.views.exports import export
from benchmarks.peers.install import executable

_GUIDELLM = """
import asyncio, sys
from guidellm.benchmark.outputs.console import GenerativeBenchmarkerConsole
from guidellm.benchmark.schemas import GenerativeBenchmarksReport
report = GenerativeBenchmarksReport.load_file(sys.argv[1])
benchmark = report.benchmarks[0]
requests = benchmark.requests.successful
print(len(requests), "requests, mean TTFT", benchmark.metrics.time_to_first_token_ms.successful.mean)
assert all(request.time_to_first_token_ms > 0 and request.inter_token_latency_ms > 0 for request in requests)
asyncio.run(GenerativeBenchmarkerConsole().finalize(report))
"""
_AIPERF = """
import sys
from pathlib import Path
from aiperf.common.models.export_models import JsonExportData
from aiperf.plot.core.data_loader import DataLoader
folder = Path(sys.argv[1])
summary = JsonExportData.model_validate_json((folder / "profile_export_aiperf.json").read_bytes())
run = DataLoader().load_run(folder)
print(len(run.requests), "requests, mean TTFT", summary.time_to_first_token.avg)
assert run.requests["time_to_first_token"].notna().all()
"""
_UNKNOWN = {
    "tokenizer_id", "label", "duration", "queue_times", "request_throughput", "output_throughput",
    "total_token_throughput",
}  # fmt: skip
"""Keys that an import of vLLM's file loses, because requests hold neither labels nor the start and end of the run."""


def read_back(folder: Path, tools: Sequence[str]) -> dict[str, bool]:
    """Export an import of vLLM's first result to each tool and read it there.

    Args:
        folder: with the files of the runs.
        tools: the tools that were run.

    Returns:
        name of a bar → whether it passed.
    """
    source = next(folder.glob("vllm/*/*/result.json"), None)
    if source is None:
        return {}
    run = load(import_vllm(source, folder / "runs").path)
    written = {tool: export(run, tool, folder / "exports" / tool) for tool in ("vllm", "guidellm", "aiperf")}
    passed = {"vllm_export_is_the_file_that_was_imported": _same(source, written["vllm"][0])}
    if "guidellm" in tools:
        passed["guidellm_reads_its_export"] = _reads("guidellm", _GUIDELLM, written["guidellm"][0])
    if "aiperf" in tools:
        passed["aiperf_reads_its_export"] = _reads("aiperf", _AIPERF, written["aiperf"][0].parent)
    return passed


def _same(source: Path, export_file: Path) -> bool:
    """Whether our file has every key of the tool's, and values that are equal within a relative error of 1e-6."""
    original: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    exported: dict[str, Any] = json.loads(export_file.read_text(encoding="utf-8"))
    missing = sorted(set(original) - set(exported))
    apart = sorted(key for key in set(original) & set(exported) - _UNKNOWN if not _near(original[key], exported[key]))
    print(f"vLLM's file: keys that ours lacks: {missing or 'none'}; that differ: {apart or 'none'}")
    return not missing and not apart


def _near(a: object, b: object) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_near, a, b))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return abs(a - b) <= 1e-6 * max(1.0, abs(a))
    return a == b


def _reads(tool: str, script: str, path: Path) -> bool:
    done = subprocess.run([executable(tool), "-c", script, str(path)], capture_output=True, text=True, check=False)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    print(f"{tool} reads its export: {lines[0] if done.returncode == 0 else lines[-5:]}")
    return done.returncode == 0
