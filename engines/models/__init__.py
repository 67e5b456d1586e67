"""Models by name or path: download, verify, convert and hash them."""

from bakeoff.engines.models.store import KNOWN_MODELS, cache_folder, cached, pull, resolve

__all__ = ["KNOWN_MODELS", "cache_folder", "cached", "pull", "resolve"]
