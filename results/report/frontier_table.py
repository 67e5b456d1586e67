"""The Pareto frontier as a table."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from bakeoff.results.metrics import Unit
from bakeoff.results.run.frontier import FrontierPoint
from bakeoff.results.show.terminal import terminal_table
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import ABSENT, bounds_text, plain, scale_for


def print_frontier(points: Sequence[FrontierPoint], console: Console) -> None:
    """Print each engine's frontier; a dot marks points on the joint frontier.

    Args:
        points: from :func:`bakeoff.results.run.frontier.frontier`; those not on their engine's frontier are skipped.
        console: the console.
    """
    table = terminal_table("engine", "load")
    for heading in ("per user", "all users", "per GPU"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.caption = "output tokens/s; per user: 1 / TPOT p50; ● on the Pareto frontier of all engines"
    table.caption_justify = "left"
    workloads = {point.workload for point in points}
    for point in points:
        if not point.own:
            continue
        name = f"{point.engine} · {point.workload}" if len(workloads) > 1 else point.engine
        table.add_row(
            Text(f"{'●' if point.joint else ' '} {plain(name)}"),
            Text(plain(point.load)),
            _text(point.interactivity),
            _text(point.throughput),
            ABSENT if point.per_gpu is None else scale_for(Unit.COUNT, point.per_gpu).number(point.per_gpu),
        )
    console.print(table)


def _text(interval: Interval) -> Text:
    scale = scale_for(Unit.COUNT, interval.centre)
    return Text(f"{scale.number(interval.centre)} {bounds_text(interval, scale)}".rstrip())
