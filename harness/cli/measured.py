"""Runs that commands measure: how they are made, shown and judged."""

from pathlib import Path
from typing import TYPE_CHECKING

from bakeoff.harness.cli.command import REHEARSING, Rehearsed
from bakeoff.harness.cli.exits import EXIT_INVALID, EXIT_OK
from bakeoff.harness.cli.options import DEFAULT_OUT, DryRun, File, Json
from bakeoff.harness.cli.output import print_notice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from bakeoff.harness.experiment.config import Experiment
    from bakeoff.results import Run
    from bakeoff.results.log.store import RunFolder


def is_address(source: object) -> bool:
    """Whether the source of an experiment is the URL of a running server."""
    return str(source).lower().startswith(("http://", "https://"))


def workload_data(
    name: str, options: "Sequence[str]", scale: float | None, input_tokens: int | None, output_tokens: int | None
) -> "dict[str, Any]":
    """The workload of an experiment, as in its file.

    Args:
        name: a workload's, or a path.
        options: ``key=value`` of the workload.
        scale: factor on the lengths of presets and traces.
        input_tokens: length of each prompt; with the next, the workload is ``random``.
        output_tokens: length of each answer.

    Raises:
        BadExperiment: lengths are given beside a workload that has its own.
        WorkloadError: the workload or an option is unknown.
    """
    from bakeoff.harness.errors import BadExperiment
    from bakeoff.harness.traffic.profile.selection import select

    lengths = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    given = {key: value for key, value in lengths.items() if value is not None}
    if given and name not in {"chat", "random"}:
        raise BadExperiment(f"--input and --output are lengths of random requests; {name} has its own: leave them out")
    selected = select("random" if given else name, options)
    return {
        "name": selected.name,
        "options": {**selected.options, **given, **({} if scale is None else {"scale": scale})},
    }


def destination(out: File) -> tuple[Path, str | None]:
    """The folder of new runs, and the store to which they are copied while they go on, of ``--out``."""
    from bakeoff.results.log.remote import is_remote

    return (DEFAULT_OUT, str(out)) if is_remote(out) else (Path(out), None)


def measured(experiment: "Experiment", out: File, earlier: "RunFolder | None" = None) -> "Run":
    """Measure an experiment; in a dry run of its command, only check it.

    Raises:
        RunInterrupted: Ctrl-C; it has the finished trials.
        Rehearsed: it was a dry run, and everything is in place.
    """
    from bakeoff import results
    from bakeoff.engines.proxies import ignored_proxy
    from bakeoff.harness.cli.stored import read
    from bakeoff.harness.conduct.run import create_run, rehearse, run_into
    from bakeoff.harness.errors import RunInterrupted

    for server in experiment.engines:
        if (url := server.address) and (proxy := ignored_proxy(url)):
            print_notice(
                f"the proxy {proxy} is not used: loads go to {url} directly, since its delay would be measured"
            )
    if REHEARSING.get():
        rehearse(experiment)
        raise Rehearsed
    root, store = destination(out)
    folder = create_run(experiment, root, earlier)
    interrupted = run_into(folder, experiment, earlier, store=store)
    if interrupted:
        raise RunInterrupted(results.load(folder.path))  # `report` decodes what is left
    return read(folder.path)


def show_measured(run: "Run", *, dry_run: DryRun = False, json: Json = False) -> None:  # noqa: ARG001
    """Print a run's table, and write its page and traces.

    Parameters
    ----------
    dry_run
        Say what would run and for how long, check everything, and send nothing.
    json
        Print the summary as JSON.
    """
    from bakeoff.harness.cli.stored import show

    show(run, json=json)


def exit_code(run: "Run") -> int:
    """3 if the run is no evidence, with the reason on stderr."""
    from bakeoff.harness.conduct.run import why_invalid

    if reason := why_invalid(run):
        print_notice(f"run INVALID: {reason}")
        return EXIT_INVALID
    return EXIT_OK
