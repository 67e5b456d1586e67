"""Engines: how each system is started, spoken to, watched and described. Knows only the value types of workloads."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
