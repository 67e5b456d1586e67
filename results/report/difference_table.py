"""The difference between two profiled sides as tables."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from bakeoff.results.attribution import PARTS, Latency
from bakeoff.results.attribution.difference import Difference
from bakeoff.results.show.table import text_table
from bakeoff.results.show.terminal import print_table
from bakeoff.results.text.attribution import difference_sentence, part_text, signed_text
from bakeoff.results.text.format import ABSENT, plain

_LATENCIES = (Latency.E2E, Latency.TTFT)
_SHOWN = 5e-7
"""Seconds from which a part is shown."""


def print_differences(differences: Sequence[Difference], console: Console) -> None:
    """Print one table per load: each part in A and B, and its change."""
    for difference in differences:
        console.print(Text(plain(difference_sentence(difference)), "bold"))
        parts = {
            info.title: [(difference.before_s[of][part], difference.after_s[of][part]) for of in _LATENCIES]
            for part, info in PARTS.items()
            if part in difference.before_s[Latency.E2E]
        }
        rows = (
            _row(title, pairs)
            for title, pairs in parts.items()
            if any(abs(value) > _SHOWN for pair in pairs for value in pair)
        )
        headings = ("part", "E2E A", "E2E B", "change", "TTFT A", "TTFT B", "change")
        total = _row("sum", [difference.total_s(of) for of in _LATENCIES])
        print_table(text_table("Parts of the latency on both sides", headings, rows, total=total), console)
        if difference.merged:
            console.print(Text("one side does not tell all parts apart, so those parts are merged", "dim"))
    console.print(Text("one profiled trial on each side: a change has no interval; bakeoff compare judges it", "dim"))


def _row(title: str, pairs: Sequence[tuple[float, float]]) -> list[str]:
    return [title, *(text for before_s, after_s in pairs for text in _texts(before_s, after_s))]


def _texts(before_s: float, after_s: float) -> tuple[str, str, str]:
    before, after = part_text(before_s), part_text(after_s)
    return before, after, ABSENT if before == after == ABSENT else signed_text(after_s - before_s)
