"""The difference between two profiled sides as tables."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from bakeoff.results.attribution import PARTS, Latency
from bakeoff.results.attribution.difference import Difference
from bakeoff.results.show.terminal import terminal_table
from bakeoff.results.text.attribution import difference_sentence, part_text, signed_text
from bakeoff.results.text.format import ABSENT, plain

_LATENCIES = (Latency.E2E, Latency.TTFT)
_SHOWN = 5e-7
"""Seconds from which a part is shown."""


def print_differences(differences: Sequence[Difference], console: Console) -> None:
    """Print one table per load: each part in A and B, and its change."""
    for difference in differences:
        console.print(Text(plain(difference_sentence(difference)), "bold"))
        table = terminal_table("part")
        for heading in ("E2E A", "E2E B", "change", "TTFT A", "TTFT B", "change"):
            table.add_column(heading, justify="right", no_wrap=True)
        for part, info in PARTS.items():
            if part not in difference.before_s[Latency.E2E]:
                continue
            pairs = [(difference.before_s[of][part], difference.after_s[of][part]) for of in _LATENCIES]
            if any(abs(value) > _SHOWN for pair in pairs for value in pair):
                table.add_row(info.title, *(text for before, after in pairs for text in _texts(before, after)))
        table.add_section()
        totals = [difference.total_s(of) for of in _LATENCIES]
        table.add_row("sum", *(text for before, after in totals for text in _texts(before, after)))
        console.print(table)
        if difference.merged:
            console.print(Text("one side does not tell all parts apart, so those parts are merged", "dim"))
    console.print(Text("one profiled trial on each side: a change has no interval; bakeoff compare judges it", "dim"))


def _texts(before_s: float, after_s: float) -> tuple[str, str, str]:
    before, after = part_text(before_s), part_text(after_s)
    return before, after, ABSENT if before == after == ABSENT else signed_text(after_s - before_s)
