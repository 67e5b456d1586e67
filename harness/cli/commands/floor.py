"""The command ``bakeoff lab floor``."""

from typing import TYPE_CHECKING

from bakeoff.harness.cli.command import Command, command
from bakeoff.harness.cli.options import Json
from bakeoff.harness.cli.output import print_line, print_result

if TYPE_CHECKING:
    from bakeoff.results.compare.floor import FloorCell


def floor(*runs: str) -> "list[FloorCell]":
    """Store the noise between runs of this machine, for gates whose baseline is a single run.

    Needs five or more runs of one engine at one commit, at least an hour apart. The floor is stored beside them; later
    gates of the same traffic, model and limits use it.

    Examples
    --------
    bakeoff lab floor runs/A1 runs/A2 runs/A3 runs/A4 runs/A5
    bakeoff lab floor runs/A1@vllm runs/A2@vllm runs/A3@vllm runs/A4@vllm runs/A5@vllm
    bakeoff lab floor runs/A1 runs/A2 runs/A3 runs/A4 runs/A5 --json

    Parameters
    ----------
    runs
        RUN or RUN@ENGINE, five or more.
    """
    from bakeoff.results.compare.aa_runs import floors_of
    from bakeoff.results.compare.floor import store_floors
    from bakeoff.results.compare.sides import root_of, select
    from bakeoff.results.errors import NotComparable

    selected = [select(run) for run in runs]
    roots = {root_of(engine.run) for engine in selected}
    if len(roots) != 1:
        raise NotComparable("a floor needs runs of one folder; give five or more of the same --out")
    floors = floors_of(selected)
    print_line(f"stored: {store_floors(roots.pop(), floors)}")
    return floors


def _show_floors(floors: "list[FloorCell]", *, json: Json = False) -> None:
    """Print floors.

    Parameters
    ----------
    json
        Print the floor as JSON.
    """
    from bakeoff.results.report.floor_table import floor_table
    from bakeoff.results.show.terminal import print_table

    print_result(floors, lambda cells, console: print_table(floor_table(cells), console), json=json)


COMMANDS = [Command("lab floor", command(floor, _show_floors))]
