"""Workloads by name: presets, replays, and those of other packages."""

import functools
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.workloads.conversation import Api
from bakeoff.workloads.errors import BadOption, UnknownWorkload
from bakeoff.workloads.options import nearest, typed_options
from bakeoff.workloads.passages import Embeddings, Rerank
from bakeoff.workloads.presets import Preset, PresetTraffic, built_in, preset_names
from bakeoff.workloads.presets.preset import read_preset
from bakeoff.workloads.random import Random
from bakeoff.workloads.sample import Sessions
from bakeoff.workloads.traces.replay import Replay
from bakeoff.workloads.types import Workload

ENTRY_POINTS = "bakeoff.workloads"
"""Entry-point group for workloads of other packages: structs whose fields are the options."""


class PresetOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a built-in preset."""

    scale: float = 1.0
    """Factor on every length, before rounding; below 1 for machines too slow for the real lengths."""
    max_input_tokens: int | None = None
    """Longest prompt, in tokens after scaling; the default is the preset's limit, scaled."""
    api: Api = "chat"
    """``chat``, or ``completions`` for a base model."""
    images: int = 0
    """Synthetic pictures in each question of a chat."""
    image_width: int = 1024
    image_height: int = 1024
    """Size of these pictures in pixels."""


class FileOptions(PresetOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the user's own preset."""

    path: str
    """The preset's file, as ``bakeoff workloads fit`` writes it."""


_KINDS: dict[str, type[msgspec.Struct]] = {
    "random": Random, "embeddings": Embeddings, "rerank": Rerank, "sessions": Sessions, "trace": Replay,
}  # fmt: skip


def workload_names() -> tuple[str, ...]:
    """All names that :func:`workload` accepts, presets first."""
    return (*preset_names(), *_KINDS, "preset", *sorted(_others()))


def workload(name: str, options: Mapping[str, Any]) -> Workload:
    """Make a workload from its name and options.

    Raises:
        UnknownWorkload: no workload has that name; the message suggests the nearest.
        BadOption: an option is unknown, of the wrong type or out of range.
    """
    owner = f"workload '{name}'"
    if name in preset_names():
        own = typed_options(PresetOptions, options, owner, BadOption)
        return _preset_traffic(name, built_in(name), own, owner)
    if name == "preset":
        own = typed_options(FileOptions, options, owner, BadOption)
        return _preset_traffic(Path(own.path).stem, read_preset(Path(own.path)), own, owner)
    kind = _KINDS.get(name) or _other(name)
    instance: Any = typed_options(kind, options, owner, BadOption)
    return instance


def _preset_traffic(name: str, preset: Preset, options: PresetOptions, owner: str) -> PresetTraffic:
    try:
        return PresetTraffic(
            name, preset, options.scale, options.max_input_tokens, options.api,
            images=options.images, image_width=options.image_width, image_height=options.image_height,
        )  # fmt: skip
    except ValueError as error:
        raise BadOption(f"{owner}: {error}") from error


@functools.cache
def _others() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _other(name: str) -> type[msgspec.Struct]:
    point = _others().get(name)
    if point is None:
        raise UnknownWorkload(f"unknown workload '{name}'; {nearest(name, workload_names())}")
    try:
        kind = point.load()
    except Exception as error:
        raise UnknownWorkload(f"workload '{name}' of {point.value} cannot be loaded: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        raise UnknownWorkload(
            f"workload '{name}' of {point.value} must be a msgspec.Struct whose fields are its options"
        )
    return kind
