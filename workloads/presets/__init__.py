"""Kinds of traffic as data, and the code that turns them into sessions."""

from workloads.presets.preset import Anchor, Documents, NaturalArrival, Preset, Shared, built_in, preset_names
from workloads.presets.traffic import PresetTraffic

__all__ = [
    "Anchor",
    "Documents",
    "NaturalArrival",
    "Preset",
    "PresetTraffic",
    "Shared",
    "built_in",
    "preset_names",
]
