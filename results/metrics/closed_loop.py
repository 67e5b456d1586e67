"""Rates of a closed loop, from the time that given requests took instead of from what fell inside a window.

A closed loop of ``c`` sessions always has ``c`` sessions in progress, so by Little's law it serves ``c`` requests per
mean cycle: the time from the end of a session's previous request to the end of this one, its pause included, and for a
session's last request, if it failed, the pause of the slot behind it (Little, Operations Research 9 (1961), 383-387).
So requests with cycles ``t_1…t_n`` took ``Σ t / c`` seconds, and tokens and requests over that time are rates. They do
not depend on where a window cuts requests off, and two engines can be compared over equal requests.
"""

import numpy as np

from bakeoff.results.columns import UNKNOWN, Ints
from bakeoff.results.metrics import throughput
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import Outcome, Slo, Window
from bakeoff.results.requests import Floats, Requests
from bakeoff.results.units import NS_PER_S


def cycles_ns(load: Requests, inside: Requests, failure_pause_ns: int = 0) -> Ints:
    """Nanoseconds from the end of the session's previous request to the end of each one; `UNKNOWN` where it is.

    The first request in the log of a session that was in progress when the load began has no known cycle, and requests
    of a session whose agents work at once have none.

    Args:
        load: all requests under load.
        inside: the requests in question.
        failure_pause_ns: pause of a slot behind a failed request, unless that is a timeout.
    """
    turns, ended_ns = inside.ints("turn"), inside.ints("ended_ns")
    cycles = np.where(turns == 0, ended_ns - inside.ints("planned_ns"), UNKNOWN)
    later = np.flatnonzero(turns > 0)
    before = _neighbours(load, inside.take(later), -1)
    has_before = before >= 0
    cycles[later[has_before]] = ended_ns[later[has_before]] - load.ints("ended_ns")[before[has_before]]
    has_paused = np.flatnonzero(inside.has_failed & ~inside.equal("outcome", Outcome.TIMEOUT) & (cycles != UNKNOWN))
    is_last = _neighbours(load, inside.take(has_paused), 1) < 0
    cycles[has_paused[is_last]] += failure_pause_ns
    cycles[inside.is_present("parents")] = UNKNOWN
    return cycles


def _neighbours(load: Requests, inside: Requests, step: int) -> Ints:
    """Position in ``load`` of the turn of its session that is ``step`` behind each request; -1 without one."""
    numbers = load.ints("index")
    order = np.argsort(numbers, kind="stable")
    wanted = inside.ints("index") + step
    if not len(numbers):
        return np.full(len(wanted), -1)
    places = order[np.minimum(np.searchsorted(numbers[order], wanted), len(numbers) - 1)]
    found = load.take(places)
    is_neighbour = np.array([
        (session, turn + step) == (found_session, found_turn)
        for session, turn, found_session, found_turn in zip(
            inside.values("session"), inside.values("turn"), found.values("session"), found.values("turn"), strict=True
        )
    ], dtype=bool)  # fmt: skip
    return np.where((numbers[places] == wanted) & is_neighbour, places, -1)


def closed_loop_rates(requests: Requests, took_s: float, slo: Slo) -> dict[str, Value]:
    """Compute the rates of a closed loop over requests.

    Args:
        requests: those that count.
        took_s: time that they took: the sum of their cycles over the number of sessions in progress.
        slo: SLO of the experiment.
    """
    if took_s <= 0:
        return dict.fromkeys(_RATES, absent("the requests took no time"))
    took = Window(0, round(took_s * NS_PER_S))
    met = int(throughput.meets(requests, slo).sum())
    return {
        "output_tokens_per_s": Value(int(requests.chunks.tokens.sum()) / took_s),
        "prompt_tokens_per_s": throughput.prompt_tokens_per_s(requests, took, _whole),
        "uncached_prompt_tokens_per_s": throughput.uncached_prompt_tokens_per_s(requests, took, _whole),
        "requests_per_s": throughput.requests_per_s(requests, took, _whole),
        "goodput_per_s": absent(throughput.NO_SLO) if slo == Slo() else Value(met / took_s),
    }


_RATES = (
    "output_tokens_per_s", "prompt_tokens_per_s", "uncached_prompt_tokens_per_s", "requests_per_s", "goodput_per_s",
)  # fmt: skip


def _whole(requests: Requests, _: Window) -> Floats:
    return requests.is_ok.astype(np.float64)
