"""Checks that our export for vLLM's tools has all that their own file has."""

import json
from pathlib import Path
from typing import Any

from bakeoff.harness.run_import import import_vllm
from bakeoff.results import load
from bakeoff.results.views.exports import export

_UNKNOWN = {
    "tokenizer_id", "label", "duration", "queue_times", "request_throughput", "output_throughput",
    "total_token_throughput",
}  # fmt: skip
"""Keys that an import of vLLM's file loses, because requests hold neither labels nor the start and end of the run."""


def exports_are_whole(folder: Path) -> dict[str, bool]:
    """Export an import of vLLM's first result again; returns whether it passed, by name of the bar.

    Args:
        folder: with the files of the runs.
    """
    source = next(folder.glob("vllm/*/*/result.json"), None)
    if source is None:
        return {}
    run = load(import_vllm(source, folder / "runs").path)
    return {"vllm_export_is_the_file_that_was_imported": _same(source, export(run, "vllm", folder / "exports")[0])}


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
