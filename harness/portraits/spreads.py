"""What is drawn as a distribution: lengths of requests, and sessions with their pauses."""

import statistics
from collections.abc import Sequence

import msgspec

from harness.portraits.bins import Bin, Binned, second_bins, whole_bins
from harness.portraits.figures import figure_text
from results.report.format import duration_text
from workloads.portrait import Portrait


class Spread(msgspec.Struct, frozen=True):
    """One distribution.

    Attributes:
        title: of what.
        counted: what the bins count: requests, sessions or pauses.
        unit: of the values.
        binned: the sample.
        marks: values with their names, the most telling first.
    """

    title: str
    counted: str
    unit: str
    binned: Binned
    marks: Sequence[tuple[float, str]] = ()

    @property
    def per(self) -> str:
        """What the height of a column is a share for."""
        if self.binned.log:
            return "for each doubling"
        return f"in steps of {self.binned.bins[0].high - self.binned.bins[0].low:,.3g}"

    def hint(self, one: Bin) -> str:
        """A bin in words."""
        if self.unit == "seconds":
            ends = f"{duration_text(one.low)} to {duration_text(one.high)}"
        elif one.high - one.low == 1:
            ends = f"{one.low:,.0f} {self.unit}"
        else:
            ends = f"{one.low:,.0f} to {one.high - 1:,.0f} {self.unit}"
        return f"{ends}: {one.count:,} of {self.binned.total:,} {self.counted}"


def length_spreads(portrait: Portrait) -> list[Spread]:
    """Prompts and answers."""
    return [
        Spread("prompts", "requests", "tokens", whole_bins(portrait.input_tokens), _marks(portrait, "input")),
        Spread("answers", "requests", "tokens", whole_bins(portrait.output_tokens), _marks(portrait, "output")),
    ]


def session_spreads(portrait: Portrait) -> list[Spread]:
    """Requests of a session and pauses between them; nothing where each session has one request."""
    if max(portrait.turns) < 2:
        return []
    turns, pause_s = statistics.median(portrait.turns), statistics.median(portrait.think_s)
    turn_marks = [(turns, f"median {turns:g}")]
    pause_marks = [(pause_s, f"median {duration_text(pause_s)}")] if pause_s > 0 else []
    return [
        Spread("session lengths", "sessions", "requests", whole_bins(portrait.turns), turn_marks),
        Spread("pauses", "pauses", "seconds", second_bins(portrait.think_s), pause_marks),
    ]


def _marks(portrait: Portrait, kind: str) -> list[tuple[float, str]]:
    names = [(f"{kind}_{level}", level) for level in ("p50", "p99", "p90")]
    return [(portrait.figures[name], f"{level} {figure_text(name, portrait.figures[name])}") for name, level in names]
