"""The section ``grid`` of ``bakeoff report``."""

from typing import TYPE_CHECKING, Any

from bakeoff.harness.cli.options import Metrics, texts
from bakeoff.harness.cli.output import print_result
from bakeoff.harness.cli.sections.section import Section
from bakeoff.harness.cli.stored import with_notice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bakeoff.results.run.grid import GridReport


def grid(run: str, *, metric: Metrics = None) -> "GridReport":
    """Say which settings of a grid are best, and what each setting does.

    For runs of an experiment whose engines have a grid, as in grid = { "spec.max_num_seqs" = [16, 64] }.

    Parameters
    ----------
    run
        Run folder.
    metric
        Metric to rank settings by and to show effects on; repeat the option for effects on several. Default: goodput
        with an SLO, else output tokens/s; and effects on the median TTFT and TPOT, too.
    """
    from bakeoff.results.errors import NotComparable
    from bakeoff.results.metrics.catalogue import require_known
    from bakeoff.results.run.grid import grid_report

    measured = with_notice(run)
    if not measured.manifest.grid:
        raise NotComparable(
            f'{run} has no grid; give an engine of its experiment grid = {{ "spec.max_num_seqs" = [16, 64] }}'
        )
    return grid_report(measured, require_known(texts(metric)))


def _print(runs: "Sequence[str]", options: "Mapping[str, Any]", json: bool) -> None:
    from bakeoff.results.report import print_grid

    print_result(grid(*runs, **options), print_grid, json=json)


SECTION = Section("grid", _print, ("metric",))
