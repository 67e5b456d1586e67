"""Workloads: what to send, when, and how long the answers should be. Imports no other package of the project."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
