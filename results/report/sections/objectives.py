"""Whether each engine meets the objectives at each load."""

from msgspec.structs import replace

from bakeoff.results.report.objective_table import objective_tables
from bakeoff.results.report.section import Section

SECTIONS = (
    Section(
        id="objectives",
        title="Objectives",
        shows="whether each engine meets the objectives of `--slo` at each load",
        place=12,
        tables=lambda run: [replace(table, title="") for table in objective_tables(run)],  # it is the section's
    ),
)
