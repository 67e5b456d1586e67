"""Workloads: what is sent, when, and how long the answer should be. Imports nothing of the other packages."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
