"""Arrival processes: when each session of an open loop starts, in seconds from the start of the load.

A process is put together from two parts. A *renewal process* with gaps of mean 1 lives in operational time, which is
the number of arrivals to expect (:mod:`~workloads.arrivals.gaps`: how regular or bursty it is from one arrival to the
next). An *intensity* says how many arrivals a second is worth, and so which second each operational time is
(:mod:`~workloads.arrivals.intensity`: ramps, days, drift, silences). Tenants are merged in operational time.

All but ``constant`` are in equilibrium when the load begins: the number of arrivals to expect up to any time is the
intensity's integral, for bursty gaps too, which would otherwise open with a crowd.
"""

from workloads.arrivals.named import ARRIVALS, VARYING_ARRIVALS, arrival
from workloads.arrivals.onoff import OnOff
from workloads.arrivals.process import Arrival, Stretched
from workloads.arrivals.steady import Constant, Gamma, Poisson, Weibull
from workloads.arrivals.tenants import MultiTenant
from workloads.arrivals.varying import Diurnal, Drift, Ramp

__all__ = [
    "ARRIVALS",
    "VARYING_ARRIVALS",
    "Arrival",
    "Constant",
    "Diurnal",
    "Drift",
    "Gamma",
    "MultiTenant",
    "OnOff",
    "Poisson",
    "Ramp",
    "Stretched",
    "Weibull",
    "arrival",
]
