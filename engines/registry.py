"""Adapters by name."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from engines.adapters.openai import OpenAiEngine, OpenAiOptions
from engines.adapters.reference import ReferenceEngine, ReferenceOptions
from engines.adapters.transformers import TransformersEngine, TransformersOptions
from engines.engine import Engine, Model
from engines.errors import BadOption, UnknownEngine
from workloads.options import nearest, typed_options

_ADAPTERS: dict[str, tuple[type[msgspec.Struct], Callable[[Model, Any], Engine]]] = {
    "openai": (OpenAiOptions, OpenAiEngine),
    "reference": (ReferenceOptions, ReferenceEngine),
    "transformers": (TransformersOptions, TransformersEngine),
}
ADAPTERS = tuple(_ADAPTERS)
"""Names of the adapters."""


def check_options(adapter: str, options: Mapping[str, Any]) -> msgspec.Struct:
    """The adapter's typed options; nothing is made.

    Raises:
        UnknownEngine: no adapter of that name; the nearest is named.
        BadOption: an option is unknown (the nearest is named) or of the wrong type.
    """
    if adapter not in _ADAPTERS:
        raise UnknownEngine(f"unknown engine '{adapter}'; {nearest(adapter, _ADAPTERS)}")
    return typed_options(_ADAPTERS[adapter][0], options, f"engine '{adapter}'", BadOption)


def option_names(adapter: str) -> tuple[str, ...]:
    """Names of an adapter's options."""
    return _ADAPTERS[adapter][0].__struct_fields__


def engine(adapter: str, model: Model, options: Mapping[str, Any]) -> Engine:
    """Make an engine; nothing is started.

    Raises:
        UnknownEngine, BadOption: as :func:`check_options`.
        ModelNotFound, NotInstalled: what the adapter needs is not there.
    """
    checked = check_options(adapter, options)
    return _ADAPTERS[adapter][1](model, checked)
