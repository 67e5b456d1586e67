"""Summary of a run for the terminal, readable at 100 columns, in a pipe and without colour.

Text from engines, models and users passes :func:`~bakeoff.results.text.format.plain`, so that it cannot control the
terminal, and is printed as ``rich.text.Text``, so that it is not parsed as markup.
"""

import itertools
import shlex
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from bakeoff.results.metrics import Unit
from bakeoff.results.records import Verdict
from bakeoff.results.report.attribution import print_attribution, profiled_trials
from bakeoff.results.report.clients import clients_text
from bakeoff.results.report.engine_settings import difference_text
from bakeoff.results.report.foreign_load import foreign_load_text
from bakeoff.results.report.group_tables import group_table
from bakeoff.results.report.objective_table import objective_tables
from bakeoff.results.report.quality import quality_warnings
from bakeoff.results.report.search_lines import print_search
from bakeoff.results.report.sections.addresses import address_tables
from bakeoff.results.report.sections.classes import class_tables
from bakeoff.results.report.sections.faults import fault_tables
from bakeoff.results.report.sections.models import model_tables
from bakeoff.results.report.sections.sessions import METRICS as OF_SESSIONS
from bakeoff.results.report.session_figures import session_table
from bakeoff.results.report.standing import (
    Standing,
    failures_text,
    merged_warnings,
    standing,
    status_text,
    trial_text,
    why_not_all,
)
from bakeoff.results.report.summary_table import Layout, layout_of, summary_tables
from bakeoff.results.report.verdict import verdict
from bakeoff.results.run.cache import cache_gaps_of
from bakeoff.results.run.capacity import capacities
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.groups import by_agent
from bakeoff.results.run.levels import levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Table
from bakeoff.results.show.terminal import fits, print_table
from bakeoff.results.text.cache import gap_text
from bakeoff.results.text.findings import sentences
from bakeoff.results.text.format import (
    listed,
    machine_text,
    moment_text,
    plain,
    share_text,
    value_text,
)

WIDTH = 100
"""Columns that the summary needs; output to a pipe has at least this width."""
_MAX_LINES = 3
"""Warnings, and declarations, that are printed unless all are asked for."""
_STYLES = {Standing.WHOLE: "green", Standing.PARTLY_VALID: "yellow", Standing.BROKEN: "bold red"}
_MIN_SHARE = 0.1
"""Fraction of the mean E2E above which a part other than prefill and decode is reported."""
_FULL = 0.95
_PARTS = (
    ("split_queue_s", "in the engine's queue"),
    ("split_other_s", "in the engine outside queue, prefill and decode"),
    ("split_outside_s", "between engine and client"),
)


def print_summary(run: Run, console: Console, *, every: bool = False) -> None:
    """Print a run: verdict, the summary's table, and what is missing and why.

    Args:
        run: a loaded run.
        console: the console; a pipe gets at least :data:`WIDTH` columns.
        every: print all warnings and declarations in full, rather than the first of them.
    """
    with _wide_enough(console):
        _print_head(run, console)
        _print_table(run, console)
        for parts in _group_tables(run):
            print_table(parts, console)
        if run.search is not None:
            print_search(run.search, console, capacities(run))
        _print_list(console, "Where the time went, by the engines' own metrics:", engine_lines(run), "")
        _print_list(console, "Prefix cache:", _cache_gaps(run), "")
        print_attribution(profiled_trials(run), console)
        _print_list(console, "INVALID trials, excluded from every number above:", _invalid(run), "red")
        _print_list(console, "Never finished:", _unfinished(run), "yellow")
        _print_list(console, "Logs cut off by a crash:", _torn(run), "yellow")
        path = shlex.quote(str(run.path))
        _print_shortened(console, path, "Warnings", _warnings(run), "yellow", every=every)
        _print_shortened(console, path, "Declared", run.declared, "", every=every)
        _print_provenance(run, console)


def _group_tables(run: Run) -> Iterator[Table]:
    """The results of parts of the requests: by class, model, address, within sessions, by agent; and the faults."""
    yield from objective_tables(run)
    yield from class_tables(run)
    yield from model_tables(run)
    yield from address_tables(run)[:1]
    if sessions := session_table(run):
        yield sessions
    if groups := by_agent(run):
        yield group_table(run, groups, OF_SESSIONS, heading="agent", label="Results by agent")
    yield from fault_tables(run)


def engine_lines(run: Run) -> list[str]:
    """The engines' own view: one line per level and engine with something notable.

    ``c=8, reference: 45 % of the mean E2E (328 of 723 ms) in the engine's queue; 12 preemptions``
    """
    lines: list[str] = []
    for level in levels_of(run):
        for cell in level.cells:
            remarks = [*_time(cell), *_cache(cell)]
            lines += [f"{level.title}, {cell.engine}: {'; '.join(remarks)}"] if remarks else []
    return lines


def _time(cell: Cell) -> Iterator[str]:
    whole = _centre(cell, "client_e2e_mean_s")
    for name, location in _PARTS:
        part = _centre(cell, name)
        if whole and part and part > _MIN_SHARE * whole:
            spent, total = value_text(Unit.SECONDS, part), value_text(Unit.SECONDS, whole)
            yield f"{share_text(part, whole)} of the mean E2E ({spent} of {total}) {location}"


def _cache(cell: Cell) -> Iterator[str]:
    usage, preemptions = _centre(cell, "server_kv_usage_share_peak"), _centre(cell, "server_preemptions")
    if usage and usage >= _FULL:
        yield f"KV cache up to {value_text(Unit.SHARE, usage)} full"
    if preemptions:
        yield f"{preemptions:,.3g} preemptions in a trial"


def _centre(cell: Cell, name: str) -> float | None:
    interval = cell.server.intervals.get(name)
    return interval.centre if interval else None


def _print_head(run: Run, console: Console) -> None:
    manifest = run.manifest
    line = verdict(run)
    console.print(_line(line.sentence, "bold"))
    if line.remedy:
        console.print(_line(line.remedy, ""), soft_wrap=True)  # to be copied
    console.print(_line(f"{plain(manifest.name)}: ", "bold") + _line(status_text(run), _STYLES[standing(run)]))
    if reason := why_not_all(run):
        console.print(_line(reason, "yellow"))
    for line in (f"Failure: {manifest.failure}" if manifest.failure else "", failures_text(run)):
        if line:
            console.print(_line(line, "red"))
    if difference := difference_text(run):
        console.print(_line(difference, "yellow"))
    for line in run.off_rules:
        console.print(_line(line, "yellow"))


def _print_provenance(run: Run, console: Console) -> None:
    manifest = run.manifest
    commit = f"commit {manifest.git_commit[:12]}" if manifest.git_commit else "no git checkout"
    runs = f"{len(run.counted)} of {run.planned} trials"
    foreign = foreign_load_text(run)
    for line in (
        f"{machine_text(manifest)} · {commit} · {moment_text(manifest.created_utc)} · {runs}",
        clients_text(run),
        f"foreign load: {foreign}" if foreign else "",
    ):
        if line:
            console.print(_line(line, "dim"))


def _print_table(run: Run, console: Console) -> None:
    """Print the summary in the first layout that has room for its intervals."""
    preferred = layout_of(run)
    layouts = [preferred, *(each for each in Layout if each is not preferred)]
    first = summary_tables(run, layouts[0])
    drawn = itertools.chain([first], (summary_tables(run, each) for each in layouts[1:]))  # drawn only if needed
    fitting = (tables for tables in drawn if all(fits(table, console) for table in tables))
    for table in next(fitting, first):
        print_table(table, console)


def _cache_gaps(run: Run) -> list[str]:
    return [f"{each.level}, {each.engine}: {gap_text(each.gaps)}" for each in cache_gaps_of(run)]


def _invalid(run: Run) -> list[str]:
    return [
        f"{trial_text(trial.record)}: {sentences(trial.record.invalidating)}"
        for trial in run.finished
        if trial.record.verdict is Verdict.INVALID
    ]


def _unfinished(run: Run) -> list[str]:
    """One line per engine and load with the missing repeats."""
    repeats: dict[tuple[str, str], list[str]] = {}
    for plan in run.unfinished:
        repeats.setdefault((plan.engine, plan.load.label), []).append(str(plan.repeat))
    return [f"{engine}, {load}: repeat {listed(missing)}" for (engine, load), missing in repeats.items()]


def _torn(run: Run) -> list[str]:
    return [f"{trial_text(plan)}: {line}" for plan in run.manifest.trials for line in run.torn.get(plan.id, [])]


def _warnings(run: Run) -> list[str]:
    return [*merged_warnings(run), *quality_warnings(run)]


def _print_shortened(console: Console, run: str, title: str, lines: Sequence[str], style: str, *, every: bool) -> None:
    """Print the first of many lines, each cut at the width, and how many there are."""
    shown = lines if every else lines[:_MAX_LINES]
    is_cut = not every and (len(shown) < len(lines) or any(len(line) + 2 > console.width for line in shown))
    where = f" ({len(lines)}; in full on the page, and by bakeoff report {run} --all)" if is_cut else ""
    if lines:
        console.print(_line(f"{title}{where}:", f"bold {style}".strip()), soft_wrap=True)
    for line in shown:
        if every:
            console.print(Padding(_line(line, style), (0, 0, 0, 2)))
        else:
            console.print(_line(f"  {line}", style), no_wrap=True, overflow="ellipsis")


def _print_list(console: Console, title: str, lines: Sequence[str], style: str) -> None:
    if lines:
        console.print(_line(title, f"bold {style}".strip()))
        for line in lines:
            console.print(Padding(_line(line, style), (0, 0, 0, 2)))


def _line(text: str, style: str) -> Text:
    return Text(plain(text), style=style)


@contextmanager
def _wide_enough(console: Console) -> Generator[None]:
    """Widen a pipe to the table's width while printing."""
    before = console.width
    if not console.is_terminal and before < WIDTH:
        console.width = WIDTH
    try:
        yield
    finally:
        if console.width != before:
            console.width = before
