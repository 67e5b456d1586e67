"""Write runs in the format of pytest-benchmark's ``--benchmark-json``, and read them back.

Readers of such files assume that each number is in seconds and that lower is better: ``pytest-benchmark compare``
prints "time in ms", marks the lowest green, and calls ``1 / mean`` operations per second. So ``benchmarks`` holds only
times: a latency as it is, and a rate as ``1 / rate``, seconds per token or per request, so that the column "OPS" is the
rate. Memory and failures are not times and are left out. Each ``extra_info`` has the original values with unit and
direction. A round is a valid trial, with one value per repeat, never a request.

The member ``bakeoff``, which other readers ignore, holds every finished trial without its log: record, all metrics, the
token match, and times and counts of each measured request. Comparisons need nothing else, so such a file can replace
its runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bakeoff.results.errors import UNDECODABLE, NotExportable, NotImportable
from bakeoff.results.log.run_log import Manifest
from bakeoff.results.metrics import CATALOGUE, HEADLINE, Metric, Unit, Value, absent
from bakeoff.results.metrics.catalogue import COMPARABLE, DEFINITIONS
from bakeoff.results.metrics.quality import QualityRecord
from bakeoff.results.records import RequestRecord, TrialRecord
from bakeoff.results.run.cells import Cell, Trial
from bakeoff.results.run.run import Run, by_repeat
from bakeoff.results.run.work import Work
from bakeoff.results.schema import SCHEMA_VERSION, decoder_of, schema_problem

FORMAT = "5.3.1"
"""Version of pytest-benchmark whose format is written."""
_RATES = (Unit.TOKENS_PER_SECOND, Unit.PER_SECOND)
_WRITTEN = [CATALOGUE[name] for name in HEADLINE if CATALOGUE[name].unit in {Unit.SECONDS, *_RATES}]


class StoredTrial(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finished trial without its log.

    Attributes:
        record: verdict, counts, engine.
        metrics: one value per name of the catalogue.
        quality: token match of its answers; None if they were not compared.
        work: work of its measured requests.
        requests: measured requests with their first and last chunk, and those before them in their sessions; empty if
            the file does not hold them.
    """

    record: TrialRecord
    metrics: dict[str, Value]
    quality: QualityRecord | None = None
    work: Work = Work()
    requests: list[RequestRecord] = []


class StoredRun(msgspec.Struct, frozen=True):
    """A run without its logs.

    Attributes:
        title: name of the experiment, or of the test that made the run.
        manifest: plan and machine.
        finished: finished trials, in plan order.
        file: path of the file it was read from; empty within the file.
    """

    title: str
    manifest: Manifest
    finished: list[StoredTrial]
    file: str = ""

    @property
    def path(self) -> Path:
        """``FILE/RUN_ID``, by which :func:`stored_run` finds it."""
        return Path(self.file, self.manifest.run_id)


class _Section(msgspec.Struct, frozen=True):
    schema_version: int
    definitions: int
    runs: list[StoredRun]


class _File(msgspec.Struct, frozen=True):
    bakeoff: _Section


class _Version(msgspec.Struct, frozen=True):
    schema_version: int
    definitions: int = 1


class _Head(msgspec.Struct, frozen=True):
    """Versions, decoded before the rest."""

    bakeoff: _Version | None = None


def benchmark_json(runs: Mapping[str, Run]) -> bytes:
    """Encode runs as a file.

    Args:
        runs: by title, which begins the full name of its benchmarks; ``pytest-benchmark compare --between`` lines up
            equal full names of several files, so a title should not change from run to run.

    Raises:
        NotExportable: no run has a valid trial.
    """
    benchmarks = [benchmark for title, run in runs.items() for benchmark in _benchmarks(title, run)]
    if not benchmarks:
        paths = ", ".join(str(run.path) for run in runs.values())
        raise NotExportable(f"{paths or 'nothing'} has no valid trial to export; see: bakeoff report RUN")
    last = list(runs.values())[-1].manifest
    whole = {
        "machine_info": _machine(last),
        "commit_info": _commit(last),
        "benchmarks": benchmarks,
        "datetime": last.ended_utc or last.created_utc,
        "version": FORMAT,
        "bakeoff": _Section(SCHEMA_VERSION, DEFINITIONS, [stored(title, run) for title, run in runs.items()]),
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"


def read_benchmark_json(path: Path) -> list[StoredRun]:
    """Read the runs in a file written by :func:`benchmark_json`.

    Raises:
        NotImportable: the file cannot be read, is damaged, has another schema, or was written by pytest-benchmark.
    """
    try:
        data = path.read_bytes()
        head = msgspec.json.decode(data, type=_Head).bakeoff
    except OSError as error:
        raise NotImportable(f"{path} cannot be read: {error.strerror}") from error
    except UNDECODABLE as error:
        raise NotImportable(f"{path} is not a pytest-benchmark file ({error})") from error
    if head is None:
        raise NotImportable(f"{path} holds no trials; write it with bakeoff export RUN --as pytest-benchmark --out DIR")
    if problem := schema_problem(head.schema_version):
        raise NotImportable(f"{path} {problem}")
    if not COMPARABLE <= head.definitions <= DEFINITIONS:
        raise NotImportable(
            f"{path} has values of metric definitions version {head.definitions}, not {DEFINITIONS}; "
            "export its run again with this version of Bakeoff"
        )
    try:
        runs = decoder_of(_File, Path("export"), head.schema_version)(data).bakeoff.runs
    except UNDECODABLE as error:
        raise NotImportable(f"{path} is damaged ({error}); export its run again") from error
    return [msgspec.structs.replace(run, file=str(path), finished=[*map(_complete, run.finished)]) for run in runs]


def stored_run(path: Path, title: str | None = None) -> StoredRun:
    """Read one run of a file.

    Args:
        path: path of the file, or ``FILE/RUN_ID`` if it holds several runs.
        title: title of the run, if the file holds several and the path names none.

    Raises:
        NotImportable: as for :func:`read_benchmark_json`; or the run is missing or ambiguous.
    """
    file, run_id = (path, None) if path.is_file() else (path.parent, path.name)
    runs = read_benchmark_json(file)
    chosen = runs if run_id is None else [run for run in runs if run.manifest.run_id == run_id]
    if len(chosen) > 1:
        chosen = [run for run in chosen if run.title == title]
    if len(chosen) != 1:
        choices = ", ".join(f"{run.path} ({run.title})" for run in runs)
        raise NotImportable(f"{path} does not name one run; it holds {choices or 'none'}")
    return chosen[0]


def stored(title: str, run: Run, file: str = "") -> StoredRun:
    """Strip a run of its logs.

    Args:
        title: title of the run.
        run: the run with its logs.
        file: where the run can be read from.
    """
    finished = [StoredTrial(t.record, t.metrics, t.quality, t.work, _compared_requests(t)) for t in run.finished]
    return StoredRun(title, run.manifest, finished, file)


def _compared_requests(trial: Trial) -> list[RequestRecord]:
    """What comparisons need of a trial's requests (:mod:`bakeoff.results.compare.common_part`)."""
    index, turn = trial.inside.ints("index"), trial.inside.ints("turn")
    wanted = np.union1d(index, index - np.minimum(1, turn))
    return [_ends_only(request) for request in trial.load.take(np.isin(trial.load.ints("index"), wanted))]


def _ends_only(request: RequestRecord) -> RequestRecord:
    """A request without its text and the chunks between the first and the last."""
    times_ns, tokens = request.chunk_ns[:1], request.chunk_tokens
    later = sum(t_ns > times_ns[0] for t_ns in request.chunk_ns)
    if times_ns:
        tokens = [sum(tokens[: len(tokens) - later])]
    if later:
        times_ns, tokens = [*times_ns, request.chunk_ns[-1]], [*tokens, request.total_chunk_tokens - tokens[0]]
    return RequestRecord(
        index=request.index, phase=request.phase, session=request.session, turn=request.turn,
        planned_ns=request.planned_ns, ended_ns=request.ended_ns, sent_ns=request.sent_ns,
        requested_input_tokens=request.requested_input_tokens, requested_output_tokens=request.requested_output_tokens,
        cycle=request.cycle, part=request.part, outcome=request.outcome,
        chunk_ns=times_ns, chunk_tokens=tokens,
        prompt_tokens=request.prompt_tokens, output_tokens=request.output_tokens, cached_tokens=request.cached_tokens,
        finish_reason=request.finish_reason, is_right=request.is_right, is_streamed=request.is_streamed,
        model=request.model, traffic_class=request.traffic_class,
    )  # fmt: skip


def _complete(trial: StoredTrial) -> StoredTrial:
    """Add the metrics that the version that wrote the file did not know."""
    unknown = absent("the file does not contain it")
    return msgspec.structs.replace(trial, metrics={name: trial.metrics.get(name, unknown) for name in CATALOGUE})


def _benchmarks(title: str, run: Run) -> Iterator[dict[str, Any]]:
    for cell in run.cells:
        trials = run.trials_of(cell)
        for metric in _WRITTEN:
            values = by_repeat(trials, cell.load, metric.name)
            if metric.name in cell.intervals and min(values.values()) > 0:
                yield _benchmark(title, cell, metric, values) | {"extra_info": _extra(run, cell, metric, values)}


def _benchmark(title: str, cell: Cell, metric: Metric, values: Mapping[int, float]) -> dict[str, Any]:
    inverse = metric.unit in _RATES
    test, bracket, rest = title.partition("[")
    param = f"{cell.engine}-{cell.load}-{metric.name}"
    group = f"1 / {metric.title} at {cell.load} (OPS: {metric.unit})" if inverse else f"{metric.title} at {cell.load}"
    return {
        "group": group,
        "name": f"{test.rpartition('::')[2]}{bracket}{rest}[{param}]",
        "fullname": f"{title}[{param}]",
        "params": {"engine": cell.engine, "load": cell.load, "metric": metric.name},
        "param": param,
        "options": {},
        "stats": _stats([1 / value if inverse else value for value in values.values()]),
    }


def _extra(run: Run, cell: Cell, metric: Metric, values: Mapping[int, float]) -> dict[str, Any]:
    """Original values, with unit, direction and origin."""
    record = run.valid_trials_of(cell)[0].record
    engine = record.engine_description
    return {
        "metric": metric.name,
        "unit": metric.unit.value,
        "better": metric.better.value,
        "stats_of": "1 / value" if metric.unit in _RATES else "value",
        "repeats": list(values),
        "values": list(values.values()),
        "interval_95": cell.intervals[metric.name],
        "run_id": run.manifest.run_id,
        "workload": cell.workload,
        "workload_sha256": record.workload_sha256,
        "model": engine.model if engine else None,
        "model_sha256": engine.model_sha256 if engine else None,
    }


def _stats(data: Sequence[float]) -> dict[str, Any]:
    """Statistics under pytest-benchmark's names: Hazen's quartiles, and fences at 1.5 IQR (Tukey 1977)."""
    x = np.asarray(data)
    mean, stddev = float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else 0.0
    q1, median, q3 = (float(q) for q in np.quantile(x, (0.25, 0.5, 0.75), method="hazen"))
    fences = (q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1))
    within = x[(x >= fences[0]) & (x <= fences[1])]
    far, beyond = int((abs(x - mean) > stddev).sum()), len(x) - len(within)
    return {
        "min": float(x.min()), "max": float(x.max()), "mean": mean, "stddev": stddev, "rounds": len(x),
        "median": median, "iqr": q3 - q1, "q1": q1, "q3": q3, "iqr_outliers": beyond, "stddev_outliers": far,
        "outliers": f"{far};{beyond}", "ld15iqr": float(within.min()), "hd15iqr": float(within.max()),
        "ops": 1 / mean, "total": float(x.sum()), "data": list(data), "iterations": 1,
    }  # fmt: skip


def _machine(manifest: Manifest) -> dict[str, Any]:
    environment = manifest.environment
    return {
        "node": manifest.host,
        "processor": environment.get("cpu"),
        "python_version": environment.get("python"),
        "release": environment.get("kernel"),
        "system": environment.get("system"),
        "cpu": {"brand_raw": environment.get("cpu"), "count": environment.get("cores")},
        "memory_bytes": environment.get("memory_bytes"),
        "gpus": environment.get("gpus"),
    }


def _commit(manifest: Manifest) -> dict[str, Any]:
    """Commit of the code under test; its times are unknown."""
    source = manifest.source
    return {
        "id": source.commit.removesuffix("+") if source else "unversioned",
        "time": None,
        "author_time": None,
        "dirty": source is not None and source.commit.endswith("+"),
        "project": manifest.name,
        "branch": (source.branch if source else None) or "(unknown)",
    }
