"""Commands that measure: demo, run and bench. Also serve."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

from bakeoff.harness.cli.options import (
    DEFAULT_OUT,
    EXIT_INTERRUPTED,
    EXIT_INVALID,
    EXIT_OK,
    Json,
    Out,
    Ray,
    Workers,
    print_notice,
    standard_output,
)

if TYPE_CHECKING:
    from bakeoff.results.log.store import RunFolder


def demo(*, out: Out = DEFAULT_OUT, json: Json = False) -> int:
    """Measure two engines on a small real model: a first result on this machine.

    Takes about five minutes on two cores, after installation. Prints a table and the path of an HTML report.

    Parameters
    ----------
    out
        Parent of the new run folder.
    json
        Print the summary as JSON.
    """
    from bakeoff.harness.conduct.run import create_run, run_into
    from bakeoff.harness.experiment.config import load_experiment

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
        Run folder whose finished trials are reused if they would be the same measurement, or latest for the newest run
        of this experiment in --out.
    workers
        Worker processes of the client. Default: client.workers of the file.
    ray
        Ray cluster that runs the workers: auto, or host:port of its head. Default: client.ray of the file.
    out
        Parent of the new run folder.
    json
        Print the summary as JSON.
    """
    from bakeoff.harness.conduct.run import create_run, run_into
    from bakeoff.harness.experiment.config import load_experiment, with_client
    from bakeoff.results.log.store import earlier_run

    loaded = with_client(load_experiment(experiment), workers, ray)
    earlier = earlier_run(out, loaded.name, resume, print_notice) if resume else None
    folder = create_run(loaded, out, earlier)
    return _reported(folder, interrupted=run_into(folder, loaded, earlier), json=json)


def profile(
    experiment: Path | None = None,
    *,
    kernels: bool = False,
    diff: tuple[str, str] | None = None,
    out: Out = DEFAULT_OUT,
    json: Json = False,
) -> int:
    """Measure where the latency comes from: client, network, queue, prefill, decode, interference.

    Runs one plain and one profiled trial of each engine and level; in the latter the reference engine records its
    steps, and vLLM exports a span of each request. Prints the parts of each request's latency and the bottleneck, and
    writes one Perfetto trace per profiled trial, for ui.perfetto.dev. Other engines get a plain trial.

    Parameters
    ----------
    experiment
        TOML file, as for bakeoff run; its repeats and its comparison of answers are left out.
    kernels
        Also record the engine's kernels for a second after each profiled trial, and add them to the trace.
    diff
        Instead of measuring, compare two profiled runs, RUN or RUN@ENGINE each: which parts the change came from.
    out
        Parent of the new run folder.
    json
        Print the summary as JSON.
    """
    import msgspec

    from bakeoff.harness.conduct.run import create_run, run_into
    from bakeoff.harness.errors import BadExperiment
    from bakeoff.harness.experiment.config import QualityConfig, load_experiment, profiling

    if diff is not None:
        return _compared(*diff, json=json)
    if experiment is None:
        raise BadExperiment("profile needs an experiment file, or --diff RUN RUN")
    loaded = profiling(load_experiment(experiment))
    loaded = msgspec.structs.replace(loaded, repeats=1, quality=QualityConfig(samples=0), kernels=kernels)
    folder = create_run(loaded, out)
    return _reported(folder, interrupted=run_into(folder, loaded), json=json)


def _compared(a: str, b: str, *, json: bool) -> int:
    """Print which parts the change from one profiled run to another came from."""
    from bakeoff.harness.cli.reading import print_json, read
    from bakeoff.results.attribution.difference import differences, side
    from bakeoff.results.report.difference_table import print_differences

    sides = [
        side(read(location).attributions, engine, location)
        for location, _, engine in (text.partition("@") for text in (a, b))
    ]
    changes = differences(*sides)
    if json:
        print_json(changes)
    else:
        print_differences(changes, standard_output())
    return EXIT_OK


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
    profile: bool = False,
    max_foreign_share: float = 0.2,
    workers: Workers = None,
    ray: Ray = None,
    out: Out = DEFAULT_OUT,
    json: Json = False,
) -> int:
    """Measure a running server; its address is enough.

    Detects the server's engine and model, then measures 1 and 8 concurrent requests for 30 seconds each. Answers are
    not compared with the model's; bakeoff run does that if its file names the weights (path in [model]).

    Parameters
    ----------
    url
        Base URL of the server.
    engine
        Adapter that speaks the server's API; see bakeoff engines list. Default: detected.
    model
        Model name to send in requests. Default: the one that the server reports.
    tokenizer
        Folder with the model's tokenizer.json, needed for exact prompt lengths, or approximate. Default: searched in
        the server's model folder and the Hugging Face cache, else approximate.
    workload
        Workload to send; see bakeoff workloads list.
    scale
        Factor on the prompt and answer lengths of presets and traces. Default: 1.
    rate
        Open loop: session arrivals per second.
    arrival
        Arrival process of --rate, or workload for the workload's own arrival times.
    concurrency
        Closed loop: sessions kept alive, pauses included; repeat the option for several levels. Default: 1 and 8.
    duration
        Seconds of the measured window.
    ramp
        Minimum seconds of load before the measured window.
    repeats
        Trials per level; a confidence interval needs at least 2.
    seed
        Random seed of the traffic.
    api_key_env
        Environment variable that holds the server's API key.
    calibrate
        Also measure the client's own error, which the table prints as ±.
    profile
        Repeat each level once while the server records its requests, and print where the latency comes from. The
        server must be on this machine: a reference engine started with --step-log-dir, or vLLM started with
        --otlp-traces-endpoint http://127.0.0.1:4318/v1/traces and the environment that docs/profile.md names.
    max_foreign_share
        Share of all CPU time that other processes may use before a trial is INVALID; 1 disables the check.
    workers
        Worker processes of the client. Default: 1.
    ray
        Ray cluster that runs the workers: auto, or host:port of its head. Default: this machine.
    out
        Parent of the new run folder.
    json
        Print the summary as JSON.
    """
    from bakeoff.engines.base import base_url
    from bakeoff.harness.conduct.run import create_run, run_into
    from bakeoff.harness.experiment.bench import bench_experiment
    from bakeoff.harness.experiment.config import profiling

    experiment = bench_experiment(
        engine=engine, url=url, model=model, tokenizer=tokenizer, workload=workload, scale=scale, rate_per_s=rate,
        arrival=arrival, concurrency=concurrency, duration_s=duration, ramp_s=ramp, repeats=repeats, seed=seed,
        api_key_env=api_key_env, calibrate=calibrate, max_foreign_share=max_foreign_share, workers=workers, ray=ray,
    )  # fmt: skip
    if None in {engine, model, tokenizer}:
        adapter, served = experiment.engines[0].adapter, experiment.model
        sys.stderr.write(f"{base_url(url)}: {adapter}, model {served.name}, tokenizer {served.tokenizer}\n")
    experiment = profiling(experiment) if profile else experiment
    folder = create_run(experiment, out)
    return _reported(folder, interrupted=run_into(folder, experiment), json=json)


def serve(*arguments: Annotated[str, cyclopts.Parameter(allow_leading_hyphen=True)]) -> int:
    """Serve a known model or a checkpoint with the reference engine; bakeoff serve --help lists its options."""
    argv = [sys.executable, "-m", "bakeoff.reference_engine", "serve", *_with_folder(arguments)]
    os.execv(sys.executable, argv)  # noqa: S606  (no shell: the server replaces this process and gets its signals)


def _with_folder(arguments: Sequence[str]) -> list[str]:
    """Options of the engine, which takes folders: a known model's name becomes its folder, served under that name."""
    import argparse

    from bakeoff.engines.models import KNOWN_MODELS
    from bakeoff.harness.cli.listing import named_model

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model", nargs="?")  # a missing value is the engine's to report
    options, others = parser.parse_known_args(arguments)
    if options.model not in KNOWN_MODELS or Path(options.model).exists():
        return list(arguments)
    # The user's own options come later and win.
    return ["--served-model-name", options.model, "--model", str(named_model(options.model).path), *others]


def _reported(folder: "RunFolder", *, interrupted: bool, json: bool) -> int:
    """Print the run's report; returns the command's exit code."""
    from bakeoff.harness.cli.reading import show
    from bakeoff.harness.conduct.run import why_invalid

    run = show(folder.path, json=json)
    if interrupted:
        sys.stderr.write(f"interrupted: {len(run.finished)} of {len(run.manifest.trials)} trials finished\n")
        return EXIT_INTERRUPTED
    if reason := why_invalid(run):
        sys.stderr.write(f"bakeoff: run INVALID: {reason}\n")
        return EXIT_INVALID
    return EXIT_OK
