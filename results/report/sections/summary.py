"""Summary table: headline metrics of each engine at each load, with intervals and trials as dots."""

from bakeoff.results.report.clients import uncalibrated_text
from bakeoff.results.report.engine_settings import difference_text
from bakeoff.results.report.quality import unchecked_text
from bakeoff.results.report.section import Section
from bakeoff.results.report.sections.background import metric_tables
from bakeoff.results.report.summary_table import Layout, layout_of, summary_tables

SECTIONS = (
    Section(
        id="summary",
        title="Summary",
        shows=(
            "each engine at each load: geometric mean, 95 % interval, every trial as a dot, the client's error, token "
            "match; every metric, and the reason for each missing one"
        ),
        place=10,
        build=lambda run: {
            "tables": summary_tables(run, layout_of(run)),
            "style": "summary stacked" if layout_of(run) is Layout.BY_ENGINE else "summary",
            "uncalibrated": uncalibrated_text(run),
            "unchecked": unchecked_text(run),
            "difference": difference_text(run),
            "metric_tables": metric_tables(run),
        },
    ),
)
