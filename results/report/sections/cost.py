"""What the traffic of each engine at each load costs, if the experiment states prices."""

from collections.abc import Sequence

from bakeoff.results.report.cost_table import cost_table
from bakeoff.results.report.engine_cell import engine_cells
from bakeoff.results.report.section import Section
from bakeoff.results.run.cost import costs
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Table


def _tables(run: Run) -> Sequence[Table]:
    return [cost_table(costs([run]), engine_cells(run))] if run.manifest.prices else []


SECTIONS = (
    Section(
        id="cost",
        title="Cost",
        shows="cost by token, request and session, and the break-even with an API, if the experiment states prices",
        place=28,
        tables=_tables,
    ),
)
