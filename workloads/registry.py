"""Workloads by name."""

from collections.abc import Mapping
from typing import Any

from workloads.chat import Chat
from workloads.errors import BadOption, UnknownWorkload
from workloads.options import nearest, typed_options
from workloads.random import Random
from workloads.types import Workload

_WORKLOADS: dict[str, type[Chat] | type[Random]] = {"chat": Chat, "random": Random}
WORKLOADS = tuple(_WORKLOADS)
"""Names of the workloads."""


def workload(name: str, options: Mapping[str, Any]) -> Workload:
    """Make a workload from its name and options.

    Raises:
        UnknownWorkload: there is none of that name; the nearest is named.
        BadOption: an option is unknown (the nearest is named), of the wrong type or out of range.
    """
    if name not in _WORKLOADS:
        raise UnknownWorkload(f"unknown workload '{name}'; {nearest(name, _WORKLOADS)}")
    return typed_options(_WORKLOADS[name], options, f"workload '{name}'", BadOption)
