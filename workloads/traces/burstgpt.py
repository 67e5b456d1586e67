"""``burstgpt``: BurstGPT (HPMLL, CC-BY-4.0): Azure OpenAI traffic of a campus in seconds, with failures.

Wang et al., "BurstGPT: A Real-world Workload Dataset to Optimize LLM Serving Systems", KDD 2025. Files 1 and 2 have
six columns; file 3 has ``Session ID`` and ``Elapsed time`` too, both empty for requests to the API.
"""

from collections.abc import Iterator

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.checks import Clock, amount, tokens
from bakeoff.workloads.traces.reading import bad
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.traces.table import Header, table

_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
_SESSION_COLUMNS = ("Session ID", "Elapsed time")
_MAX_SESSIONS = 200_000
"""Number of recent sessions to remember, because the trace does not mark the end of a session."""


class BurstGpt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of Timestamp, Request tokens, Response tokens and, in the later file, Session ID and Elapsed time."""

    path: str
    """The CSV file, plain or gzip."""

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        clock, sessions, has_rows = Clock(), _Sessions(), False
        for row, (time, inputs, outputs, *session) in table(self.path, _columns):
            try:
                output_tokens = tokens(outputs, "Response tokens", 0)
                if output_tokens == 0:
                    continue
                input_tokens = tokens(inputs, "Request tokens", 1)
                at_s = clock.offset_s(amount(time, "Timestamp"))
                name, think_s = sessions.turn(at_s, *session) if session else (None, None)
            except ValueError as cause:
                raise bad(self.path, row, str(cause)) from None
            has_rows = True
            yield TraceRow(at_s, input_tokens, output_tokens, name, think_s)
        if not has_rows:
            raise bad(self.path, None, "has no row with response tokens")

    def notes(self) -> list[str]:
        """What is left out of the trace, and how think times are defined."""
        return [
            "burstgpt: arrivals, in whole seconds, and lengths as recorded",
            "burstgpt: rows with 0 response tokens count as failed and are left out",
            "burstgpt: rows of one Session ID are a session; think time counts from the end of its previous answer",
        ]


class _Sessions:
    """End of the previous answer of each session."""

    def __init__(self) -> None:
        self._ends_s: dict[str, float] = {}

    def turn(self, at_s: float, session: str, elapsed: str) -> tuple[str | None, float | None]:
        """Name and think time of a row's session; None without a session, or without an earlier turn."""
        name = session.strip()
        if not name:
            return None, None
        last_end_s = self._ends_s.pop(name, None)
        self._ends_s[name] = at_s + amount(elapsed, "Elapsed time")
        if len(self._ends_s) > _MAX_SESSIONS:
            del self._ends_s[next(iter(self._ends_s))]
        return name, None if last_end_s is None else max(0.0, at_s - last_end_s)


def _columns(header: Header) -> tuple[str, ...]:
    return _COLUMNS + _SESSION_COLUMNS if _SESSION_COLUMNS[0] in header else _COLUMNS
