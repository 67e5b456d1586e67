"""Engines: start, query, monitor and describe each system. Imports only the value types of workloads."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
