"""What workloads and trace formats there are."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from results.report.format import plain_block
from workloads import Random, Replay, workload_names
from workloads.presets import built_in, preset_names
from workloads.registry import ENTRY_POINTS, FileOptions, PresetOptions
from workloads.sample import Sessions
from workloads.traces.formats import TRACE_FORMATS

REPLAYS = {
    "random": ("random words of fixed or evenly spread lengths", Random),
    "trace": ("a trace: its times, lengths and shared prefixes, in text that fits", Replay),
    "sessions": ("sessions that were written down, by bakeoff workloads sample or anyone", Sessions),
    "preset": ("a preset of one's own, as bakeoff workloads fit writes it", FileOptions),
}
"""Workloads that are no presets, with the struct whose fields are their options."""


def catalogue() -> dict[str, Any]:
    """Everything that ``bakeoff workloads list`` prints."""
    presets = [{"name": name, **_preset(name)} for name in preset_names()]
    ours = {*preset_names(), *REPLAYS}
    others: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    return {
        "presets": presets,
        "preset_options": list(PresetOptions.__struct_fields__),
        "replays": [
            {"name": name, "summary": summary, "options": list(kind.__struct_fields__)}
            for name, (summary, kind) in REPLAYS.items()
        ],
        "others": [{"name": name, "made_by": others[name].value} for name in workload_names() if name not in ours],
        "trace_formats": TRACE_FORMATS,
    }


def print_catalogue(found: dict[str, Any], console: Console) -> None:
    """Print it as tables."""
    presets = [(one["name"], one["summary"], f"{one['anchors']} anchors") for one in found["presets"]]
    _print(console, "Presets", f"options {', '.join(found['preset_options'])}", presets)
    replays = [(one["name"], f"{one['summary']}\noptions {', '.join(one['options'])}") for one in found["replays"]]
    _print(console, "Replays", "of what you have", replays)
    if found["others"]:
        others = [(one["name"], one["made_by"]) for one in found["others"]]
        _print(console, "Of other packages", f"entry points {ENTRY_POINTS}", others)
    _print(
        console, "Trace formats", "of the workload trace; found by a file's looks", list(found["trace_formats"].items())
    )
    console.print(
        Text("\nbakeoff workloads show NAME draws one; a path of a trace or a preset's file may stand for NAME.")
    )


def _preset(name: str) -> dict[str, Any]:
    preset = built_in(name)
    return {"summary": preset.summary, "anchors": len(preset.anchors), "arrival": preset.arrival.process}


def _print(console: Console, title: str, words: str, rows: Sequence[tuple[str, ...]]) -> None:
    console.print(Text.assemble(("\n" if title != "Presets" else "", ""), (title, "bold"), (f"  {words}", "dim")))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=17, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(plain_block(text)) for text in row))
    console.print(table)
