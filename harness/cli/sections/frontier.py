"""The section ``frontier`` of ``bakeoff report``."""

from typing import TYPE_CHECKING, Any

from bakeoff.harness.cli.output import print_result
from bakeoff.harness.cli.sections.section import Section
from bakeoff.harness.cli.stored import each_once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bakeoff.results.run.frontier import FrontierPoint


def frontier(*runs: str) -> "list[FrontierPoint]":
    """Print the Pareto frontier of per-user speed and total throughput.

    Parameters
    ----------
    runs
        Run folders, whose engines are compared.
    """
    from bakeoff.results.errors import NoEvidence, NotComparable
    from bakeoff.results.run.frontier import frontier

    if not runs:
        raise NotComparable("name the folder of a run, such as those under runs/")
    points = frontier(each_once(runs))
    if not points:
        raise NoEvidence("these runs have no valid trial with TPOT and throughput; give other run folders")
    return points


def _print(runs: "Sequence[str]", options: "Mapping[str, Any]", json: bool) -> None:
    from bakeoff.results.report import print_frontier

    print_result(frontier(*runs, **options), print_frontier, json=json)


SECTION = Section("frontier", _print, takes_several=True)
