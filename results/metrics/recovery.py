"""When the SLO held again after a fault, and what it cost until then.

A request is good if it met its SLO, or, without one, if it succeeded. In peace are the requests that ended before the
fault, in the ramp, too, and that no earlier fault met. The SLO does not hold over :data:`SPAN` consecutive requests if
more of them are bad than the share of bad ones in peace explains: more than its expectation and three standard
deviations, where one good and one bad request are added to those in peace (Agresti and Coull, "Approximate Is Better
than 'Exact'", The American Statistician 52, 1998). It holds again at the planned time of the first good request behind
the last such span before the next fault. What one replica of forty loses is therefore not seen: one bad request in a
span passes. Where a replica is started, which is to end what was bad, nothing before it is peace, for it or for a later
fault: the share is taken for that of one span of good requests.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from bakeoff.results.metrics.throughput import meets
from bakeoff.results.records import FaultAction, FaultRecord, Slo, Window
from bakeoff.results.requests import Flags, Requests
from bakeoff.results.units import NS_PER_S

SPAN = 20
"""Consecutive requests over which the SLO holds or does not."""
_DEVIATIONS = 3.0


class Recovery(msgspec.Struct, frozen=True):
    """What one fault did.

    The requests that it met are those in progress when it began, and those planned from then on until the SLO held
    again, or as long as it was watched.

    Attributes:
        fault: it.
        down_s: seconds from the fault to its end; None if it has none.
        start_s: seconds that a replica took to start; None if it did not.
        recovered_s: seconds from the fault until the SLO held again, 0 if it held throughout; None if it did not.
        watched_s: seconds from the fault to the next one, or to the end of the window.
        is_decidable: whether there were enough requests to say when the SLO held again.
        requests: that it met.
        failed: those of them that failed, or that the client gave up.
        late: those of them that were answered, and missed the SLO.
        lost: good requests among them less than the share in peace.
    """

    fault: FaultRecord
    down_s: float | None
    start_s: float | None
    recovered_s: float | None
    watched_s: float
    is_decidable: bool
    requests: int
    failed: int
    late: int
    lost: float


def recoveries(
    requests: Requests, faults: Sequence[FaultRecord], window: Window, slo: Slo, classes: Mapping[str, Slo]
) -> list[Recovery]:
    """What each fault of a trial did, in order of time.

    Args:
        requests: of the trial.
        faults: of the trial, in order of time.
        window: of the trial.
        slo: of the experiment; for requests without a class.
        classes: the SLO of each class.
    """
    load = requests.under_load
    load = load.take(load.ints("planned_ns") < window.end_ns)
    load = load.take(np.argsort(load.ints("planned_ns"), kind="stable"))
    good, planned_ns, ended_ns = _good(load, slo, classes), load.ints("planned_ns"), load.ints("ended_ns")
    in_peace, found = np.ones(len(load), dtype=bool), list[Recovery]()  # no earlier fault has met them
    for fault, end_ns in zip(faults, [*(fault.begun_ns for fault in faults[1:]), window.end_ns], strict=True):
        recovery = _recovery(load, good, in_peace, fault, end_ns, has_next=fault is not faults[-1])
        met_s = recovery.watched_s if recovery.recovered_s is None else recovery.recovered_s
        before = (ended_ns < fault.begun_ns) & (fault.action is not FaultAction.START)
        in_peace &= before | (planned_ns >= fault.begun_ns + met_s * NS_PER_S)
        found.append(recovery)
    return found


def _good(load: Requests, slo: Slo, classes: Mapping[str, Slo]) -> Flags:
    if not classes:
        return meets(load, slo)
    good, names = np.zeros(len(load), dtype=bool), load.values("traffic_class")
    for name, own in classes.items():
        chosen = np.array([each == name for each in names], dtype=bool)
        good[chosen] = meets(load.take(chosen), own)
    return good


def _recovery(
    load: Requests, good: Flags, in_peace: Flags, fault: FaultRecord, end_ns: int, *, has_next: bool
) -> Recovery:
    planned_ns, ended_ns = load.ints("planned_ns"), load.ints("ended_ns")
    before = in_peace & (ended_ns < fault.begun_ns)
    # What was asked for so shortly before the next fault that it was in progress then is that one's.
    good_ns = (ended_ns - planned_ns)[before & good]
    is_of_next = (planned_ns > end_ns - (good_ns.max() if len(good_ns) else 0)) & (ended_ns >= end_ns) & has_next
    after = (planned_ns >= fault.begun_ns) & (planned_ns < end_ns) & ~is_of_next
    if fault.action is FaultAction.START:
        before[:] = False
    num_before, num_good = int(before.sum()), int(good[before].sum())
    few = max(0, SPAN - num_before)  # too few to tell: as if there had been a span of good ones
    held = _held_again(good[after], (num_good + few + 1) / (num_before + few + 2))
    if fault.action is FaultAction.START and (fault.ready_ns is None or fault.ready_ns >= end_ns):
        held = None  # it has not helped
    until_ns = end_ns if held is None else int(planned_ns[after][held]) if held else fault.begun_ns
    met = (planned_ns < until_ns) & (ended_ns >= fault.begun_ns) & ~is_of_next
    failed = met & (load.has_failed | load.is_cancelled)
    share = num_good / num_before if num_before else 1.0
    ended_ns = None if fault.action is FaultAction.START else fault.ended_ns
    return Recovery(
        fault=fault,
        down_s=None if ended_ns is None else _seconds(fault.begun_ns, ended_ns),
        start_s=None if fault.ready_ns is None or fault.ended_ns is None else _seconds(fault.ended_ns, fault.ready_ns),
        recovered_s=None if held is None else _seconds(fault.begun_ns, until_ns),
        watched_s=_seconds(fault.begun_ns, end_ns),
        is_decidable=int(after.sum()) >= SPAN,
        requests=int(met.sum()),
        failed=int(failed.sum()),
        late=int((met & ~good & ~failed).sum()),
        lost=max(0.0, share * int(met.sum()) - int((met & good).sum())),
    )


def _held_again(well: Flags, share: float) -> int | None:
    """Position of the first good request behind the last span in which the SLO does not hold; 0 if there is no such.

    None if it does not hold at the end, or there is no whole span.
    """
    if len(well) < SPAN:
        return None
    allowed = SPAN * (1 - share) + _DEVIATIONS * math.sqrt(SPAN * share * (1 - share))
    allowed = max(allowed, 1.0)  # else one request that is late by chance, minutes later, would be its effect
    allowed = min(allowed, SPAN - 1)  # where few are good in peace, too, a span without a good one does not hold
    bad = np.convolve(~well, np.ones(SPAN, dtype=np.int64), "valid")
    failing = np.flatnonzero(bad > allowed)
    if not len(failing):
        return 0
    if failing[-1] == len(bad) - 1:
        return None
    span = well[failing[-1] : failing[-1] + SPAN]
    return int(failing[-1] + np.flatnonzero(~span)[-1] + 1)


def _seconds(start_ns: int, end_ns: int) -> float:
    return (end_ns - start_ns) / NS_PER_S
