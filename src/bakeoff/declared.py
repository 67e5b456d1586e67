"""Modules that are found by their folder."""

import functools
import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType


@functools.cache
def _modules(package: str, path: tuple[str, ...]) -> tuple[ModuleType, ...]:
    return tuple(importlib.import_module(f"{package}.{found.name}") for found in pkgutil.iter_modules(path))


def declared(package: str, path: Iterable[str], name: str) -> list[ModuleType]:
    """The modules of a package that declare a name.

    Args:
        package: its name.
        path: its ``__path__``.
        name: what the modules declare.
    """
    return [module for module in _modules(package, tuple(path)) if hasattr(module, name)]
