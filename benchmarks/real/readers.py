"""Do the tools read what we export for them? Their own readers, in their own environments, say so."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.install import executable
from harness.run_import import import_vllm
from results import load
from results.views.exports import export

_GUIDELLM = """
import asyncio, sys
from guidellm.benchmark.outputs.console import GenerativeBenchmarkerConsole
from guidellm.benchmark.schemas import GenerativeBenchmarksReport
report = GenerativeBenchmarksReport.load_file(sys.argv[1])
benchmark = report.benchmarks[0]
found = benchmark.requests.successful
print(len(found), "requests, mean TTFT", benchmark.metrics.time_to_first_token_ms.successful.mean)
assert all(request.time_to_first_token_ms > 0 and request.inter_token_latency_ms > 0 for request in found)
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
"""When a run began and ended, and its labels, are not in the requests that are imported from vLLM's file."""


def read_back(folder: Path, tools: Sequence[str]) -> dict[str, bool]:
    """Export an import of vLLM's first result to each tool and read it there.

    Args:
        folder: as the runs left it.
        tools: those that were run.

    Returns:
        name of a bar → whether it held.
    """
    source = next(folder.glob("vllm/*/*/result.json"), None)
    if source is None:
        return {}
    run = load(import_vllm(source, folder / "runs").path)
    written = {tool: export(run, tool, folder / "exports" / tool) for tool in ("vllm", "guidellm", "aiperf")}
    held = {"vllm_export_is_the_file_that_was_imported": _same(source, written["vllm"][0])}
    if "guidellm" in tools:
        held["guidellm_reads_its_export"] = _reads("guidellm", _GUIDELLM, written["guidellm"][0])
    if "aiperf" in tools:
        held["aiperf_reads_its_export"] = _reads("aiperf", _AIPERF, written["aiperf"][0].parent)
    return held


def _same(theirs: Path, ours: Path) -> bool:
    """Whether our file has every key of theirs, and the same times and figures to a microsecond."""
    wanted: dict[str, Any] = json.loads(theirs.read_text(encoding="utf-8"))
    found: dict[str, Any] = json.loads(ours.read_text(encoding="utf-8"))
    missing = sorted(set(wanted) - set(found))
    apart = sorted(key for key in set(wanted) & set(found) - _UNKNOWN if not _near(wanted[key], found[key]))
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
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    print(f"{tool} reads its export: {said[0] if done.returncode == 0 else said[-5:]}")
    return done.returncode == 0
