"""Commands about workloads: list, show, sample and fit."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, TypeVar

import cyclopts

from bakeoff.harness.cli.command import Command, Title
from bakeoff.harness.cli.exits import EXIT_OK
from bakeoff.harness.cli.options import Json, WorkloadOptions
from bakeoff.harness.cli.output import standard_output
from bakeoff.harness.host.streams import has_reader

if TYPE_CHECKING:
    from bakeoff.harness.traffic.profile import ShownProfile
    from bakeoff.workloads import Tokenizer
    from bakeoff.workloads.fitting import Fit

_Result = TypeVar("_Result")


Folder = Annotated[Path | None, cyclopts.Parameter(name="--tokenizer")]
_COUNT = cyclopts.Parameter(name=["--sessions", "-n"], validator=cyclopts.validators.Number(gte=1))


def list_workloads(*, json: Json = False) -> int:
    """List workloads and replayable trace formats.

    Examples
    --------
    bakeoff workloads list
    bakeoff workloads list --json
    bakeoff workloads list | grep agent

    Parameters
    ----------
    json
        Print the list as JSON on stdout.
    """
    from bakeoff.harness.cli.output import print_json
    from bakeoff.harness.traffic.profile.catalogue import catalogue, print_catalogue

    listing = catalogue()
    if json:
        print_json(listing)
    else:
        print_catalogue(listing, standard_output())
    return EXIT_OK


def list_rules(*, json: Json = False) -> int:
    """List the rules by which sessions can be played.

    Examples
    --------
    bakeoff workloads rules
    bakeoff workloads rules --json
    bakeoff workloads rules | grep steady

    Parameters
    ----------
    json
        Print the rules as JSON on stdout, with every value.
    """
    import msgspec

    from bakeoff.harness.cli.output import print_json
    from bakeoff.harness.rules.rule_set import rule_sets
    from bakeoff.harness.traffic.profile.catalogue import print_rules

    rules = rule_sets()
    if json:
        print_json(msgspec.to_builtins(rules))
    else:
        print_rules(rules, standard_output())
    return EXIT_OK


def show(
    name: str,
    *,
    option: WorkloadOptions = None,
    seed: int = 1,
    sessions: Annotated[int | None, _COUNT] = None,
    tokenizer: Folder = None,
    html: Path | None = None,
    json: Json = False,
) -> int:
    """Profile a workload: arrivals, lengths, sessions and cacheable share.

    Nothing is sent to an engine. Prompts are written only if the workload cannot tell their lengths without.

    Examples
    --------
    bakeoff workloads show chat
    bakeoff workloads show agent-coding --sessions 500
    bakeoff workloads show trace.jsonl

    Parameters
    ----------
    name
        A workload, or the path of a trace, of a preset's file or of recorded sessions.
    option
        Workload option as key=value, with values as in TOML. May be given several times.
    seed
        Seed of the sample.
    sessions
        Maximum number of sessions in the sample. The default is 2000, or 20000 for a trace that holds lengths only.
    tokenizer
        Folder of a model whose tokenizer counts the prompts that must be written, or approximate. The default is the
        pulled model.
    html
        Also write the profile, with charts, as one offline page.
    json
        Print the profile as JSON on stdout.
    """
    import msgspec

    from bakeoff.harness.cli.output import print_json
    from bakeoff.harness.traffic.profile import print_profile, write_page

    profile = _profile(name, option or [], seed, sessions, tokenizer)
    if html is not None:
        write_page(profile, html)
    if json:
        print_json(msgspec.to_builtins(profile))
    else:
        console = standard_output()
        print_profile(profile, console)
        if html is not None:
            console.print(f"\npage: {html}", markup=False, highlight=False, soft_wrap=True)
    return EXIT_OK


def sample(
    name: str,
    *,
    sessions: Annotated[int, _COUNT] = 100,
    option: WorkloadOptions = None,
    seed: int = 1,
    tokenizer: Folder = None,
    out: Path | None = None,
) -> int:
    """Write a workload's sessions as JSON lines, to be sent unchanged later.

    Examples
    --------
    bakeoff workloads sample chat -n 100 --tokenizer approximate
    bakeoff workloads sample rag -n 20 --tokenizer model/ --out sessions.jsonl
    bakeoff workloads sample trace.jsonl -n 50 --tokenizer approximate

    Parameters
    ----------
    name
        A workload, or the path of a trace, of a preset's file or of recorded sessions.
    sessions
        Maximum number of sessions.
    option
        Workload option as key=value, with values as in TOML. May be given several times.
    seed
        Seed of the traffic.
    tokenizer
        Folder of the model whose tokenizer counts the prompts, or approximate. The default is the pulled model.
    out
        File to write, compressed if it ends in .gz. The default is stdout.
    """
    from bakeoff.harness.traffic.profile.selection import select, tokenizer_at
    from bakeoff.results.files.atomic import write_atomic
    from bakeoff.workloads import Seed
    from bakeoff.workloads.sample import SampleCount, gzipped, session_lines

    selection, count = select(name, option or []), SampleCount()
    lines = session_lines(selection.workload, tokenizer_at(tokenizer)[0], Seed.of(str(seed)), sessions, count)
    if out is None:
        _print_lines(lines, sys.stdout.buffer)
    else:
        write_atomic(out, gzipped(lines) if out.suffix == ".gz" else lines)
        sys.stdout.write(
            f"{out}: {count.sessions:,} sessions, {count.requests:,} requests, {count.prompt_tokens:,} prompt tokens\n"
        )
    return EXIT_OK


def fit(
    trace: str,
    *,
    option: WorkloadOptions = None,
    name: str | None = None,
    out: Path | None = None,
    seed: int = 1,
    tokenizer: Folder = None,
    json: Json = False,
) -> int:
    """Fit a preset to a trace, and compare its traffic with the trace.

    The preset has distributions, but no rows or text of the trace.

    Examples
    --------
    bakeoff workloads fit trace.jsonl
    bakeoff workloads fit trace.csv --option max_rows=1000
    bakeoff workloads fit trace.jsonl --json

    Parameters
    ----------
    trace
        Path of a trace or of recorded sessions.
    option
        Option of the workload trace as key=value, such as format="csv" or max_rows=10000. May be given several times.
    name
        Name of the traffic; the default is the name of the trace.
    out
        File to write. The default is NAME.toml in this folder, which must not exist yet.
    seed
        Seed of the draws.
    tokenizer
        Folder of the model whose tokenizer counts prompts without lengths, or approximate. Default: the pulled model.
    json
        Print the preset's path, the comparison and the notes as JSON on stdout.
    """
    from bakeoff.harness.traffic.profile.selection import select
    from bakeoff.results.files.atomic import write_atomic
    from bakeoff.workloads import Seed
    from bakeoff.workloads.fitting import fit as fit_preset
    from bakeoff.workloads.presets.toml import preset_toml

    preset_name = name or _stem(trace)
    place = _place(Path(trace), out, preset_name)
    selection = select(trace, option or [])

    def fitted(counting: "tuple[Tokenizer, Path] | None") -> "Fit":
        tokenizer_ = counting[0] if counting else None
        return fit_preset(selection.workload, Seed.of(str(seed)), preset_name, tokenizer=tokenizer_)

    result = _counting(tokenizer, fitted)
    head = [
        f"Written by bakeoff workloads fit from {result.requests:,} requests in {result.sessions:,} sessions.",
        f"Arrivals: {result.arrivals}.",
        _verdict(result),
    ]
    write_atomic(place, preset_toml(result.preset, head).encode())
    _print_fit(result, place, as_json=json)
    return EXIT_OK


def _stem(trace: str) -> str:
    """The trace's name without suffixes, as valid UTF-8."""
    name = Path(trace).resolve().name
    for suffix in (".gz", ".csv", ".jsonl", ".json"):
        name = name.removesuffix(suffix)
    return name.encode(errors="replace").decode() or "trace"


def _place(trace: Path, out: Path | None, name: str) -> Path:
    """Path of the preset, checked before the trace is read.

    Raises:
        BadOption: the preset cannot be written there.
    """
    from bakeoff.workloads import BadOption

    place = out or Path(f"{name.replace('/', '-')}.toml")
    if place.suffix != ".toml":
        raise BadOption(f"{place}: a preset's file ends in .toml")
    if out is None and place.exists():
        raise BadOption(f"{place} exists already; choose another file with --out")
    if place.is_dir() or not place.parent.is_dir():
        raise BadOption(f"{place} cannot be written; choose another file with --out")
    if place.exists() and trace.exists() and place.samefile(trace):
        raise BadOption(f"{place} is the trace; choose another file with --out")
    return place


def _verdict(result: "Fit") -> str:
    if result.poor:
        return f"poor fit: {', '.join(result.poor)} differ by more than the tolerance"
    return "good fit: every figure is within its tolerance"


def _print_fit(result: "Fit", place: Path, *, as_json: bool) -> None:
    from bakeoff.harness.cli.output import print_json
    from bakeoff.harness.traffic.profile.figures import figure_text
    from bakeoff.results.show.table import text_table
    from bakeoff.results.show.terminal import print_table

    if as_json:
        figures = [
            {"name": item.name, "trace": item.trace, "preset": item.preset, "difference": item.difference,
             "tolerance": item.tolerance, "is_within": item.is_within}
            for item in result.figures
        ]  # fmt: skip
        data = {"path": str(place), "requests": result.requests, "sessions": result.sessions, "figures": figures}
        print_json(data | {"arrivals": result.arrivals, "poor": result.poor, "notes": result.notes})
        return
    console = standard_output()

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False)

    say(result.preset.summary.partition(";")[0], "bold")
    say(f"{result.requests:,} requests in {result.sessions:,} sessions; arrivals: {result.arrivals}", "dim")
    rows = (
        (
            *(item.name, figure_text(item.name, item.trace), figure_text(item.name, item.preset)),
            *(f"{100 * item.difference:+.1f} %", f"± {100 * item.tolerance:.0f} %", "✓" if item.is_within else "✗"),
        )
        for item in result.figures
    )
    headings = ("figure", "trace", "preset", "difference", "tolerance", "")
    print_table(text_table("Fit", headings, rows), console)
    for note in result.notes:
        say(note, "dim")
    say(_verdict(result), "bold yellow" if result.poor else "bold green")
    console.print(f"preset: {place}", markup=False, highlight=False, soft_wrap=True)


def _profile(name: str, options: list[str], seed: int, sessions: int | None, folder: Path | None) -> "ShownProfile":
    from bakeoff.harness.traffic.profile.selection import profile_selection, select

    selection = select(name, options)
    return _counting(folder, lambda counting: profile_selection(selection, seed, sessions, counting))


def _counting(folder: Path | None, work: "Callable[[tuple[Tokenizer, Path] | None], _Result]") -> _Result:
    """Do work with the tokenizer in a folder; by default without one, or with the pulled model's where it needs one."""
    from bakeoff.harness.traffic.profile.selection import tokenizer_at
    from bakeoff.workloads import NoTokenizer

    if folder is not None:
        return work(tokenizer_at(folder))
    try:
        return work(None)
    except NoTokenizer:
        return work(tokenizer_at(None))


def _print_lines(lines: Iterable[bytes], out: BinaryIO) -> None:
    """Print lines until the reader closes its end, as ``head`` does."""
    for line in lines:
        out.write(line)
        if not has_reader(out):
            return
    out.flush()


COMMANDS = (
    Command("workloads", None, Title.PREPARE, 50, "List, profile, sample and fit workloads."),
    Command("workloads list", list_workloads),
    Command("workloads rules", list_rules),
    Command("workloads show", show),
    Command("workloads sample", sample),
    Command("workloads fit", fit),
)
