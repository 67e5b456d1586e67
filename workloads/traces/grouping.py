"""Group the rows of a trace into sessions."""

from collections import deque
from collections.abc import Iterable, Iterator

from bakeoff.workloads.errors import BadTrace
from bakeoff.workloads.traces.checks import quoted
from bakeoff.workloads.traces.row import TraceRow

IDLE_S = 1800.0
"""Seconds of trace time without a row after which a session counts as ended."""


def sessions_of(rows: Iterable[TraceRow]) -> Iterator[list[TraceRow]]:
    """Yield the rows of each session, sessions in the order of their first row.

    Rows of different sessions may alternate if the trace has times; otherwise the rows of a session must be adjacent.
    Memory holds the open sessions and those that began after the oldest of them, and without times the names of all.

    Raises:
        BadTrace: rows without a time continue a session behind those of another.
    """
    ended: set[str] = set()
    waiting: deque[list[TraceRow]] = deque()
    open_sessions: dict[str, list[TraceRow]] = {}
    for row in rows:
        _close(open_sessions, row, ended)
        if row.session is None:
            waiting.append([row])
        elif row.session in open_sessions:
            open_sessions[row.session].append(row)
        else:
            open_sessions[row.session] = [row]
            waiting.append(open_sessions[row.session])
        yield from _ended(waiting, open_sessions)
    yield from waiting


def _close(open_sessions: dict[str, list[TraceRow]], row: TraceRow, ended: set[str]) -> None:
    """Close the sessions that can get no more rows."""
    if row.at_s is None and row.session in ended:
        problem = f"the session {quoted(row.session or '')} continues behind rows of others, and its rows have no times"
        raise BadTrace(f"{problem}; sort the rows by session")
    if not open_sessions:
        return
    if row.at_s is None:
        for name in [name for name in open_sessions if name != row.session]:
            del open_sessions[name]
            ended.add(name)
        return
    while open_sessions:  # sorted by last row, because a session with a new row moves to the end
        name, rows = next(iter(open_sessions.items()))
        last_s = rows[-1].at_s
        if last_s is None or row.at_s - last_s <= IDLE_S:
            break
        del open_sessions[name]
    if row.session in open_sessions:
        open_sessions[row.session] = open_sessions.pop(row.session)


def _ended(waiting: deque[list[TraceRow]], open_sessions: dict[str, list[TraceRow]]) -> Iterator[list[TraceRow]]:
    while waiting:
        name = waiting[0][0].session
        if name is not None and open_sessions.get(name) is waiting[0]:
            return
        yield waiting.popleft()
