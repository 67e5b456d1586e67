"""Telemetry: samples of host, engine, client and GPUs at 10 Hz, in a process of its own, on the client's clock.

The engine's own page is read beside them, twice a second.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
