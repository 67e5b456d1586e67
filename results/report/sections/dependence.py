"""What latency depends on: the length of the prompt, and the batch."""

from bakeoff.results.report.charts.scatter import MAX_DOTS
from bakeoff.results.report.section import Section
from bakeoff.results.report.sections.batches import MIN_TOKENS, batch_figures
from bakeoff.results.report.sections.lengths import length_panels

SECTIONS = (
    Section(
        id="dependence",
        title="What latency depends on",
        shows="TTFT against prompt length; ITL against the requests in flight, and against the engine's own batch",
        place=50,
        folded=True,
        build=lambda run: {
            "length_panels": length_panels(run),
            "max_dots": MAX_DOTS,
            "batch_figures": batch_figures(run),
            "min_batch_tokens": MIN_TOKENS,
        },
    ),
)
