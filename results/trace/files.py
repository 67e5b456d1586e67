"""Writes one trace per profiled trial into its folder."""

from pathlib import Path

from bakeoff.results.files.atomic import write_atomic
from bakeoff.results.run.run import Run
from bakeoff.results.trace.kernels import read_kernels
from bakeoff.results.trace.trial import trial_trace

NAME = "trace.perfetto-trace"


def write_traces(run: Run) -> list[Path]:
    """Write the traces; returns their paths, in planned order.

    Raises:
        NotWritable: a folder is read-only or full.
    """
    paths: list[Path] = []
    for trial, attribution in zip(run.profiled, run.attributions, strict=True):
        folder = run.folder.trial_of(trial.record)
        path = folder.path / NAME
        kernels = read_kernels(folder)
        write_atomic(path, trial_trace(attribution, trial.requests, trial.telemetry, kernels))
        paths.append(path)
    return paths
