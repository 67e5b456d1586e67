"""Kinds of traffic as data, and the code that turns them into sessions."""

from bakeoff.workloads.presets.preset import (
    Anchor,
    Documents,
    NaturalArrival,
    Preset,
    Shared,
    SubAgents,
    built_in,
    preset_names,
)
from bakeoff.workloads.presets.traffic import PresetTraffic

__all__ = [
    "Anchor",
    "Documents",
    "NaturalArrival",
    "Preset",
    "PresetTraffic",
    "Shared",
    "SubAgents",
    "built_in",
    "preset_names",
]
