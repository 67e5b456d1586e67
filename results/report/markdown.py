"""A run's summary in Markdown, for a README or a pull request."""

from bakeoff.results.report.quality import quality_warnings
from bakeoff.results.report.standing import failures_text, merged_warnings, status_text, why_not_all
from bakeoff.results.report.summary_table import layout_of, summary_tables
from bakeoff.results.report.verdict import verdict
from bakeoff.results.run.run import Run
from bakeoff.results.show.markdown import escaped, markdown
from bakeoff.results.text.format import machine_text, moment_text


def markdown_summary(run: Run) -> str:
    """The verdict, the summary's table, what limits both, and where and when it was measured."""
    manifest = run.manifest
    tables = "\n".join(markdown(table) for table in summary_tables(run, layout_of(run)))
    doubts = [
        *filter(None, [failures_text(run), why_not_all(run)]), *merged_warnings(run), *quality_warnings(run),
        *(f"declared: {line}" for line in run.declared),
    ]  # fmt: skip
    where = f"{manifest.name}: {status_text(run)}; {machine_text(manifest)}, {moment_text(manifest.created_utc)}"
    limits = "".join(f"- {escaped(line)}\n" for line in doubts)
    end = f"{escaped(where)}; bakeoff {manifest.bakeoff_version}\n"
    return f"**{escaped(verdict(run).sentence)}**\n\n{tables}\n{limits}\n{end}"
