"""``bakeoff workloads fit``: a preset from a trace, and how good it is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

from harness.cli.options import EXIT_OK, Json, standard_output
from harness.cli.traffic import workloads_app

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from workloads.fitting import Candidate, Fit

FormatOptions = Annotated[list[str] | None, cyclopts.Parameter(name=["--format-option", "--option"], negative="")]
_MAX_ROWS = cyclopts.Parameter(name="--max-rows", validator=cyclopts.validators.Number(gte=1))
_ARRIVAL_FIGURES = {
    "rate_per_s": "\nper s",
    "gap_cv": "CV of\ngaps",
    "dispersion_1s": "dispersion\nover 1 s",
    "dispersion_10s": "\n10 s",
    "dispersion_60s": "\n60 s",
}
_WORDS = {
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

    The preset is a file for the workload preset and for bakeoff workloads show. It holds distributions, no row of the
    trace and no text.

    Parameters
    ----------
    trace
        The trace's file or folder.
    format_
        Its format, as bakeoff workloads list names them; the default is what it looks like.
    format_option
        key=value of the format, as often as there are options; values as in TOML.
    out
        File for the preset; the default is NAME.toml here, which must not be there yet.
    name
        What to call the traffic; the default is the trace's name.
    max_rows
        Only the first rows of the trace.
    seed
        Of the draws by which processes are compared.
    json
        Print the preset's place, all processes that were compared, and all distances and figures as JSON on stdout.
    """
    from harness.cli.reading import print_json
    from harness.traffic.profile.selection import parse_options
    from results.atomic import write_atomic
    from workloads import Replay, Seed
    from workloads.fitting import fit as fitted
    from workloads.fitting import preset_toml
    from workloads.options import typed_options

    shown = name or _stem(trace)
    place = _place(trace, out, shown)
    options = {"path": str(trace), "format": format_, "format_options": parse_options(format_option or [])}
    replay = typed_options(Replay, options | {"max_rows": max_rows}, f"trace {trace}", _bad_option())
    found = fitted(replay, Seed.of(str(seed)), shown)
    write_atomic(place, preset_toml(found.preset, _head(found)).encode())
    if json:
        print_json(_as_data(found, place))
    else:
        _print(found, place)
    return EXIT_OK


def _bad_option() -> type[Exception]:
    from workloads import BadOption

    return BadOption


def _stem(trace: Path) -> str:
    """The trace's name without what says how it is written, and such that any file can hold it."""
    name = trace.resolve().name
    for suffix in (".gz", ".csv", ".jsonl", ".json"):
        name = name.removesuffix(suffix)
    return name.encode(errors="replace").decode() or "trace"


def _place(trace: Path, out: Path | None, name: str) -> Path:
    """Where the preset goes, looked at before the trace is read.

    Raises:
        BadOption: it cannot go there.
    """
    place = out or Path(f"{name.replace('/', '-')}.toml")
    if place.suffix != ".toml":
        raise _bad_option()(f"{place}: a preset's file ends in .toml")
    if out is None and place.exists():
        raise _bad_option()(f"{place} is there already; say with --out where the preset goes")
    if place.is_dir() or not place.parent.is_dir():
        raise _bad_option()(f"{place} cannot be written; say with --out where the preset goes")
    if place.exists() and trace.exists() and place.samefile(trace):
        raise _bad_option()(f"{place} is the trace; say with --out where the preset goes")
    return place


def _head(found: "Fit") -> list[str]:
    """Comments of the file."""
    return [
        f"Written by bakeoff workloads fit from {found.requests:,} requests in {found.sessions:,} sessions.",
        f"Arrivals: {found.arrivals.reason}.",
        _verdict(found),
    ]


def _verdict(found: "Fit") -> str:
    complaints = found.goodness.complaints
    if complaints:
        return f"poor fit: {'; '.join(complaints)}"
    chance = any(one.could_be_chance and not one.is_within for one in found.goodness.figures)
    unless = ", or no farther off than one draw of the preset from another (~)" if chance else ""
    return f"good fit: every distance is within its limit and every figure within its tolerance{unless}"


def _as_data(found: "Fit", place: Path) -> dict[str, Any]:
    import msgspec

    goodness = found.goodness
    return {
        "path": str(place),
        "requests": found.requests,
        "sessions": found.sessions,
        "arrival": found.arrivals.chosen,
        "reason": found.arrivals.reason,
        "candidates": [{**msgspec.structs.asdict(one), "score": one.score} for one in found.arrivals.candidates],
        "distances": [{**msgspec.structs.asdict(one), "is_within": one.is_within} for one in goodness.distances],
        "figures": [
            {
                **msgspec.structs.asdict(one),
                "difference": one.difference,
                "is_within": one.is_within,
                "could_be_chance": one.could_be_chance,
            }
            for one in goodness.figures
        ],
        "poor": list(goodness.complaints),
        "notes": list(found.notes),
    }


def _print(found: "Fit", place: Path) -> None:
    console = standard_output()
    _say(console, f"{found.preset.summary}", "bold")
    _say(console, f"{found.requests:,} requests in {found.sessions:,} sessions", "dim")
    _say(console, f"\nArrivals: {found.arrivals.reason}.")
    if found.arrivals.candidates:
        console.print(_arrival_table(found))
    _say(console, "\nTraffic drawn from the preset beside the trace:")
    console.print(_distance_table(found))
    console.print(_figure_table(found))
    _say(console, f"\n{_verdict(found)}", "bold yellow" if found.goodness.complaints else "bold green")
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


def _arrival_table(found: "Fit") -> "Table":
    """The trace, the chosen process and the rejected ones."""
    table = _table("process", "KS of\ngaps", *_ARRIVAL_FIGURES.values(), "score", "parameters")
    trace = {figure.name: figure.trace for figure in found.goodness.figures}
    table.add_row("the trace", "", *(_number(trace.get(name)) for name in _ARRIVAL_FIGURES), "", "", style="bold")
    for number, one in enumerate(found.arrivals.candidates):
        figures = [_number(one.figures.get(name)) for name in _ARRIVAL_FIGURES]
        texts = (f"{one.gap_ks:.3f}", *figures, f"{one.score:.2f}", _parameters(one))
        table.add_row(f"{'' if number else '→ '}{one.arrival.process}", *texts, style="" if number else "green")
    return table


def _parameters(one: "Candidate") -> str:
    """Those that are numbers; tables are for the file."""
    options = one.arrival.options
    return ", ".join(f"{name} {value:g}" for name, value in options.items() if isinstance(value, int | float)) or "–"


def _distance_table(found: "Fit") -> "Table":
    table = _table("distribution", "KS", "at most", "")
    for one in found.goodness.distances:
        table.add_row(_WORDS[one.name], f"{one.ks:.3f}", f"{one.limit:.3f}", _mark(is_within=one.is_within))
    return table


def _figure_table(found: "Fit") -> "Table":
    table = _table("figure", "trace", "preset", "one draw", "difference", "tolerance", "")
    for one in found.goodness.figures:
        spread = f"± {_number(one.spread)}" if one.spread else ""
        mark = "~" if one.could_be_chance and not one.is_within else _mark(is_within=one.is_within)
        off = (f"{one.difference:+.1%}", f"± {one.tolerance:.0%}", mark)
        table.add_row(_WORDS[one.name], _number(one.trace), _number(one.preset), spread, *off)
    return table


def _mark(*, is_within: bool) -> str:
    return "✓" if is_within else "✗"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
