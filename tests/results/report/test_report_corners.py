"""Corner cases of the page: runs with unusual contents."""

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bakeoff import results
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import Load, RunStatus, Window
from bakeoff.results.report import print_summary, render_html
from bakeoff.results.report.verdict import verdict
from tests.results.amending import amend, amend_trial
from tests.results.builders import FAST, LOADS, Sheet, build_run

SMALL = Sheet(engines={"only": FAST}, loads=LOADS[:1], repeats=1, requests=6, invalid=())


def amended(path: Path, **changes: object) -> results.Run:
    amend(path, **changes)
    return results.load(path)


def test_equal_engines_are_not_told_apart(tmp_path: Path) -> None:
    """The second engine sends two tokens per chunk at half the rate: the same speed with other random noise."""
    twins = {"a": FAST, "b": replace(FAST, tokens_per_chunk=2)}
    sheet = Sheet(engines=twins, loads=[Load(rate_per_s=3.0, arrival="poisson")], requests=30, invalid=())
    run_verdict = verdict(results.load(build_run(tmp_path, sheet)))
    assert not run_verdict.decided
    assert run_verdict.sentence.startswith("At poisson 3/s the data cannot tell ")
    assert "TTFT p50 ratio " in run_verdict.sentence


def test_what_a_crash_tore_is_told(tmp_path: Path) -> None:
    run = results.load(build_run(tmp_path, replace(SMALL, repeats=2, finished=1)))
    assert run.torn == {}
    (done,), (cut,) = run.finished, run.unfinished
    with run.folder.trial(done.record.id).telemetry_log.open("ab") as log:
        log.write(b'{"t_ns":')
    trial = run.folder.trial(cut.id)
    trial.create()
    trial.stream_log(1).write_bytes((2000).to_bytes(4, "big") + bytes(1500))
    torn = results.load(run.path)
    assert torn.torn == {
        done.record.id: ["telemetry.jsonl ends in a torn record: 8 bytes are left out"],
        cut.id: ["streams-1.frames ends in a torn record: 1,504 bytes are left out"],
    }
    html, out = render_html(torn), io.StringIO()
    print_summary(torn, Console(file=out, width=140))
    text = out.getvalue()
    assert "Logs cut off by a crash:\n  only, c=1, repeat 1: telemetry.jsonl ends in a torn record" in text
    for lines in torn.torn.values():
        assert lines[0] in html
        assert lines[0] in text


def test_a_failure_is_told(tmp_path: Path) -> None:
    path = build_run(tmp_path, replace(SMALL, status=RunStatus.FAILED))
    run = amended(path, failure="only, repeat 1: port 8123 is taken")
    assert "only, repeat 1: port 8123 is taken" in render_html(run)
    console = Console(record=True, width=100, quiet=False, file=(tmp_path / "out").open("w"))
    print_summary(run, console)
    console.file.close()
    assert "Failure: only, repeat 1: port 8123 is taken" in (tmp_path / "out").read_text()


def test_environment_of_any_shape(tmp_path: Path) -> None:
    shape = {
        "gpus": [{"name": "H200", "memory_bytes": 150754820096}, {"name": "H200", "memory_bytes": None}],
        "flags": ["--a", 1],
        "empty": [],
        "nothing": {},
    }
    run = amended(build_run(tmp_path, SMALL), environment=shape)
    page = render_html(run)
    for words in ("gpus[0].name", "140 GiB", "– (not known)", "--a 1"):
        assert words in page
    bare = amended(run.path, environment={}, git_commit=None)
    assert "Nothing was recorded." in render_html(bare)
    assert "– (not in a git checkout)" in render_html(bare)


def test_a_trial_without_a_window_says_so(tmp_path: Path) -> None:
    """The engine died in the ramp: nothing was measured."""
    run = results.load(build_run(tmp_path, replace(SMALL, loads=LOADS[1:2])))
    for trial in run.finished:
        start_ns = trial.record.issue_start_ns
        amend_trial(run.path, trial.record.id, window=Window(start_ns, start_ns))
    page = render_html(results.load(run.path))
    assert "no window" in page
    assert "– (none)" in page
    assert "the window is empty" in page


def test_a_long_trial_is_thinned_and_says_so(tmp_path: Path) -> None:
    page = render_html(results.load(build_run(tmp_path, replace(SMALL, requests=900, tokens=4))))
    assert "one in 3 of 902 requests is drawn" in page


def test_the_engines_own_log_has_its_place(tmp_path: Path) -> None:
    folder = RunFolder.open(build_run(tmp_path, SMALL))
    assert folder.engine_log("only", 2) == folder.path / "engines" / "only-2.log"
    assert folder.engine_log("only", 2).parent.is_dir()
