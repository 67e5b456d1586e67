"""``bakeoff export``: a run as tables, or as result files of other tools."""

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from bakeoff.results.errors import NotExportable, NotWritable
from bakeoff.results.export.benchmark_json import benchmark_json
from bakeoff.results.export.tables import Format, Table, pieces
from bakeoff.results.files.atomic import write_atomic
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.run import Run
from bakeoff.results.views import export_llmd, export_vllm
from bakeoff.results.views.base import is_streamed

Files = dict[str, bytes | Iterable[bytes]]
"""Relative path → contents, possibly in pieces."""


def _streamed(run: Run) -> list[Trial]:
    trials = [trial for trial in run.finished if is_streamed(trial)]
    if not trials:
        raise NotExportable(f"other tools' files hold streams; the answers of {run.path} came whole: use --as json")
    return trials


def _vllm(run: Run) -> Files:
    return {f"{trial.record.id}.json": export_vllm.encode(run, trial) for trial in _streamed(run)}


def _llmd(run: Run) -> Files:
    return {f"{trial.record.id}.json": export_llmd.encode(run, trial) for trial in _streamed(run)}


def _pytest_benchmark(run: Run) -> Files:
    return {"pytest-benchmark.json": benchmark_json({run.manifest.name: run})}


def _tables(run: Run, how: Format) -> Files:
    files: Files = {}
    for which in Table:
        encoded = pieces(run, which, how)
        first = next(encoded, b"")
        if first:
            files[f"{which}.{how}"] = itertools.chain([first], encoded)
    return files


EXPORTS: dict[str, Callable[[Run], Files]] = {
    **{how.value: partial(_tables, how=how) for how in Format},
    "vllm": _vllm,
    "llm-d": _llmd,
    "pytest-benchmark": _pytest_benchmark,
}
"""Exporters by name: our tables, and formats of other tools with one file per trial or per run."""


def export(run: Run, tool: str, out: Path) -> list[Path]:
    """Write the finished trials of ``run``, valid or not, below ``out``.

    Args:
        run: the run.
        tool: name in :data:`EXPORTS`.
        out: folder; created if missing.

    Returns:
        the files.

    Raises:
        NotExportable: there is no finished trial, or no valid one or no streamed one if the format allows no others.
        NotWritable: the folder cannot be made or written.
    """
    if not run.finished:
        raise NotExportable(f"{run.path} has no finished trial to export; see: bakeoff report {run.path}")
    paths: list[Path] = []
    for name, data in EXPORTS[tool](run).items():
        path = out / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NotWritable(f"cannot make the folder {path.parent}: {error.strerror}") from error
        write_atomic(path, data)
        paths.append(path)
    return paths
