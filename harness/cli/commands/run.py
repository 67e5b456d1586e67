"""The command ``bakeoff run``."""

from typing import TYPE_CHECKING

from bakeoff.harness.cli.command import Command, Title, command
from bakeoff.harness.cli.measured import destination, exit_code, measured, show_measured
from bakeoff.harness.cli.options import (
    DEFAULT_OUT,
    Out,
    Ray,
    Source,
    Workers,
)
from bakeoff.harness.cli.output import print_notice

if TYPE_CHECKING:
    from bakeoff.results import Run


def run(
    experiment: Source,
    *,
    resume: str | None = None,
    workers: Workers = None,
    ray: Ray = None,
    out: Out = DEFAULT_OUT,
) -> "Run":
    """Run an experiment file.

    Examples
    --------
    bakeoff run experiment.toml
    bakeoff run experiment.toml --dry-run
    bakeoff run experiment.toml --resume latest

    Parameters
    ----------
    experiment
        TOML file; docs/experiment.md describes every key. Or a run folder, whose experiment is repeated.
    resume
        Run folder whose finished trials are reused if they would be the same measurement, or latest for the newest run
        of this experiment in --out.
    workers
        Worker processes of the client. Default: client.workers of the file.
    ray
        Ray cluster that runs the workers: auto, or host:port of its head. Default: client.ray of the file.
    out
        Parent of the new run folder, or a store's address, such as s3://bucket/runs: the run is measured in runs/, and
        copied there while it goes on.
    """
    from bakeoff.harness.experiment.reading import loaded_experiment, with_client
    from bakeoff.results.log.store import earlier_run

    loaded = with_client(loaded_experiment(experiment), workers, ray)
    earlier = earlier_run(destination(out)[0], loaded.name, resume, print_notice) if resume else None
    return measured(loaded, out, earlier)


COMMANDS = [Command("run", command(run, show_measured, exit_code), Title.MEASURE, 30)]
