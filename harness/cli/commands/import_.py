"""The command ``bakeoff import``."""

from pathlib import Path
from typing import Literal

from bakeoff.harness.cli.command import Command, Title
from bakeoff.harness.cli.exits import EXIT_OK
from bakeoff.harness.cli.measured import destination
from bakeoff.harness.cli.options import DEFAULT_OUT, Json, Out


def import_(
    tool: Literal["vllm", "aiperf", "guidellm"], file: Path, /, *, out: Out = DEFAULT_OUT, json: Json = False
) -> int:
    """Import another tool's results.

    Of vllm bench serve, save the file with --save-detailed: otherwise it has no times of single requests. Several
    results in it (--append-result) become repeats, and so does each benchmark of a report of GuideLLM.

    Examples
    --------
    bakeoff import vllm result.json
    bakeoff import aiperf artifacts/
    bakeoff import guidellm benchmarks.json --out runs

    Parameters
    ----------
    tool
        Whose file it is.
    file
        Result file of vllm bench serve, profile_export.jsonl of AIPerf (or its folder; model and load are read from
        profile_export_aiperf.json beside it), or benchmarks.json of GuideLLM.
    out
        Parent of the new run folder, or a store's address, such as s3://bucket/runs, to which runs/RUN is copied.
    json
        Print the summary as JSON.
    """
    from bakeoff.harness.cli.stored import read, show
    from bakeoff.harness.run_import import IMPORTS
    from bakeoff.results.log.remote import RunCopy

    root, store = destination(out)
    run = IMPORTS[tool](file, root)
    if store is not None:
        RunCopy.begin(run, store)
    show(read(run.path), json=json)
    return EXIT_OK


COMMANDS = [Command("import", import_, Title.PREPARE, 70)]
