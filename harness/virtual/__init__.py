"""A simulated world: whole runs, searches and gates in virtual time, through the harness's real code.

It uses no processes, sockets, threads or waiting, and equal seeds give equal bytes. Simulated engines
(:class:`VirtualEngine`) record the true timing of every request they served (:class:`Served`).
"""

from bakeoff.harness.virtual.draws import Batched, Exponential, Fixed, Lognormal, PerToken, Whole
from bakeoff.harness.virtual.engine import Death, Fault, VirtualEngine
from bakeoff.harness.virtual.runs import (
    gate_in,
    run_in,
    virtual_experiment,
    virtual_gate,
    virtual_run,
    virtual_search,
)
from bakeoff.harness.virtual.served import Ending, Served
from bakeoff.harness.virtual.world import VirtualWorld

__all__ = [
    "Batched",
    "Death",
    "Ending",
    "Exponential",
    "Fault",
    "Fixed",
    "Lognormal",
    "PerToken",
    "Served",
    "VirtualEngine",
    "VirtualWorld",
    "Whole",
    "gate_in",
    "run_in",
    "virtual_experiment",
    "virtual_gate",
    "virtual_run",
    "virtual_search",
]
