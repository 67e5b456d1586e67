"""Rates of a closed loop in the long run, from the time that the requests of its window took.

A window shows a load as it is, and a load that has just begun is not yet in its long run where answers end by
themselves: long ones are rare at first, since nobody knows which requests they belong to. But each request is drawn
anew, so the mean time of those *planned* in the window is the long run's mean whatever came before (Wald's identity:
which requests are planned there depends on earlier ones alone), and the tail waits for all of them. By Little's law
(Operations Research 9 (1961), 383-387) a loop of ``c`` sessions serves ``c`` requests per mean cycle:

    rate = c Σ m / Σ x,    x = d + W₀ / n

where m is what is counted of a request (1, its tokens), d the time by which it delays its session, and W₀ / n the
pauses and tools of a session for each of its n requests. In a loop of single requests x is the time from plan to end,
and the slot's pause behind a failure.

A ratio is biased, by 10 % with eight slots whose answer times have a standard deviation of three times their mean. The
slots are independent, so the jackknife that leaves out one slot at a time removes that (Quenouille, Biometrika 43
(1956), 353-360); one that leaves out single requests would not, as their number depends on how long they take.
``benchmarks/truth/stationarity.py`` measures the bias.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from bakeoff.results.columns import Ints
from bakeoff.results.metrics.declaration import TrialData
from bakeoff.results.metrics.requests import sessions_of
from bakeoff.results.records import FAILURE_PAUSE_NS, Outcome, RequestRecord, WindowKind
from bakeoff.results.requests import Floats, Requests
from bakeoff.results.units import NS_PER_S

NO_PLAN = "the run does not say how its sessions were planned"
"""Why cycles are unknown."""
_MIN_SLOTS = 3
"""Slots from which on one is left out at a time."""


class Cycles:
    """The requests planned in the window of a trial, and the time that each took of its session.

    Attributes:
        requests: those that ended.
        turns: mean number of requests in a session, n.
        tool_s: mean seconds of a session's pauses and tools, W₀.
        delays_s: seconds by which each request delayed its session, d.
    """

    def __init__(self, requests: Requests, turns: float, tool_s: float, delays_s: Floats) -> None:
        self.requests: Requests = requests
        self.turns: float = turns
        self.tool_s: float = tool_s
        self.delays_s: npt.NDArray[np.float64] = delays_s

    @property
    def session_s(self) -> float:
        """Mean duration of a session."""
        return self.tool_s + self.turns * float(self.delays_s.mean())


def cycles(data: TrialData) -> Cycles | str:
    """The cycles of a trial's requests, or why they are unknown."""
    trial = data.trial
    if trial is None:
        return NO_PLAN
    traffic = trial.traffic
    turns, tool_s = (1.0, 0.0) if traffic is None else (traffic.turns, traffic.session_tool_s)
    if traffic is None and (data.load.ints("turn") > 0).any():
        return NO_PLAN
    if tool_s is None:
        return "sessions have no long run under a load that changes, and none is stored by earlier versions"
    ended = data.inside.take(~data.inside.is_cancelled)
    if not len(ended):
        return "no request was planned inside the window"
    if turns == 1:
        delays_ns = ended.ints("ended_ns") - ended.ints("planned_ns")
    else:
        known = data.once(delays)
        delays_ns = np.array([known[index] for index in ended.values("index")])
    if trial.clients:  # other tools need not pause
        delays_ns = delays_ns + np.where(_pauses(ended), FAILURE_PAUSE_NS, 0)
    return Cycles(ended, turns, tool_s, delays_ns / NS_PER_S)


def is_in_long_run(data: TrialData) -> bool:
    """Whether rates of the trial are those of a closed loop in the long run."""
    trial = data.trial
    if trial is None or trial.load.concurrency is None or data.window != trial.window:
        return False
    known = data.once(cycles)
    return data.window.kind is WindowKind.STEADY and not isinstance(known, str) and known.session_s > 0


def long_run_rate(data: TrialData, amounts: npt.NDArray[np.generic]) -> float:
    """What a closed loop does per second in the long run.

    Args:
        data: of a trial that :func:`is_in_long_run`.
        amounts: what each request of its :class:`Cycles` counts.
    """
    known, trial = data.once(cycles), data.trial
    assert isinstance(known, Cycles)
    assert trial is not None
    slots = trial.load.concurrency or 1
    counts = amounts.astype(np.float64)
    times_s = known.delays_s + known.tool_s / known.turns
    rate = slots * counts.sum() / times_s.sum()
    if data.is_part:  # two sides are compared over equal requests, whose ratios share the bias
        return float(rate)
    groups = data.once(_slots)
    if not _MIN_SLOTS <= (found := int(groups.max(initial=-1)) + 1) <= slots:
        return float(rate)
    counts_of, times_of = (np.bincount(groups, values) for values in (counts, times_s))
    without_s = times_s.sum() - times_of
    if (without_s <= 0).any():
        return float(rate)
    # Slots without a request in the window have no group: leaving one out changes nothing.
    others = (slots * (counts.sum() - counts_of) / without_s).sum() + (slots - found) * rate
    return float(slots * rate - (slots - 1) * others / slots)


def delays(data: TrialData) -> dict[int, int]:
    """Nanoseconds by which each request of the load delays its session, by the request's index.

    The delay grows at the end of a request by the time since the session's previous end, less the advance of the latest
    end in the same session whose answers come at once, from the same moment and with the same pauses.
    """
    found: dict[int, int] = {}
    for session in sessions_of(data.load):
        ended = [request for request in session if request.outcome is not Outcome.CANCELLED]
        at_once_ns = _ends_at_once(ended)
        if not ended:
            continue
        last_ns = latest_ns = min(request.planned_ns for request in ended)
        for request in sorted(ended, key=lambda request: request.ended_ns):
            reached_ns = max(latest_ns, at_once_ns[request.turn])
            found[request.index] = (request.ended_ns - last_ns) - (reached_ns - latest_ns)
            last_ns, latest_ns = request.ended_ns, reached_ns
    return found


def _ends_at_once(session: Iterable[RequestRecord]) -> dict[int, int]:
    """When each request of a session would end if every answer came at once, by its turn."""
    ended_ns: dict[int, int] = {}
    at_once_ns: dict[int, int] = {}
    for request in session:
        parents = (request.turn - 1,) if request.parents is None else request.parents
        known = [parent for parent in parents if parent in ended_ns]  # others ended before the load began
        at_once_ns[request.turn] = request.planned_ns
        if known:
            pause_ns = request.planned_ns - max(ended_ns[parent] for parent in known)
            at_once_ns[request.turn] = max(at_once_ns[parent] for parent in known) + max(0, pause_ns)
        ended_ns[request.turn] = request.ended_ns
    return at_once_ns


def _pauses(requests: Requests) -> npt.NDArray[np.bool_]:
    """Whether a slot pauses behind each request."""
    return requests.has_failed & ~requests.equal("outcome", Outcome.TIMEOUT)


def _slots(data: TrialData) -> Ints:
    """The slot of each request of the cycles, from 0: a session begins when the one before it on a slot ends."""
    known = data.once(cycles)
    assert isinstance(known, Cycles)
    load = data.load
    starts_ns, ends_ns = load.ints("planned_ns"), load.ints("ended_ns") + np.where(_pauses(load), FAILURE_PAUSE_NS, 0)
    owners = np.arange(len(load))
    if known.turns > 1:
        places = {index: place for place, index in enumerate(load.values("index"))}
        sessions = [[places[request.index] for request in session] for session in sessions_of(load)]
        for number, session in enumerate(sessions):
            owners[session] = number
        starts_ns = np.array([starts_ns[session].min() for session in sessions])
        ends_ns = np.array([ends_ns[session].max() for session in sessions])
    roots = _roots(starts_ns, ends_ns)[owners]
    order = np.argsort(load.ints("index"), kind="stable")
    inside = order[np.searchsorted(load.ints("index")[order], known.requests.ints("index"))]
    return np.unique(roots[inside], return_inverse=True)[1]


def _roots(starts_ns: Ints, ends_ns: Ints) -> Ints:
    """The first of each chain of spans, of which one begins at the instant at which the one before it ends."""
    order, ended = np.argsort(starts_ns, kind="stable"), np.argsort(ends_ns, kind="stable")
    places = np.searchsorted(ends_ns[ended], starts_ns[order])
    ranks = np.arange(len(order)) - np.searchsorted(starts_ns[order], starts_ns[order])  # among those of one instant
    taken = np.minimum(places + ranks, len(order) - 1)
    is_linked = ends_ns[ended[taken]] == starts_ns[order]
    before = np.arange(len(order))
    before[order[is_linked]] = ended[taken[is_linked]]
    while not np.array_equal(before, further := before[before]):
        before = further
    return before
