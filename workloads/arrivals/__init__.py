"""Arrival processes: when each session of an open loop starts, in seconds from the start of the load.

A process has two parts. A *renewal process* with gaps of mean 1 runs in operational time, the expected number of
arrivals so far (:mod:`~bakeoff.workloads.arrivals.gaps`); it sets the burstiness from one arrival to the next. An
*intensity*, the arrival rate over time, maps operational time to seconds (:mod:`~bakeoff.workloads.arrivals.intensity`:
ramps, days, drift, silences). Tenants are merged in operational time.

All processes but ``constant`` are stationary from the start of the load: the expected number of arrivals up to any time
is the integral of the intensity. Without this, processes with bursty gaps would start with a crowd.
"""

from bakeoff.workloads.arrivals.named import ARRIVALS, VARYING_ARRIVALS, arrival
from bakeoff.workloads.arrivals.onoff import OnOff
from bakeoff.workloads.arrivals.process import Arrival, Delayed, Stretched
from bakeoff.workloads.arrivals.steady import Constant, Gamma, Poisson, Weibull
from bakeoff.workloads.arrivals.tenants import MultiTenant
from bakeoff.workloads.arrivals.varying import Diurnal, Drift, Ramp

__all__ = [
    "ARRIVALS",
    "VARYING_ARRIVALS",
    "Arrival",
    "Constant",
    "Delayed",
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
