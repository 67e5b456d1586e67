"""The results in a browser: a local, read-only web application over a folder of runs."""

from results.dashboard.app import make_app
from results.dashboard.doors import Doors, doors_for
from results.dashboard.serve import serve

__all__ = ["Doors", "doors_for", "make_app", "serve"]
