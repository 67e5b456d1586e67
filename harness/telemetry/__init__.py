"""Telemetry: samples of host, engine, client and GPUs at 10 Hz, in a process of its own, on the client's clock.

The engine's own page is read beside them, twice a second.
"""

from harness.telemetry.control import Sampler, sampler
from harness.telemetry.orders import ServerPage

__all__ = ["Sampler", "ServerPage", "sampler"]
