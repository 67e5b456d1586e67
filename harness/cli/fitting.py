"""``bakeoff workloads fit``: fit a preset to a trace."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

from bakeoff.harness.cli.options import EXIT_OK, Json, standard_output
from bakeoff.harness.cli.traffic import workloads_app

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from bakeoff.workloads.fitting import Candidate, Fit

FormatOptions = Annotated[list[str] | None, cyclopts.Parameter(name=["--format-option", "--option"], negative="")]
_MAX_ROWS = cyclopts.Parameter(name="--max-rows", validator=cyclopts.validators.Number(gte=1))
_ARRIVAL_FIGURES = {
    "rate_per_s": "\nper s",
    "gap_cv": "CV of\ngaps",
    "dispersion_1s": "dispersion\nover 1 s",
    "dispersion_10s": "\n10 s",
    "dispersion_60s": "\n60 s",
}
_TITLES = {
    "rate_per_s": "sessions per second",
    "gap_cv": "CV of the gaps",
    "dispersion_1s": "dispersion, 1 s",
    "dispersion_10s": "dispersion, 10 s",
    "dispersion_60s": "dispersion, 60 s",
    "input_mean": "input tokens, mean",
    "output_mean": "output tokens, mean",
    "input_per_output": "input over output",
    "turns_mean": "turns, mean",
    "append_mean": "appended tokens, mean",
    "think_mean_s": "pause, mean s",
    "prefix_bound": "prefix hits, at most",
    "input": "input tokens",
    "output": "output tokens",
    "first_input": "first input tokens",
    "append": "appended tokens",
    "think_s": "pauses",
    "turns": "turns",
    "gaps_s": "gaps",
}


@workloads_app.command
def fit(
    trace: Path,
    *,
    format_: Annotated[str | None, cyclopts.Parameter(name="--format")] = None,
    format_option: FormatOptions = None,
    out: Path | None = None,
    name: str | None = None,
    max_rows: Annotated[int | None, _MAX_ROWS] = None,
    seed: int = 1,
    json: Json = False,
) -> int:
    """Fit a preset to a trace, and report the goodness of fit.

    The preset is a file for the workload preset and for bakeoff workloads show. It has distributions, but no rows or
    text of the trace.

    Parameters
    ----------
    trace
        File or folder of the trace.
    format_
        Format of the trace, from bakeoff workloads list; detected by default.
    format_option
        Option of the format as key=value, with values as in TOML. May be given several times.
    out
        File to write. The default is NAME.toml in this folder, which must not exist yet.
    name
        Name of the traffic; the default is the name of the trace.
    max_rows
        Number of rows to read, from the beginning; the default is all.
    seed
        Seed of the draws that compare arrival processes.
    json
        Print the preset's path, the compared processes, and all distances and figures as JSON on stdout.
    """
    from bakeoff.harness.cli.reading import print_json
    from bakeoff.harness.traffic.profile.selection import parse_options
    from bakeoff.results.files.atomic import write_atomic
    from bakeoff.workloads import Replay, Seed
    from bakeoff.workloads.fitting import fit as fitted
    from bakeoff.workloads.fitting import preset_toml
    from bakeoff.workloads.options import typed_options

    preset_name = name or _stem(trace)
    place = _place(trace, out, preset_name)
    options = {"path": str(trace), "format": format_, "format_options": parse_options(format_option or [])}
    replay = typed_options(Replay, options | {"max_rows": max_rows}, f"trace {trace}", _bad_option())
    result = fitted(replay, Seed.of(str(seed)), preset_name)
    write_atomic(place, preset_toml(result.preset, _head(result)).encode())
    if json:
        print_json(_as_data(result, place))
    else:
        _print(result, place)
    return EXIT_OK


def _bad_option() -> type[Exception]:
    from bakeoff.workloads import BadOption

    return BadOption


def _stem(trace: Path) -> str:
    """The trace's name without suffixes, as valid UTF-8."""
    name = trace.resolve().name
    for suffix in (".gz", ".csv", ".jsonl", ".json"):
        name = name.removesuffix(suffix)
    return name.encode(errors="replace").decode() or "trace"


def _place(trace: Path, out: Path | None, name: str) -> Path:
    """Path of the preset, checked before the trace is read.

    Raises:
        BadOption: the preset cannot be written there.
    """
    place = out or Path(f"{name.replace('/', '-')}.toml")
    if place.suffix != ".toml":
        raise _bad_option()(f"{place}: a preset's file ends in .toml")
    if out is None and place.exists():
        raise _bad_option()(f"{place} exists already; choose another file with --out")
    if place.is_dir() or not place.parent.is_dir():
        raise _bad_option()(f"{place} cannot be written; choose another file with --out")
    if place.exists() and trace.exists() and place.samefile(trace):
        raise _bad_option()(f"{place} is the trace; choose another file with --out")
    return place


def _head(result: "Fit") -> list[str]:
    """Comments at the top of the file."""
    return [
        f"Written by bakeoff workloads fit from {result.requests:,} requests in {result.sessions:,} sessions.",
        f"Arrivals: {result.arrivals.reason}.",
        _verdict(result),
    ]


def _verdict(result: "Fit") -> str:
    complaints = result.goodness.complaints
    if complaints:
        return f"poor fit: {'; '.join(complaints)}"
    chance = any(item.could_be_chance and not item.is_within for item in result.goodness.figures)
    unless = ", or differs by no more than random draws of the preset do (~)" if chance else ""
    return f"good fit: every distance is within its limit and every figure within its tolerance{unless}"


def _as_data(result: "Fit", place: Path) -> dict[str, Any]:
    import msgspec

    goodness = result.goodness
    return {
        "path": str(place),
        "requests": result.requests,
        "sessions": result.sessions,
        "arrival": result.arrivals.chosen,
        "reason": result.arrivals.reason,
        "candidates": [{**msgspec.structs.asdict(item), "score": item.score} for item in result.arrivals.candidates],
        "distances": [{**msgspec.structs.asdict(item), "is_within": item.is_within} for item in goodness.distances],
        "figures": [
            {
                **msgspec.structs.asdict(item),
                "difference": item.difference,
                "is_within": item.is_within,
                "could_be_chance": item.could_be_chance,
            }
            for item in goodness.figures
        ],
        "poor": list(goodness.complaints),
        "notes": list(result.notes),
    }


def _print(result: "Fit", place: Path) -> None:
    console = standard_output()
    _say(console, f"{result.preset.summary}", "bold")
    _say(console, f"{result.requests:,} requests in {result.sessions:,} sessions", "dim")
    _say(console, f"\nArrivals: {result.arrivals.reason}.")
    if result.arrivals.candidates:
        console.print(_arrival_table(result))
    _say(console, "\nTraffic drawn from the preset, compared with the trace:")
    console.print(_distance_table(result))
    console.print(_figure_table(result))
    _say(console, f"\n{_verdict(result)}", "bold yellow" if result.goodness.complaints else "bold green")
    console.print(f"preset: {place}", markup=False, highlight=False, soft_wrap=True)


def _say(console: "Console", text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False)


def _table(*headings: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    return table


def _arrival_table(result: "Fit") -> "Table":
    """The trace, the chosen process and the rejected ones."""
    table = _table("process", "KS of\ngaps", *_ARRIVAL_FIGURES.values(), "score", "parameters")
    trace = {figure.name: figure.trace for figure in result.goodness.figures}
    table.add_row("the trace", "", *(_number(trace.get(name)) for name in _ARRIVAL_FIGURES), "", "", style="bold")
    for number, item in enumerate(result.arrivals.candidates):
        figures = [_number(item.figures.get(name)) for name in _ARRIVAL_FIGURES]
        texts = (f"{item.gap_ks:.3f}", *figures, f"{item.score:.2f}", _parameters(item))
        table.add_row(f"{'' if number else '→ '}{item.arrival.process}", *texts, style="" if number else "green")
    return table


def _parameters(item: "Candidate") -> str:
    """Numeric parameters; tables are only in the file."""
    options = item.arrival.options
    return ", ".join(f"{name} {value:g}" for name, value in options.items() if isinstance(value, int | float)) or "–"


def _distance_table(result: "Fit") -> "Table":
    table = _table("distribution", "KS", "at most", "")
    for item in result.goodness.distances:
        table.add_row(_TITLES[item.name], f"{item.ks:.3f}", f"{item.limit:.3f}", _mark(is_within=item.is_within))
    return table


def _figure_table(result: "Fit") -> "Table":
    table = _table("figure", "trace", "preset", "one draw", "difference", "tolerance", "")
    for item in result.goodness.figures:
        spread = f"± {_number(item.spread)}" if item.spread else ""
        mark = "~" if item.could_be_chance and not item.is_within else _mark(is_within=item.is_within)
        off = (f"{100 * item.difference:+.1f} %", f"± {100 * item.tolerance:.0f} %", mark)
        table.add_row(_TITLES[item.name], _number(item.trace), _number(item.preset), spread, *off)
    return table


def _mark(*, is_within: bool) -> str:
    return "✓" if is_within else "✗"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
