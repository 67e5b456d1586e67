"""Sessions in the long run, from a window that shows only parts of them.

A window is usually shorter than a session: few sessions end inside it, and those are the short ones. So every figure is
made of means over requests, which a window of a steady load shows without bias wherever it cuts sessions off, and of
what the plan says of sessions (:class:`~bakeoff.results.records.TrafficRecord`): their mean number of requests, n, and
the seconds W₀ that one takes if every answer comes at once, along its longest path of pauses and tools.

**Duration.** A session is a renewal cycle with n requests, so in the long run what it gains in any quantity is n times
what one request adds (renewal reward: Cox, Renewal Theory, 1962, ch. 5). The quantity is the session's delay behind the
same session whose answers come at once, from the same moment and with the same pauses. It grows at the end of a request
by the time since the session's previous end, less the advance of the latest end in that other session. Over a whole
session this adds up to its duration less that of the other, so W = W₀ + n d, where d is the mean growth at a request
planned in the window. In a conversation d is the time from the plan of a request to its end.

This needs no start and no end of a session. The number of requests in the window would give W as well, but it depends
on the pauses that happen to fall there. Those of agents vary by orders of magnitude; W₀ has all of them, d has none.

**Rate.** By Little's law (Operations Research 9 (1961), 383-387) a closed loop of c slots, each always in a session,
starts c / W sessions per second. In an open loop the plan sets the rate.

Requests count whatever became of them, unless the client cancelled them: a session goes on after a failure. A session
in progress when the load began is compared from that moment. Where a call has a lag of its own for each call that it
waits for, only that of the last to end is known, and the others count as none. ``benchmarks/agents/long_run.py``
measures the bias against simulated sessions.
"""

from collections.abc import Callable

import msgspec

from bakeoff.results.metric import Better, Role, Unit
from bakeoff.results.metrics.closed_loop import NO_PLAN, cycles
from bakeoff.results.metrics.declaration import TrialData, TrialMetric
from bakeoff.results.metrics.values import Value, absent

NO_SESSIONS = "no session has several requests"
"""Why metrics of sessions are absent."""
_NO_TIME = "the sessions took no time"
_S_PER_H = 3600


class LongRun(msgspec.Struct, frozen=True):
    """A session in the long run.

    Attributes:
        tool_s: mean seconds that it would take if every answer came at once.
        server_s: what the answers add.
        tokens: mean number of its output tokens.
        per_hour: sessions that start per hour, times the share of the requests that succeed.
    """

    tool_s: float
    server_s: float
    tokens: float
    per_hour: float

    @property
    def session_s(self) -> float:
        """Its mean duration in seconds."""
        return self.tool_s + self.server_s


def long_run(data: TrialData) -> LongRun | str:
    """The sessions of a trial in the long run, or why they are unknown."""
    trial, known = data.trial, data.once(cycles)
    if trial is not None and trial.traffic is not None and trial.traffic.turns == 1:
        return NO_SESSIONS
    if isinstance(known, str) or trial is None or trial.traffic is None:
        return known if isinstance(known, str) else NO_PLAN
    ended, server_s = known.requests, known.turns * float(known.delays_s.mean())
    per_s = trial.load.rate_per_s or 0.0
    if trial.load.concurrency is not None:
        if known.session_s <= 0:
            return _NO_TIME
        per_s = trial.load.concurrency / known.session_s
    return LongRun(
        tool_s=known.tool_s,
        server_s=server_s,
        tokens=known.turns * float(ended.chunks.total_tokens.mean()),
        per_hour=_S_PER_H * per_s * float(ended.is_ok.mean()),
    )


def _of(measure: Callable[[LongRun], Value]) -> Callable[[TrialData], Value]:
    def of(data: TrialData) -> Value:
        known = data.once(long_run)
        return absent(known) if isinstance(known, str) else measure(known)

    return of


def _stretch(sessions: LongRun) -> Value:
    return Value(sessions.session_s / sessions.tool_s) if sessions.tool_s else absent("sessions have no pauses")


def _tokens_per_s(sessions: LongRun) -> Value:
    return Value(sessions.tokens / sessions.session_s) if sessions.session_s else absent(_NO_TIME)


def _num_counted(data: TrialData) -> int:
    if isinstance(data.once(long_run), str):
        return 0
    return int((~data.inside.is_cancelled).sum())


_MEASURES: tuple[tuple[str, str, Unit, Better, str, Callable[[LongRun], Value]], ...] = (
    (
        "sessions_per_hour", "sessions", Unit.PER_HOUR, Better.HIGHER,
        "sessions that start per hour in the long run, times the share of the requests that succeed",
        lambda known: Value(known.per_hour),
    ),
    (
        "session_s", "session", Unit.SECONDS, Better.LOWER,
        "mean duration of a session in the long run, from its start to the end of its last answer",
        lambda known: Value(known.session_s),
    ),
    (
        "session_tool_s", "session, tools", Unit.SECONDS, Better.LOWER,
        "of it, what pauses and tools take: the mean duration of a session whose answers come at once",
        lambda known: Value(known.tool_s),
    ),
    (
        "session_server_s", "session, server", Unit.SECONDS, Better.LOWER,
        "of it, what the answers add to pauses and tools",
        lambda known: Value(known.server_s),
    ),
    (
        "session_stretch", "session stretch", Unit.COUNT, Better.LOWER,
        "mean duration of a session over that of one whose answers come at once",
        _stretch,
    ),
    (
        "tokens_per_s_per_session", "output/session", Unit.TOKENS_PER_SECOND, Better.HIGHER,
        "output tokens of a session in the long run over its mean duration, pauses included",
        _tokens_per_s,
    ),
)  # fmt: skip
METRICS = tuple(
    TrialMetric(
        name=name,
        title=title,
        unit=unit,
        better=better,
        definition=definition,
        observation="a request planned in the window, of sessions with several requests",
        roles=frozenset({Role.NEEDS_CAPACITY, *([Role.RATE_OF_ONE] if unit is Unit.TOKENS_PER_SECOND else [])}),
        of=_of(measure),
        count=_num_counted,
    )
    for name, title, unit, better, definition, measure in _MEASURES
)
