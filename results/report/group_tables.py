"""Tables whose rows are groups of requests: by class, model, address, agent, turn or prompt length."""

from collections.abc import Callable, Sequence

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.report.engine_cell import engine_cells
from bakeoff.results.run.groups import RequestGroup
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Cell, Column, Table, Tone, figures, names
from bakeoff.results.text.format import ABSENT, percent_text, value_text

_FIRST = {"first_visible_p50_s": "ttft_p50_s"}
Extra = tuple[str, Callable[[RequestGroup], str]]
"""Title and text of one more figure, which a terminal leaves out."""


def group_table(
    run: Run,
    groups: Sequence[RequestGroup],
    metrics: Sequence[str],
    *,
    heading: str,
    label: str,
    lead: str = "",
    notes: Sequence[str] = (),
    extra: Sequence[Extra] = (),
) -> Table:
    """A row for each group; columns are the metrics that any of them has.

    Args:
        run: has the engines.
        groups: at least one.
        metrics: names in the catalogue.
        heading: of the groups' names.
        label: as in :class:`~bakeoff.results.show.table.Table`, like the next two.
        lead: see there.
        notes: see there.
        extra: figures behind the metrics.
    """
    known, engine_cell = _known(groups, metrics), engine_cells(run)
    cached = [] if all(group.cached_share is None for group in groups) else ["cached"]
    has_prompts = any(group.prompt_tokens is not None for group in groups)

    def row(group: RequestGroup) -> list[Cell]:
        failed = Tone.BAD if group.failed else Tone.ZERO
        return [
            *(Cell(group.level), engine_cell(group.engine), Cell(group.name)),
            *(Cell(f"{group.requests:,}"), Cell(f"{group.failed:,}", tone=failed)),
            *([Cell(ABSENT if group.prompt_tokens is None else f"{group.prompt_tokens:,.0f}")] if has_prompts else []),
            *(Cell(ABSENT if group.cached_share is None else percent_text(group.cached_share)) for _ in cached),
            Cell(f"{group.output_tokens:,}"),
            *(Cell(_figure(group, name)) for name in known),
            *(Cell(text(group)) for _, text in extra),
        ]

    columns = [
        *names("load", "engine", heading),
        *figures(["requests", "failed"]),
        *([Column("prompt tokens p50", is_wide=True)] if has_prompts else []),
        *figures(cached),
        Column("output tokens", is_wide=True),
        *figures([CATALOGUE[name].title for name in known]),
        *(Column(title, is_wide=True) for title, _ in extra),
    ]
    return Table(label, columns, [row(group) for group in groups], lead=lead, notes=list(notes))


def _known(groups: Sequence[RequestGroup], metrics: Sequence[str]) -> list[str]:
    """The metrics that any group has, without times to the first visible token that are its TTFT."""
    return [
        name
        for name in metrics
        if any(group.metrics[name].value is not None for group in groups)
        and not (name in _FIRST and all(group.metrics[name] == group.metrics[_FIRST[name]] for group in groups))
    ]


def _figure(group: RequestGroup, name: str) -> str:
    value = group.metrics[name].value
    return ABSENT if value is None else value_text(CATALOGUE[name].unit, value)
