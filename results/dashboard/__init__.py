"""The results in a browser: a local, read-only web application over a folder of runs."""

from results.dashboard.app import make_app, serve
from results.dashboard.doors import Doors, doors_for

__all__ = ["Doors", "doors_for", "make_app", "serve"]
