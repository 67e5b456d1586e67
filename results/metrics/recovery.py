"""When the SLO held again after a fault, and what it cost until then.

A request is good if it met its SLO, or, without one, if it succeeded. The SLO does not hold over :data:`SPAN`
consecutive requests if more of them are bad than the share of bad requests in peace explains, those before the fault
that no earlier fault met: more than its expectation and three standard deviations. To those in peace one good and one
bad request are added (Agresti and Coull, "Approximate Is Better than 'Exact'", The American Statistician 52, 1998). The
SLO holds again at the planned time of the first good request behind the last such span before the next fault. What one
replica of forty loses is therefore not seen: one bad request in a span passes.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from bakeoff.results.metrics.throughput import meets
from bakeoff.results.records import FaultRecord, Slo, Window
from bakeoff.results.requests import Flags, Requests
from bakeoff.results.units import NS_PER_S

SPAN = 20
"""Consecutive requests over which the SLO holds or does not."""
_DEVIATIONS = 3.0


class Recovery(msgspec.Struct, frozen=True):
    """What one fault did.

    Attributes:
        fault: it.
        down_s: seconds from the fault to its end; None if it has none.
        start_s: seconds that a replica took to start again; None if it did not.
        recovered_s: seconds from the fault until the SLO held again, 0 if it held throughout; None if it did not.
        watched_s: seconds from the fault to the next one, or to the last request that was planned.
        requests: planned from the fault until the SLO held again, or as long as it was watched.
        failed: requests that failed: those, and those that the fault met in progress.
        late: those of ``requests`` that were answered, and missed the SLO.
        lost: good requests less than the share before the fault would have given.
    """

    fault: FaultRecord
    down_s: float | None
    start_s: float | None
    recovered_s: float | None
    watched_s: float
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
    load = load.take(np.argsort(load.ints("planned_ns"), kind="stable"))
    load = load.take((load.ints("planned_ns") >= window.start_ns) & ~load.is_cancelled)
    good, planned_ns, found = _good(load, slo, classes), load.ints("planned_ns"), list[Recovery]()
    in_peace = np.ones(len(load), dtype=bool)  # no earlier fault has met them
    for fault, end_ns in zip(faults, [*(fault.begun_ns for fault in faults[1:]), math.inf], strict=True):
        recovery = _recovery(load, good, in_peace, fault, end_ns)
        met_s = recovery.watched_s if recovery.recovered_s is None else recovery.recovered_s
        in_peace &= (load.ints("ended_ns") < fault.begun_ns) | (planned_ns >= fault.begun_ns + met_s * NS_PER_S)
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


def _recovery(load: Requests, good: Flags, in_peace: Flags, fault: FaultRecord, end_ns: float) -> Recovery:
    planned_ns, ended_ns = load.ints("planned_ns"), load.ints("ended_ns")
    before = in_peace & (ended_ns < fault.begun_ns)
    after = (planned_ns >= fault.begun_ns) & (planned_ns < end_ns)
    in_progress = (planned_ns < fault.begun_ns) & (ended_ns >= fault.begun_ns)
    share = (int(good[before].sum()) + 1) / (int(before.sum()) + 2)
    times_ns, well = planned_ns[after], good[after]
    held = _held_again(well, share)
    counted = len(well) if held is None else held
    failed = load.has_failed
    last_ns = int(times_ns[-1]) if len(times_ns) else fault.begun_ns
    return Recovery(
        fault=fault,
        down_s=None if fault.ended_ns is None else _seconds(fault.begun_ns, fault.ended_ns),
        start_s=None if fault.ready_ns is None or fault.ended_ns is None else _seconds(fault.ended_ns, fault.ready_ns),
        recovered_s=None if held is None else _seconds(fault.begun_ns, int(times_ns[held])) if held else 0.0,
        watched_s=_seconds(fault.begun_ns, last_ns),
        requests=counted,
        failed=int(failed[in_progress].sum()) + int(failed[after][:counted].sum()),
        late=int((~well[:counted] & ~failed[after][:counted]).sum()),
        lost=max(0.0, share * counted - int(well[:counted].sum())),
    )


def _held_again(well: Flags, share: float) -> int | None:
    """Position of the first good request behind the last span in which the SLO does not hold; 0 if there is no such.

    None if it does not hold at the end, or there is no whole span.
    """
    if len(well) < SPAN:
        return None
    allowed = SPAN * (1 - share) + _DEVIATIONS * math.sqrt(SPAN * share * (1 - share))
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
