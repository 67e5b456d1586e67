"""The terminal summary: complete, narrow enough, and immune to escape sequences."""

import io
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bakeoff import results
from bakeoff.results.compare.comparison import EngineComparison, compare_sides
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.sides import side_of
from bakeoff.results.machine.calibration import Calibration, GridCell
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import ClientError, RunStatus
from bakeoff.results.report import print_calibration, print_comparison, print_summary
from bakeoff.results.report.html import render_html
from bakeoff.results.run.levels import levels_of
from bakeoff.results.schema import SCHEMA_VERSION
from bakeoff.results.statistics import Judgement, compare_runs
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import error_text, interval_parts
from tests.results.amending import amend_trial
from tests.results.builders import FAST, LOADS, SLOW, Sheet, Texts, build_run
from tests.results.hostile import TERMINAL


def printed(run: results.Run, **options: object) -> str:
    out = io.StringIO()
    print_summary(run, Console(file=out, **options))  # type: ignore[arg-type]
    return out.getvalue()


@pytest.mark.parametrize("options", [{}, {"width": 100}, {"width": 160}, {"width": 100, "force_terminal": True}])
def test_every_engine_at_every_load(demo: results.Run, options: dict[str, object]) -> None:
    text = printed(demo, **options)
    for cell in demo.cells:
        assert cell.engine in text
        assert cell.load in text
    assert text.count("transformers") >= 4
    assert "TTFT p50" in text


def test_a_row_shows_centre_interval_and_failures(demo: results.Run) -> None:
    text = printed(demo)
    assert "At c=8, reference delivered" in text
    assert "Xeon 8468, 2 cores (bench-01) · commit 3f9a1c2e5b7d · 2026-11-20 10:15 UTC · 24 of 24 trials" in text
    assert "\n2/3 valid " in text
    assert text.count("6 of 72") == 4


def test_a_pipe_gets_no_line_wider_than_the_table(demo: results.Run) -> None:
    console = Console(file=io.StringIO(), width=80)
    print_summary(demo, console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(len(line) for line in lines if "--all)" not in line) <= 100, "a command to be copied is not broken"
    assert console.width == 80, "the caller's console is given back as it was"


def test_invalid_trials_warnings_and_notes_are_listed(demo: results.Run) -> None:
    text = printed(demo, width=160)
    assert "INVALID trials, excluded from every number above:\n  transformers, c=1, repeat 1: gpu0 lowered" in text
    assert (
        f"Warnings (2; in full on the page, and by bakeoff report {demo.path} --all):\n  reference, c=8, repeat" in text
    )
    assert "Declared:\n  workload scaled to 1/10" in text


def test_of_many_warnings_the_first_are_printed_in_a_line_each(demo: results.Run) -> None:
    short, whole = printed(demo, width=100), io.StringIO()
    print_summary(demo, Console(file=whole, width=100), every=True)
    (line,) = (line for line in short.splitlines() if line.startswith("  reference, c=8, repeat 1: 2 of 24"))
    assert line.endswith("…")
    assert line[:-1] in whole.getvalue(), "where it goes on"
    assert "Warnings:" in whole.getvalue()


def test_a_single_trial_says_once_that_it_has_no_interval(one_trial: results.Run) -> None:
    text = printed(one_trial)
    assert text.count("one trial: no interval; three or more give one") == 1, "one note for all"


def test_one_engine_has_a_row_for_each_metric_in_words(tmp_path: Path) -> None:
    sheet = Sheet(engines={"only": FAST}, loads=LOADS[:1], requests=80, invalid=())
    text = printed(results.load(build_run(tmp_path, sheet)))
    rows = {line[:36].rstrip(): line[36:].split() for line in text.splitlines()}
    assert rows["metric"] == ["value", "95", "%", "interval", "client", "error"]
    assert rows["Time to first token (TTFT) p50, ms"][-2:] == ["0.39", "ms"], "the client's own error, in words"
    assert len(rows["Time to first token (TTFT) p90, ms"]) == 3, "a tail has an interval, and no client error"
    assert rows["Failed requests"] == ["0", "of", "240"]


def test_the_loads_of_one_engine_stand_side_by_side_as_long_as_there_is_room(tmp_path: Path) -> None:
    sheet = Sheet(engines={"only": FAST}, loads=LOADS[:3], requests=80, invalid=())
    text = printed(results.load(build_run(tmp_path, sheet)))
    assert re.search(r"^metric +c=1 +c=4 +c=8$", text, re.MULTILINE)
    assert text.count("[low, high]: 95 % interval") == 1


def test_a_run_without_valid_trials_says_why(tmp_path: Path) -> None:
    sheet = Sheet(engines={"only": FAST}, loads=LOADS[:1], repeats=1, requests=4, invalid=(0,))
    text = printed(results.load(build_run(tmp_path, sheet)))
    assert "demo: COMPLETE, 0 of 1 trials valid\nINVALID: only, c=1, repeat 1: gpu0 lowered its clocks" in text
    assert re.search(r"^Time to first token \(TTFT\) p50, ms +\([\d.]+\)", text, re.MULTILINE), "in parentheses"
    assert "in parentheses: of INVALID trials, so no evidence; no comparison uses them" in text
    assert "No verdict" in text


@pytest.mark.parametrize("status", [RunStatus.INTERRUPTED, RunStatus.FAILED])
def test_a_cut_off_run_gets_no_verdict(tmp_path: Path, status: RunStatus) -> None:
    text = printed(results.load(build_run(tmp_path, Sheet(status=status, finished=3))), width=160)
    words = "was interrupted" if status is RunStatus.INTERRUPTED else "failed"
    assert f"No verdict: the run {words}, 3 of 24 trials ended." in text
    assert status.value.upper() in text
    assert "Never finished:\n  reference, poisson 2/s: repeat 1, 2 and 3" in text


def test_control_characters_and_markup_do_not_reach_the_terminal(tmp_path: Path) -> None:
    nasty = "".join(TERMINAL)
    texts = Texts(name=nasty, note=nasty, gpu=nasty, example=nasty, workload=nasty)
    sheet = Sheet(engines={f"a{nasty}": FAST, "b": SLOW}, loads=LOADS[2:3], requests=8, texts=texts, invalid=(0,))
    text = printed(results.load(build_run(tmp_path, sheet)), width=300)
    assert not any(ord(c) < 0x20 and c != "\n" for c in text)
    assert not any(c in text for c in "\x7f\x9b\u202e")
    assert "[red]markup[/red]" in text, "rich markup of others is text"


def test_comparison_names_direction_word_and_reason() -> None:
    a = {1: 1.0, 2: 1.1, 3: 0.95}
    output, ttft, itl = (CATALOGUE[name] for name in ("output_tokens_per_s", "ttft_p50_s", "itl_p50_s"))
    primary, *others = (
        compare_runs(metric, level, a, {k: a[k] * change(k) for k in runs}, interleaved=True)
        for metric, level, runs, change in (
            (output, "c=8", a, lambda _: 5.0),
            (itl, "c=8", a, lambda k: 1.2 + k / 1000),
            (ttft, "c=1", a, lambda k: 1.001 + k / 1000),
            (itl, "c=1", (), float),
        )
    )
    assert [comparison.judgement for comparison in (primary, *others)] == list(Judgement)
    out = io.StringIO()
    print_comparison(
        EngineComparison("main", "branch\x1b[2J", primary, [primary, *others], {}, ComparisonConfig()),
        Console(file=out, width=140),
    )
    text = out.getvalue()
    assert "branch [2J against main" in text
    for words in ("● output ↑", "5.000× [5.000, 5.000]", "▲ better", "▼ worse", "= same", "? unclear"):
        assert words in text
    assert "there are 3 and 0 trials, and each side needs 3" in text
    assert "1 better, 1 worse, 1 same, 1 unclear; confidence 99 % for the primary metric" in text


def test_the_clients_error_is_named_in_words(demo: results.Run) -> None:
    text = printed(demo)
    worst = max(cell.error_s("ttft_p50_s") or 0 for cell in demo.cells)
    assert f"client error: at most {error_text(worst)} in TTFT p50, 0.19 ms in ITL p50" in text
    assert "±" not in text, "nobody reads it as the interval"
    assert "not calibrated" not in text


def test_an_uncalibrated_run_says_why_once(tmp_path: Path) -> None:
    text = printed(results.load(build_run(tmp_path, Sheet(loads=LOADS[:2], requests=8, error_s=None))))
    assert text.count("client error") == 1
    assert "client error unknown: not calibrated: client.calibrate is off" in text


def test_one_uncalibrated_engine_is_named(tmp_path: Path) -> None:
    run = results.load(build_run(tmp_path, Sheet(loads=LOADS[:1], requests=8, invalid=())))
    for trial in run.finished:
        if trial.record.engine == "transformers":
            amend_trial(run.path, trial.record.id, client_error=None, uncalibrated="the engine died")
    text = printed(results.load(run.path))
    assert "client error of transformers, c=1: not calibrated: the engine died" in text


def test_workers_are_named_when_there_are_several(tmp_path: Path) -> None:
    sheet = Sheet(loads=LOADS[:1], requests=6, hosts=("near", "near", "far"))
    text = printed(results.load(build_run(tmp_path / "1", sheet)), width=160)
    assert "client: 3 workers on near and far, CPU 4.50 s, largest 42.0 MiB, clocks known to ± 0.085 ms" in text
    local = printed(results.load(build_run(tmp_path / "2", replace(sheet, hosts=("near", "near")))), width=160)
    assert "client: 2 workers on near, CPU 3.00 s, largest 41.0 MiB\n" in local
    assert "client: " not in printed(results.load(build_run(tmp_path / "3", replace(sheet, hosts=("near",)))))


def test_a_calibration_is_a_table_with_its_machine() -> None:
    ttft = {"ttft_p50_s": 0.0015, "ttft_p99_s": 0.0021}
    error = ClientError(requests=10, chunks_per_s=900.0, send_lag_s=0.0001, cpu_s=0.1, by_metric=ttft)
    itl = {"itl_p50_s": 0.0004, "itl_p99_s": 0.0123}
    cells = [
        GridCell(64, 0.01, 1_000.0, 0.000_02, error),
        GridCell(512, 0.005, 901.0, 0.000_02, msgspec.structs.replace(error, by_metric=ttft | itl)),
    ]
    calibration = Calibration(
        SCHEMA_VERSION, "2026-11-20T10:15:00+00:00", "0.1.0", "vm\x1b[2J", {"cpu": "Xeon", "cores": 2},
        workers=2, cores=[0, 1], transport="aiohttp", repeats=3, cells=cells,
    )  # fmt: skip
    out = io.StringIO()
    print_calibration(calibration, Console(file=out, width=80))
    head, subtitle, *rest = out.getvalue().splitlines()
    assert head == "Xeon, 2 cores (vm [2J)"
    assert "bakeoff 0.1.0 · 2026-11-20 10:15 UTC · 2 client workers on cores 0 and 1 · transport aiohttp" in subtitle
    rows = [line.split() for line in rest if line.split()[:1] in (["64"], ["512"])]
    assert rows == [
        ["64", "10", "1.50", "2.10", "–", "0.10", "900", "90", "%", "20.0", "saturated"],
        ["512", "5", "1.50", "2.10", "12.30", "0.10", "900", "99.9", "%", "20.0"],
    ]


@pytest.mark.slow
def test_sessions_that_pause_show_how_many_requests_are_in_flight(demo_path: Path) -> None:
    run = results.load(demo_path)
    level = next(level for level in levels_of(run) if level.load.concurrency == 8)
    cell = level.cells[0]
    assert level.pausing(cell) is None, "every session has a request in flight"
    few = msgspec.structs.replace(
        cell, intervals=cell.intervals | {"requests_in_flight": Interval(3.21, None, None, 3)}
    )
    assert level.pausing(few) == 3.21
    open_loop = next(level for level in levels_of(run) if level.load.concurrency is None)
    assert open_loop.pausing(open_loop.cells[0]) is None
    run.cells[run.cells.index(cell)] = few
    assert printed(run).count("3.21") == 1
    assert render_html(run).count(">3.21</a>") == 2, "in the summary, and among all metrics"


@pytest.mark.parametrize("width", [80, 120])
def test_a_comparison_of_many_metrics_prints_those_that_matter_most(demo: results.Run, width: int) -> None:
    sides = side_of(demo, "transformers"), side_of(demo, "reference")
    compared = compare_sides(*sides, ComparisonConfig(alpha=0.05), check=False)

    def lines(limit: int | None) -> list[str]:
        out = io.StringIO()
        print_comparison(compared, Console(file=out, width=width), max_lines=limit)
        return out.getvalue().splitlines()

    short, whole = lines(30), lines(None)
    assert len(short) <= 30 < len(whole)
    assert sum(line.startswith("● ") for line in short) == 1
    (left_out,) = [line for line in short if line.endswith("--all prints them")]
    shown = [line for line in short if "×" in line and " [" in line]
    assert int(left_out.split()[0]) + len(shown) >= len(compared.comparisons) - 8, "each is shown or counted"
    assert any(line.startswith("● ") for line in lines(1)), "the primary metric stays"
    assert not any(line.endswith("--all prints them") for line in whole)


def test_a_narrow_terminal_gets_a_line_for_each_figure(demo: results.Run) -> None:
    out = io.StringIO()
    print_summary(demo, Console(file=out, width=80, force_terminal=True, color_system=None))
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines() if "--all)" not in line) <= 80
    cell = next(cell for cell in demo.cells if (cell.engine, cell.load) == ("reference", "c=8"))
    centre, bounds = interval_parts(CATALOGUE["ttft_p50_s"], cell.intervals["ttft_p50_s"])
    assert centre.removesuffix(" ms") in text
    assert bounds in text, "nothing is cropped"
    assert text.count("Time to first token (TTFT) p50, ms") == len(levels_of(demo))
