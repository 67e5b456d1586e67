"""The command that looks for a load: search."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import cyclopts

from harness.cli.options import (
    DEFAULT_OUT,
    EXIT_INTERRUPTED,
    EXIT_INVALID,
    EXIT_OK,
    Json,
    Out,
    Ray,
    Workers,
    standard_output,
)

if TYPE_CHECKING:
    from results import Run

Objectives = Annotated[str, cyclopts.Parameter(name="--slo")]


def search(
    experiment: Path,
    *,
    slo: Objectives,
    over: Literal["rate", "concurrency"] | None = None,
    low: float | None = None,
    high: float | None = None,
    around: str | None = None,
    trials: int = 20,
    minutes: float | None = None,
    resolution: float = 0.05,
    alpha: float = 0.05,
    resume: str | None = None,
    workers: Workers = None,
    ray: Ray = None,
    out: Out = DEFAULT_OUT,
    json: Json = False,
) -> int:
    """Find the highest load at which each engine meets its objectives.

    Each trial may be wrong: the answer has an interval, from noisy bisection over all of them. Exit 0 where every
    engine keeps them at some level, 3 where one keeps them at none or nothing could be told.

    Parameters
    ----------
    experiment
        TOML file; its loads bound the range and give the arrival process.
    slo
        What must hold in each trial: 'ttft_p99<500ms,itl_p99<30ms'.
    over
        Which load; the default is that of the experiment's first one.
    low
        Lowest level; the default is the least of the experiment's loads.
    high
        Highest level; the default is the greatest of them. Of a single load: from a thirty-second to 32 times it.
    around
        Where the answer is expected: a level, or the run of an earlier search. It saves trials.
    trials
        At most so many for each engine.
    minutes
        At most so long for each engine; the trial under way is finished.
    resolution
        The answer is to be known to this share, up or down.
    alpha
        Share of searches whose interval may fail to hold the truth.
    resume
        Reuse the finished trials of an earlier search, where they would be the same measurement: its folder, or latest
        for the last one of this experiment in --out.
    workers
        Processes that send, instead of the file's client.workers.
    ray
        Ray cluster on whose nodes they run, instead of the file's client.ray.
    out
        Folder in which the run's folder is made.
    json
        Print the search as JSON on stdout.
    """
    from harness.conduct.policies.search_config import forewarnings, search_config
    from harness.conduct.run import capacity_search, create_run, run_into
    from harness.experiment.config import load_experiment, with_client
    from results import load
    from results.search import Over
    from results.store import earlier_run

    loaded = with_client(load_experiment(experiment), workers, ray)
    config = search_config(
        loaded, slo, over=None if over is None else Over(over), low=low, high=high, around=around,
        resolution=resolution, alpha=alpha, trials=trials, minutes=minutes,
    )  # fmt: skip
    for line in forewarnings(loaded, config):
        sys.stderr.write(f"note: {line}\n")
    earlier = earlier_run(out, f"{loaded.name}-search", resume) if resume else None
    folder = create_run(loaded, out, earlier, search=config)
    interrupted = run_into(folder, loaded, earlier, capacity_search(config))
    run = load(folder.path)
    _tell(run, json=json)
    return EXIT_INTERRUPTED if interrupted else _exit_code(run)


def _tell(run: "Run", *, json: bool) -> None:
    from harness.cli.reading import print_json
    from results.frontier import frontier
    from results.report import print_frontier, print_search, write_html

    page = write_html(run)
    points = frontier([run])
    if json:
        print_json({"run": str(run.path), "report": str(page), "search": run.search, "frontier": points})
        return
    console = standard_output()
    if run.search is not None:
        print_search(run.search, console)
    if len({point.engine for point in points}) > 1:
        print_frontier(points, console)
    console.print(f"\nreport: {page}", markup=False, highlight=False, soft_wrap=True)


def _exit_code(run: "Run") -> int:
    from results.report.search_lines import search_lines
    from results.text.format import plain

    if run.search is None or not run.search.engines:
        sys.stderr.write(f"bakeoff: {plain(run.manifest.failure or 'nothing was searched')}\n")
        return EXIT_INVALID
    pairs = zip(run.search.engines, search_lines(run.search), strict=True)
    without = [line for one, line in pairs if not one.has_level]
    for line in without:
        sys.stderr.write(f"bakeoff: {plain(line)}\n")
    return EXIT_INVALID if without else EXIT_OK
