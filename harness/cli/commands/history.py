"""The command ``bakeoff history``."""

from pathlib import Path
from typing import TYPE_CHECKING

from bakeoff.harness.cli.command import Command, Title, command
from bakeoff.harness.cli.exits import EXIT_CANNOT_TELL, EXIT_OK, EXIT_REGRESSION
from bakeoff.harness.cli.options import DEFAULT_OUT, File, Json, Metrics, texts
from bakeoff.harness.cli.output import print_notice, print_result

if TYPE_CHECKING:
    from bakeoff.results.compare.series import Series


def history(
    runs: File = DEFAULT_OUT,
    *,
    name: str | None = None,
    engine: str | None = None,
    branch: str | None = None,
    metric: Metrics = None,
    newest: int | None = None,
) -> "list[Series]":
    """Find between which commits a metric changed.

    Reports the commits around each step; a drift has no single cause.

    Examples
    --------
    bakeoff history
    bakeoff history runs --name nightly --branch main
    bakeoff history --metric ttft_p99_s --newest 60

    Parameters
    ----------
    runs
        Folder of run folders.
    name
        Experiment name; needed if the folder holds several experiments.
    engine
        Engine label. Default: all engines.
    branch
        Only runs of this git branch, as named by the checkout or by CI.
    metric
        Metric to analyse; repeat the option for several. Default: the table's headline metrics.
    newest
        Analyse only this many newest runs, so that older steps no longer count. Default: all.
    """
    from bakeoff.results.history.history import history
    from bakeoff.results.metrics import HEADLINE

    metrics = texts(metric) or HEADLINE
    return history(Path(runs), name, engine=engine, branch=branch, metrics=metrics, newest=newest, notify=print_notice)


def _show_history(series: "list[Series]", *, json: Json = False) -> None:
    """Print series.

    Parameters
    ----------
    json
        Print every series with its points, steps and drifts as JSON.
    """
    from bakeoff.results.report import print_history

    print_result(series, print_history, json=json)


def _exit_code_of_history(series: "list[Series]") -> int:
    from bakeoff.results.compare.series import Outcome, outcome_of

    codes = {
        Outcome.NOT_WORSE: EXIT_OK,
        Outcome.WORSE: EXIT_REGRESSION,
        Outcome.CANNOT_TELL: EXIT_CANNOT_TELL,
    }
    return codes[outcome_of(series)]


COMMANDS = (
    Command(
        "history",
        command(history, _show_history, _exit_code_of_history, no_evidence=EXIT_CANNOT_TELL),
        Title.LOOK,
        40,
    ),
)
