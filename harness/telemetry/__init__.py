"""Telemetry: samples of host, engine, client and GPUs at 10 Hz, from a process of its own, on the client's clock.

The engine's metrics page is read twice a second.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
