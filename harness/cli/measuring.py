"""Commands that measure: demo, run, bench; and serve."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

from harness.cli.options import DEFAULT_OUT, EXIT_INTERRUPTED, EXIT_INVALID, EXIT_OK, Json, Out, Ray, Workers

if TYPE_CHECKING:
    from results.store import RunFolder


def demo(*, out: Out = DEFAULT_OUT, json: Json = False) -> int:
    """Measure two engines on a small real model: a first result on this machine.

    Takes about five minutes on two cores and prints a table and the path of an HTML report.

    Parameters
    ----------
    out
        Folder in which the run's folder is made.
    json
        Print the summary as JSON on stdout.
    """
    from harness.conduct.run import create_run, run_into
    from harness.experiment.config import load_experiment

    experiment = load_experiment(Path(__file__).parents[1] / "demo.toml")
    folder = create_run(experiment, out)
    return _reported(folder, interrupted=run_into(folder, experiment), json=json)


def run(
    experiment: Path,
    *,
    resume: str | None = None,
    workers: Workers = None,
    ray: Ray = None,
    out: Out = DEFAULT_OUT,
    json: Json = False,
) -> int:
    """Run an experiment file.

    Parameters
    ----------
    experiment
        TOML file; docs/experiment.md describes every key.
    resume
        Take over the finished trials of an earlier run, where they would be the same measurement: its folder, or
        latest for the last one of this name in --out.
    workers
        Processes that send, instead of the file's client.workers.
    ray
        Ray cluster on whose nodes they run (auto, or host:port of its head), instead of the file's client.ray.
    out
        Folder in which the run's folder is made.
    json
        Print the summary as JSON on stdout.
    """
    from harness.conduct.run import create_run, run_into
    from harness.experiment.config import load_experiment, with_client
    from results.store import earlier_run

    loaded = with_client(load_experiment(experiment), workers, ray)
    earlier = earlier_run(out, loaded.name, resume) if resume else None
    folder = create_run(loaded, out, earlier)
    return _reported(folder, interrupted=run_into(folder, loaded, earlier), json=json)


def bench(
    *,
    url: str,
    engine: str | None = None,
    model: str | None = None,
    tokenizer: str | None = None,
    workload: str = "chat",
    scale: float | None = None,
    rate: float | None = None,
    arrival: str = "poisson",
    concurrency: list[int] | None = None,
    duration: float = 30.0,
    ramp: float = 5.0,
    repeats: int = 1,
    seed: int = 1,
    api_key_env: str | None = None,
    calibrate: bool = True,
    max_foreign_share: float = 0.2,
    workers: Workers = None,
    ray: Ray = None,
    out: Out = DEFAULT_OUT,
    json: Json = False,
) -> int:
    """Measure a running server; its address is enough.

    The server is asked for its engine and model; one user and eight users at once are measured for 30 seconds each.

    Parameters
    ----------
    url
        Its base URL.
    engine
        Adapter whose dialect the server speaks (bakeoff engines list); the default is to ask it.
    model
        The model name that requests use; the default is to ask the server.
    tokenizer
        Folder with the model's tokenizer.json, so that prompts have exact lengths, or approximate. The default is to
        look where the server loaded the model from and in the hub's cache, else approximate.
    workload
        What is sent: bakeoff workloads list.
    scale
        Factor on the workload's lengths (presets and traces).
    rate
        Open loop: arrivals of sessions per second.
    arrival
        Open loop: an arrival process, or workload for the workload's own; used with rate.
    concurrency
        Closed loop: requests kept in flight; once for each level. The default is 1 and 8.
    duration
        Seconds of the measured window.
    ramp
        Seconds at least for which the load is on before the window.
    repeats
        Trials; an interval needs at least 2.
    seed
        Of the traffic.
    api_key_env
        Environment variable with the key that requests carry.
    calibrate
        Measure the client's own error too, after the first trial; without it nothing is printed as ±.
    max_foreign_share
        A trial in which other processes use more of the time of all cores is INVALID; 1 voids none.
    workers
        Processes that send.
    ray
        Ray cluster on whose nodes they run: auto, or host:port of its head.
    out
        Folder in which the run's folder is made.
    json
        Print the summary as JSON on stdout.
    """
    from engines.base import base_url
    from harness.conduct.run import create_run, run_into
    from harness.experiment.bench import bench_experiment
    from harness.experiment.config import with_client

    experiment = bench_experiment(
        engine=engine, url=url, model=model, tokenizer=tokenizer, workload=workload, scale=scale, rate_per_s=rate,
        arrival=arrival, concurrency=concurrency, duration_s=duration, ramp_s=ramp, repeats=repeats, seed=seed,
        api_key_env=api_key_env, calibrate=calibrate, max_foreign_share=max_foreign_share,
    )  # fmt: skip
    if None in {engine, model, tokenizer}:
        adapter, served = experiment.engines[0].adapter, experiment.model
        sys.stderr.write(f"{base_url(url)}: {adapter}, model {served.name}, tokenizer {served.tokenizer}\n")
    experiment = with_client(experiment, workers, ray)
    folder = create_run(experiment, out)
    return _reported(folder, interrupted=run_into(folder, experiment), json=json)


def serve(*arguments: Annotated[str, cyclopts.Parameter(allow_leading_hyphen=True)]) -> int:
    """Serve a model with the reference engine: bakeoff serve --model FOLDER; bakeoff serve --help lists all options."""
    argv = [sys.executable, "-m", "reference_engine", "serve", *arguments]
    os.execv(sys.executable, argv)  # noqa: S606  (no shell; this process becomes the server)


def _reported(folder: "RunFolder", *, interrupted: bool, json: bool) -> int:
    """Show the run; the exit code says whether it is evidence."""
    from harness.cli.reading import show
    from harness.conduct.run import why_invalid

    run = show(folder.path, json=json)
    if interrupted:
        sys.stderr.write(f"interrupted: {len(run.finished)} of {len(run.manifest.trials)} trials are whole\n")
        return EXIT_INTERRUPTED
    if reason := why_invalid(run):
        sys.stderr.write(f"bakeoff: run INVALID: {reason}\n")
        return EXIT_INVALID
    return EXIT_OK
