"""The list of workloads and trace formats."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bakeoff.harness.rules.rule_set import Rules
from bakeoff.results.text.format import plain_block
from bakeoff.workloads import Random, Replay, workload_names
from bakeoff.workloads.passages import Embeddings, Rerank
from bakeoff.workloads.presets import built_in, preset_names
from bakeoff.workloads.registry import ENTRY_POINTS, FileOptions, PresetOptions
from bakeoff.workloads.sample import Sessions
from bakeoff.workloads.traces.formats import TRACE_FORMATS

REPLAYS = {
    "random": ("random words of fixed or uniformly distributed lengths", Random),
    "embeddings": ("random texts to embed, by /v1/embeddings", Embeddings),
    "rerank": ("random documents to rank by a query, by /v1/rerank", Rerank),
    "trace": ("a trace: its times, lengths and shared prefixes, with synthetic text", Replay),
    "sessions": ("recorded sessions, as bakeoff workloads sample writes them", Sessions),
    "preset": ("your own preset, as bakeoff workloads fit writes it", FileOptions),
}
"""Workloads that are not built-in presets, with the struct whose fields are their options."""


def catalogue() -> dict[str, Any]:
    """Everything that ``bakeoff workloads list`` prints."""
    presets = [{"name": name, **_preset(name)} for name in preset_names()]
    own_names = {*preset_names(), *REPLAYS}
    plugins: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    return {
        "presets": presets,
        "preset_options": list(PresetOptions.__struct_fields__),
        "replays": [
            {"name": name, "summary": summary, "options": list(kind.__struct_fields__)}
            for name, (summary, kind) in REPLAYS.items()
        ],
        "others": [
            {"name": name, "made_by": plugins[name].value} for name in workload_names() if name not in own_names
        ],
        "trace_formats": TRACE_FORMATS,
    }


def print_catalogue(listing: dict[str, Any], console: Console) -> None:
    """Print :func:`catalogue` as tables."""
    presets = [(preset["name"], preset["summary"], f"{preset['anchors']} anchors") for preset in listing["presets"]]
    _print(console, "Presets", f"options {', '.join(listing['preset_options'])}", presets)
    replays = [
        (replay["name"], f"{replay['summary']}\noptions {', '.join(replay['options'])}")
        for replay in listing["replays"]
    ]
    _print(console, "Replays", "of your own data", replays)
    if listing["others"]:
        plugins = [(plugin["name"], plugin["made_by"]) for plugin in listing["others"]]
        _print(console, "From other packages", f"entry points {ENTRY_POINTS}", plugins)
    formats = list(listing["trace_formats"].items())
    _print(console, "Trace formats", "of the workload trace; detected from the file", formats)
    console.print(Text("\nTo profile one: bakeoff workloads show NAME, or the path of a trace or of a preset's file."))


def print_rules(rules: Sequence[Rules], console: Console) -> None:
    """Print sets of rules of play, with what they say that is done otherwise."""
    rows = [(each.name, "\n".join([each.summary, f"from {each.source}", *each.remarks])) for each in rules]
    _print(console, "Rules of play", "rules of an experiment, --rules of bench", rows)


def _preset(name: str) -> dict[str, Any]:
    preset = built_in(name)
    return {"summary": preset.summary, "anchors": len(preset.anchors), "arrival": preset.arrival.process}


def _print(console: Console, title: str, caption: str, rows: Sequence[tuple[str, ...]]) -> None:
    console.print(
        Text.assemble(
            ("\n" if title not in {"Presets", "Rules of play"} else "", ""), (title, "bold"), (f"  {caption}", "dim")
        )
    )
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=17, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(plain_block(text)) for text in row))
    console.print(table)
