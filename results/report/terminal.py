"""Summary of a run for the terminal, readable at 100 columns, in a pipe and without colour.

Text from engines, models and users passes :func:`~bakeoff.results.text.format.plain`, so that it cannot control the
terminal, and is printed as ``rich.text.Text``, so that it is not parsed as markup.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bakeoff.results.metrics import CATALOGUE, Unit
from bakeoff.results.records import Verdict
from bakeoff.results.report.attribution import print_attribution, profiled_trials
from bakeoff.results.report.clients import WITH_ERROR, clients_text, error_of, uncalibrated_text
from bakeoff.results.report.engine_settings import difference_text
from bakeoff.results.report.foreign_load import foreign_load_text
from bakeoff.results.report.group_tables import group_table
from bakeoff.results.report.objective_table import objective_tables
from bakeoff.results.report.quality import match_of, quality_warnings, unchecked_text
from bakeoff.results.report.search_lines import print_search
from bakeoff.results.report.sections.addresses import address_tables
from bakeoff.results.report.sections.classes import class_tables
from bakeoff.results.report.sections.faults import fault_tables
from bakeoff.results.report.sections.models import model_tables
from bakeoff.results.report.sections.sessions import METRICS as OF_SESSIONS
from bakeoff.results.report.session_figures import session_table
from bakeoff.results.report.standing import (
    UNJUDGED,
    Standing,
    merged_warnings,
    standing,
    status_text,
    trial_text,
    why_not_all,
)
from bakeoff.results.report.verdict import verdict
from bakeoff.results.run.cache import cache_gaps_of
from bakeoff.results.run.capacity import capacities
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.groups import by_agent
from bakeoff.results.run.levels import levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.show.footnotes import Footnotes
from bakeoff.results.show.table import Table
from bakeoff.results.show.terminal import print_table, terminal_table
from bakeoff.results.text.cache import gap_text
from bakeoff.results.text.findings import sentences
from bakeoff.results.text.format import (
    ABSENT,
    interval_parts,
    listed,
    machine_text,
    moment_text,
    plain,
    share_text,
    value_text,
)

WIDTH = 100
"""Columns that the summary needs; output to a pipe has at least this width."""
_ENGINE_WIDTH = 12
"""Minimum columns for an engine's name, and below it ``5/5 valid`` and ``0/512 failed``."""
_STYLES = {Standing.WHOLE: "green", Standing.PARTLY_VALID: "yellow", Standing.BROKEN: "bold red"}
_MIN_SHARE = 0.1
"""Fraction of the mean E2E above which a part other than prefill and decode is reported."""
_FULL = 0.95
_PARTS = (
    ("split_queue_s", "in the engine's queue"),
    ("split_other_s", "in the engine outside queue, prefill and decode"),
    ("split_outside_s", "between engine and client"),
)


def print_summary(run: Run, console: Console) -> None:
    """Print a run: verdict, one row per engine and load, and what is missing and why.

    Args:
        run: a loaded run.
        console: the console; a pipe gets at least :data:`WIDTH` columns.
    """
    with _wide_enough(console):
        _print_head(run, console)
        notes = Footnotes()
        uncalibrated, unchecked = uncalibrated_text(run), unchecked_text(run)
        table = _table(run, notes, with_errors=not uncalibrated, with_answers=not unchecked)
        if console.width < WIDTH and _natural_width(console, table) > console.width:
            console.print(_narrow(run, notes, with_errors=not uncalibrated, with_answers=not unchecked))
        else:
            console.print(table)
        if uncalibrated:
            console.print(_line(f"±: {uncalibrated}", "dim"))
        if unchecked:
            console.print(_line(f"no token match: {unchecked}", "dim"))
        for line in notes.lines():
            console.print(_line(line, "dim"))
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
        _print_list(console, "Warnings:", _warnings(run), "yellow")
        _print_list(console, "Declared:", run.declared, "")


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
    console.print(_line(f"{plain(manifest.name)}: ", "bold") + _line(status_text(run), _STYLES[standing(run)]))
    if reason := why_not_all(run):
        console.print(_line(reason, "yellow"))
    line = verdict(run)
    console.print(_line(line.sentence, "bold"))
    if line.remedy:
        console.print(_line(line.remedy, ""), soft_wrap=True)  # to be copied
    if manifest.failure:
        console.print(_line(f"Failure: {manifest.failure}", "red"))
    runs = f"{len(run.counted)} of {run.planned} trials"
    commit = f"commit {manifest.git_commit[:12]}" if manifest.git_commit else "no git checkout"
    where = machine_text(manifest)
    console.print(_line(f"{where} · {commit} · {moment_text(manifest.created_utc)} · {runs}", "dim"))
    if difference := difference_text(run):
        console.print(_line(difference, "yellow"))
    for line in run.off_rules:
        console.print(_line(line, "yellow"))
    foreign = foreign_load_text(run)
    for line in (clients_text(run), f"foreign load: {foreign}" if foreign else ""):
        if line:
            console.print(_line(line, "dim"))


def _table(run: Run, notes: Footnotes, *, with_errors: bool, with_answers: bool) -> RichTable:
    table = terminal_table(gap=0)
    table.add_column("engine", overflow="fold", min_width=_ENGINE_WIDTH)
    columns = [name for name in run.headline if name != "failures"]
    for heading in [*map(_heading, columns), *(["match"] if with_answers else [])]:
        table.add_column(heading, justify="right", overflow="fold")
    for level in levels_of(run):
        table.add_row(Text(plain(level.heading), style="bold"))
        for cell in level.cells:
            name = Text.assemble(plain(cell.engine), (f"\n{cell.valid}/{cell.planned} valid\n", "dim"), _failures(cell))
            if (in_flight := level.pausing(cell)) is not None:
                name.append(f"\n{in_flight:.3g} in flight", "dim")
            figures = _figures(cell, columns, notes, with_errors=with_errors, with_answers=with_answers)
            table.add_row(name, *figures, end_section=cell is level.cells[-1])
    return _captioned(table, with_errors=with_errors, with_answers=with_answers)


def _captioned(table: RichTable, *, with_errors: bool, with_answers: bool) -> RichTable:
    table.caption = "centre [95 % interval over valid trials]"
    if with_errors:
        table.caption += "; ±: the client's own error in that figure"
    if with_answers:
        table.caption += "; match: share of output tokens equal to the float32 reference, over sampled answers"
    table.caption_justify = "left"
    return table


def _natural_width(console: Console, table: RichTable) -> int:
    """Columns that a table takes where nothing limits it."""
    return console.measure(table, options=console.options.update_width(10 * WIDTH)).maximum


def _narrow(run: Run, notes: Footnotes, *, with_errors: bool, with_answers: bool) -> RichTable:
    """The same for a terminal that is narrower than the table: a line for each figure."""
    table = terminal_table("load, engine")
    table.add_column("figure", overflow="fold")
    columns = [name for name in run.headline if name != "failures"]
    headings = [*map(_heading, columns), *(["match"] if with_answers else [])]
    for level in levels_of(run):
        for cell in level.cells:
            standing_of = Text(f"{cell.valid}/{cell.planned} valid, ", "dim") + _failures(cell)
            table.add_row(Text(f"{plain(level.title)} {plain(cell.engine)}", "bold"), standing_of)
            figures = _figures(cell, columns, notes, with_errors=with_errors, with_answers=with_answers)
            for heading, figure in zip(headings, figures, strict=True):
                table.add_row(Text(f"  {heading}"), Text(" ").join(figure.split("\n")))
            table.add_section()
    return _captioned(table, with_errors=with_errors, with_answers=with_answers)


def _heading(name: str) -> str:
    return CATALOGUE[name].short_title or CATALOGUE[name].title


def _figures(
    cell: Cell, columns: Sequence[str], notes: Footnotes, *, with_errors: bool, with_answers: bool
) -> Iterator[Text]:
    for name in columns:
        interval = cell.intervals.get(name)
        if interval is None and (value := cell.unjudged.get(name)) is not None:
            text = f"({value_text(CATALOGUE[name].unit, value)})"
            yield Text(f"{text}\n{notes.mark('in parentheses', UNJUDGED)}", "dim")
            continue
        if interval is None:
            yield Text(f"{ABSENT} {notes.mark(_heading(name), cell.reasons[name])}")
            continue
        centre, bounds = interval_parts(CATALOGUE[name], interval)
        mark = notes.mark("interval", interval.reason) if interval.reason else ""
        error = _error(cell, name, notes) if with_errors and name in WITH_ERROR else ""
        yield Text.assemble(centre, "\n", (bounds or mark, "dim"), (error, "dim"))
    if with_answers:
        yield _token_match(cell, notes)


def _error(cell: Cell, name: str, notes: Footnotes) -> str:
    """Third line of a figure: the client's own error, or a footnote mark for why it is unknown."""
    error = error_of(cell, name)
    return f"\n{error.text} {notes.mark('±', error.why) if error.why else ''}".rstrip()


def _failures(cell: Cell) -> Text:
    failed, planned = cell.failures
    return Text(f"{failed}/{planned} failed" if planned else "", style="red" if failed else "dim")


def _token_match(cell: Cell, notes: Footnotes) -> Text:
    """Token match, number of answers, and a footnote mark."""
    match = match_of(cell)
    if match.why:
        return Text(f"{match.text} {notes.mark('match', match.why)}", "dim")
    mark = f"\n{notes.mark('match', match.note)}" if match.note else ""
    return Text.assemble((match.text, "red" if match.differs else ""), (f"\n{match.answers}{mark}", "dim"))


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


def _print_list(console: Console, title: str, lines: Sequence[str], style: str) -> None:
    if lines:
        console.print(_line(title, f"bold {style}".strip()))
        for line in lines:
            console.print(_line(f"  {line}", style))


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
