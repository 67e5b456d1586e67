"""The command ``bakeoff demo``."""

from pathlib import Path
from typing import TYPE_CHECKING

from bakeoff.harness.cli.command import Command, Title, command
from bakeoff.harness.cli.measured import exit_code, measured, show_measured
from bakeoff.harness.cli.options import (
    DEFAULT_OUT,
    Out,
)

if TYPE_CHECKING:
    from bakeoff.results import Run


def demo(*, out: Out = DEFAULT_OUT) -> "Run":
    """Measure two engines on a small real model: a first result.

    Takes about five minutes on two cores, after installation. Prints a table and the path of an HTML report.

    Examples
    --------
    bakeoff demo
    bakeoff demo --out results
    bakeoff demo --dry-run

    Parameters
    ----------
    out
        Parent of the new run folder, or a store's address, such as s3://bucket/runs: the run is measured in runs/, and
        copied there while it goes on.
    """
    from bakeoff.harness.experiment.reading import load_experiment

    return measured(load_experiment(Path(__file__).parents[2] / "demo.toml"), out)


COMMANDS = (
    Command(
        "demo",
        command(
            demo,
            show_measured,
            exit_code,
            closing="next: bakeoff bench http://HOST:PORT measures a server that runs already",
        ),
        Title.MEASURE,
        10,
    ),
)
