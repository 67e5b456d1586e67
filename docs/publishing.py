"""Publishes a run in the repository, so that readers can check it without running anything.

``README.md`` (machine, versions, date, the table and how to repeat it), ``summary.json`` (intervals), ``trials.csv``
(every metric of every trial), ``requests.csv`` (every measured request) and ``experiment.toml``. The page takes
megabytes, and raw streams take hundreds; neither is published.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bakeoff import results
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.report.quality import match_of
from bakeoff.results.report.search_lines import answer, searches_of
from bakeoff.results.run.cache import CellGap, cache_gaps_of
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.levels import Level, levels_of
from bakeoff.results.show.markdown import escaped, pipe_table
from bakeoff.results.text.attribution import bottleneck_sentence
from bakeoff.results.text.cache import cache_text, gap_text
from bakeoff.results.text.format import ABSENT, interval_text, machine_text, moment_text

_REQUEST_COLUMNS = [
    "trial", "engine", "load", "repeat", "index", "outcome", "planned_ns", "sent_ns", "requested_input_tokens",
    "requested_output_tokens", "prompt_tokens", "cached_tokens", "output_tokens", "ttft_s", "tpot_s", "e2e_s",
]  # fmt: skip
FIRST_PAGE_LOAD = "c=8"
FIRST_PAGE_COLUMNS = ("engine", "TTFT p50", "TPOT p50", "output", "token match")
OWN_ENGINE = "reference"
_RESULTS = re.compile(r"(<!-- results: (\S+) -->\n)(.*?)(<!-- end of results -->)", re.DOTALL)


def publish(run: results.Run, experiment: Path, folder: Path, command: str) -> None:
    """Write a run's page and data into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(experiment, folder / "experiment.toml")
    cells = msgspec.json.format(msgspec.json.encode(run.cells), indent=1)
    (folder / "summary.json").write_bytes(cells + b"\n")
    run.trials.to_csv(folder / "trials.csv", index=False, float_format="%.6g")
    requests = run.all_requests[run.all_requests.phase == "measured"]
    columns = [name for name in _REQUEST_COLUMNS if name in requests.columns]
    requests[columns].to_csv(folder / "requests.csv", index=False, float_format="%.6g")
    (folder / "README.md").write_text(page(run, command, folder.name), encoding="utf-8")


def page(run: results.Run, command: str, name: str) -> str:
    """The README of the folder of that name."""
    manifest = run.manifest
    versions = {
        trial.record.engine: (description.version or "–", " ".join(description.argv) or description.url or "")
        for trial in run.finished
        if (description := trial.record.engine_description)
    }
    rows = "".join(f"| {engine} | {version} | `{argv}` |\n" for engine, (version, argv) in versions.items())
    commit = f", commit `{manifest.git_commit}`" if manifest.git_commit else ""
    return (
        f"# {name}\n\n"
        f"{machine_text(manifest)}; {moment_text(manifest.created_utc)}; bakeoff {manifest.bakeoff_version}{commit}; "
        f"{len(run.finished)} of {len(manifest.trials)} trials. Centre and 95 % interval over "
        "the valid trials; the repeats are interleaved.\n\n"
        f"{''.join(_answers(run))}"
        f"<!-- results: {name} -->\n{_table(run)}<!-- end of results -->\n\n"
        f"| engine | version | started as |\n|---|---|---|\n{_short(rows)}\n"
        + "".join(_cache_gaps(run))
        + "".join(f"- {note}\n" for note in run.declared)
        + "".join(f"- {one.record.load.label}: {bottleneck_sentence(one)}.\n" for one in run.attributions)
        + f"\nData: [summary.json](summary.json), [trials.csv](trials.csv), [requests.csv](requests.csv). Again with "
        f"the whole page, on your machine: `{command}` with [experiment.toml](experiment.toml).\n"
    )


def _answers(run: results.Run) -> Iterator[str]:
    """The answers of a search; nothing for another run."""
    if run.search is None:
        return
    config = run.search.config
    yield f"| tier | objectives | engine | highest {config.over.value} | trials |\n|---|---|---|---|---|\n"
    for tier, objectives in config.objectives.items():
        bounds = ", ".join(f"`{objective.text}`" for objective in objectives)
        for search in searches_of(run.search, tier):
            yield f"| {tier} | {bounds} | {search.engine} | {answer(config.over, search)} | {len(search.attempts)} |\n"
    yield "\n"


def _cache_gaps(run: results.Run) -> Iterator[str]:
    """The cache gap of each engine at the load with the most prompt tokens."""
    largest: dict[str, CellGap] = {}
    for each in sorted(cache_gaps_of(run), key=lambda each: each.gaps.whole.prompt_tokens):
        largest[each.engine] = each
    if largest:
        yield "Prefix cache, at the load with the most prompt tokens:\n\n"
        yield from (
            f"- {each.engine}, {each.level}: {gap_text(each.gaps)}. Simulated: {cache_text(each.gaps)}.\n"
            for each in largest.values()
        )
        yield "\n"


def _table(run: results.Run) -> str:
    """One row per load and engine: centre and 95 % interval of the medians; absent values are a dash, never 0."""
    columns = run.headline
    titles = ["load", "engine", "valid", *(CATALOGUE[name].title for name in columns), "token match"]
    return pipe_table(titles, (row for level in levels_of(run) for row in _rows(level, columns)))


def _rows(level: Level, columns: Sequence[str]) -> Iterator[list[str]]:
    for number, cell in enumerate(level.cells):
        load, match = "" if number else escaped(level.heading), match_of(cell)
        values = [_value(cell, name) for name in columns]
        valid = f"{cell.valid}/{cell.planned}"
        yield [load, escaped(cell.engine), valid, *values, f"{match.text} {match.answers}".rstrip()]


def _value(cell: Cell, name: str) -> str:
    if name == "failures":
        failed, planned = cell.failures
        return f"{failed}/{planned}" if planned else ABSENT
    return interval_text(CATALOGUE[name], cell.intervals.get(name))


def into_page(page: Path, run: results.Run) -> None:
    """Replace the table of that run's name in a page."""
    text = page.read_text(encoding="utf-8")
    section = next(match for match in _RESULTS.finditer(text) if match[2] == run.manifest.name)
    table = first_page_table(_table(run))
    page.write_text(text[: section.end(1)] + table + text[section.start(4) :], encoding="utf-8")


def first_page_table(table: str) -> str:
    """Reduce a run's table to one load and a few columns, with our own engine last."""
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    columns = [header.index(name) for name in FIRST_PAGE_COLUMNS]
    cells_by_engine: dict[str, list[str]] = {}
    load = ""
    for row in rows:
        load = row[0] or load
        if load == FIRST_PAGE_LOAD:
            cells_by_engine[row[1]] = [row[column] for column in columns]
    order = sorted(cells_by_engine, key=lambda engine: (engine == OWN_ENGINE, list(cells_by_engine).index(engine)))
    lines = [list(FIRST_PAGE_COLUMNS), ["---"] * len(columns), *(cells_by_engine[engine] for engine in order)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _short(text: str) -> str:
    """Shorten the paths of the machine that measured."""
    return re.sub(r"/\S*/(?=[^/\s`]+)", "…/", text)
