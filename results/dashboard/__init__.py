"""The results in a browser: a local, read-only web application over a folder of runs."""

from bakeoff.results.dashboard.access import AccessPolicy, access_policy
from bakeoff.results.dashboard.app import make_app, serve

__all__ = ["AccessPolicy", "access_policy", "make_app", "serve"]
