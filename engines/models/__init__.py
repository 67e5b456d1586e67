"""Models by name or path: fetched once, checked, converted, hashed."""

from engines.models.store import KNOWN_MODELS, cache_folder, cached, pull, resolve

__all__ = ["KNOWN_MODELS", "cache_folder", "cached", "pull", "resolve"]
