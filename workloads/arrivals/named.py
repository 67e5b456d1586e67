"""Arrival processes by name."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bakeoff.workloads.arrivals.onoff import OnOff
from bakeoff.workloads.arrivals.process import Arrival
from bakeoff.workloads.arrivals.steady import Constant, Gamma, Poisson, Weibull
from bakeoff.workloads.arrivals.tenants import MultiTenant
from bakeoff.workloads.arrivals.varying import Diurnal, Drift, Ramp
from bakeoff.workloads.errors import BadOption, UnknownWorkload
from bakeoff.workloads.options import nearest, typed_options

Process = Constant | Poisson | Gamma | Weibull | OnOff | Ramp | Diurnal | Drift | MultiTenant
_PROCESSES: dict[str, type[Process]] = {
    "constant": Constant,
    "poisson": Poisson,
    "gamma": Gamma,
    "weibull": Weibull,
    "onoff": OnOff,
    "ramp": Ramp,
    "diurnal": Diurnal,
    "drift": Drift,
    "multi-tenant": MultiTenant,
}
ARRIVALS = tuple(_PROCESSES)
"""Names of the arrival processes."""
VARYING_ARRIVALS = ("ramp", "diurnal", "multi-tenant")
"""Processes whose rate changes on purpose during a load."""
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def arrival(name: str, rate_per_s: float, options: Mapping[str, Any] = _NO_OPTIONS) -> Arrival:
    """Make an arrival process by name.

    Args:
        name: one of ``ARRIVALS``.
        rate_per_s: mean arrivals per second; for ``ramp``, the rate that ``start`` and ``end`` are relative to.
        options: the process's options as read from a file; distributions are tables with a ``family``.

    Raises:
        UnknownWorkload: no process has that name; the message suggests the nearest.
        BadOption: the rate is not positive, or an option is unknown, of the wrong type or out of range.
    """
    if name not in _PROCESSES:
        raise UnknownWorkload(f"unknown arrival process '{name}'; {nearest(name, _PROCESSES)}")
    if not 0 < rate_per_s < math.inf:
        raise BadOption(f"rate_per_s must be above 0, not {rate_per_s}")
    kind, owner = _PROCESSES[name], f"arrival process '{name}'"
    allowed = [field for field in kind.__struct_fields__ if field != "rate_per_s"]
    for option in options:
        if option not in allowed:
            raise BadOption(
                f"{owner} has no option '{option}'; {nearest(option, allowed) if allowed else 'it has none'}"
            )
    return typed_options(kind, {**options, "rate_per_s": rate_per_s}, owner, BadOption)
