"""``csv``: any table of requests, with a map of column names."""

from collections.abc import Iterator, Mapping

import msgspec

from bakeoff.workloads.errors import BadTrace
from bakeoff.workloads.options import nearest
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.checks import Clock, amount, epoch_s, tokens
from bakeoff.workloads.traces.grouping import IDLE_S
from bakeoff.workloads.traces.reading import bad
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.traces.table import Header, table

FIELDS = ("at_s", "input_tokens", "output_tokens", "session", "think_s")
"""Fields that a column can hold."""
_NEEDED = ("input_tokens", "output_tokens")


class Csv(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table with a header; lengths are required, times, sessions and think times are optional."""

    path: str
    """The CSV file, plain or gzip."""
    columns: dict[str, str] = {}
    """The file's name for each field: ``{at_s = "arrival_time", input_tokens = "prompt", …}``; fields that are left out
    keep their own name."""
    time_unit_s: float = 1.0
    """Seconds per unit of numeric ``at_s`` and ``think_s``; ``at_s`` may also be time stamps, or a time since 1970 in
    any unit."""

    def __post_init__(self) -> None:
        for name in self.columns:
            if name not in FIELDS:
                raise ValueError(f"columns has no '{name}'; {nearest(name, FIELDS)}")
        if not 0 < self.time_unit_s <= 86400:
            raise ValueError(f"time_unit_s must be above 0 and at most 86400, not {self.time_unit_s}")

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        clock, fields, has_rows = Clock(), list[str](), False

        def choose(header: Header) -> list[str]:
            fields[:] = [name for name in FIELDS if name in (*self.columns, *_NEEDED, *header)]
            return [self.columns.get(name, name) for name in fields]

        for row, values in table(self.path, choose):
            try:
                request = self._row(dict(zip(fields, values, strict=True)), clock)
            except ValueError as cause:
                raise bad(self.path, row, str(cause)) from None
            if request is not None:
                has_rows = True
                yield request
        if not has_rows:
            raise bad(self.path, None, "has no row with output tokens")

    def notes(self) -> list[str]:
        """What is left out of the trace."""
        unit = "seconds" if self.time_unit_s == 1 else f"units of {self.time_unit_s:g} s"
        return [
            f"csv: lengths as recorded, times in {unit}; rows with 0 output tokens count as failed and are left out",
            f"csv: a session has ended if it has no row for {IDLE_S:g} s",
            *self._unused(),
        ]

    def _unused(self) -> Iterator[str]:
        """The columns that no field holds."""
        unused: list[str] = []

        def choose(header: Header) -> list[str]:
            used = {self.columns.get(name, name) for name in FIELDS}
            unused[:] = [name for name in header if name and name not in used]
            return [self.columns.get(name, name) for name in _NEEDED]

        try:
            next(table(self.path, choose))
        except BadTrace:
            return  # reading the rows reports it
        if unused:
            names = ", ".join(unused)
            yield f"csv: not used: {names}; the option columns says which holds a field, such as {{ at_s = 'time' }}"

    def _row(self, fields: Mapping[str, str], clock: Clock) -> TraceRow | None:
        """A request, or None if it failed.

        Raises:
            ValueError: a field is not a number or out of range, or the time is before that of the previous row.
        """
        named = {name: self.columns.get(name, name) for name in fields}
        output_tokens = tokens(fields["output_tokens"], named["output_tokens"], 0)
        if output_tokens == 0:
            return None
        input_tokens = tokens(fields["input_tokens"], named["input_tokens"], 1)
        at_s = self._offset_s(fields["at_s"], clock) if "at_s" in fields else None
        think = fields.get("think_s", "").strip()
        return TraceRow(
            at_s,
            input_tokens,
            output_tokens,
            fields.get("session", "").strip() or None,
            amount(think, named["think_s"], self.time_unit_s) if think else None,
        )

    def _offset_s(self, text: str, clock: Clock) -> float:
        try:
            time = float(text)
        except ValueError:
            return clock.stamp_offset_s(text)
        return clock.offset_s(epoch_s(time) if self.time_unit_s == 1 else time * self.time_unit_s)
