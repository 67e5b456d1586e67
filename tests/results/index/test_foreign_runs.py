"""Runs from elsewhere: nothing outside the folder is read or written, whatever the run contains."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest

from bakeoff import results
from bakeoff.harness.conduct.recovery import recover
from bakeoff.results.errors import NotReachable, RunUnreadable
from bakeoff.results.files.frames import FrameAppender
from bakeoff.results.index import Index
from bakeoff.results.index.query import Query
from bakeoff.results.log.run_log import RunStarted, TrialFinished
from bakeoff.results.log.store import RunFolder, earlier_run, runs_below
from bakeoff.results.records import Phase, RunStatus, StreamRecord
from tests.results.builders import FAST, LOADS, Sheet, Texts, build_run
from tests.results.hostile import TRAVERSALS

SECRET = "TOP SECRET ANSWER"
SHEET = Sheet(engines={"reference": FAST}, loads=LOADS[:1], repeats=1, requests=3, invalid=(), regret=None)


@pytest.fixture(name="private")
def fixture_private(tmp_path: Path) -> Path:
    """The trial of a run that must not be shown."""
    run = build_run(tmp_path / "private", replace(SHEET, run_id="one", texts=Texts(answer=SECRET)))
    return run / "trials" / "r1-e0-1"


@pytest.fixture(name="foreign")
def fixture_foreign(tmp_path: Path) -> Path:
    """A run that was fetched from elsewhere, beside our own runs."""
    return build_run(tmp_path / "runs", replace(SHEET, run_id="foreign"))


def rename_trial(run: Path, trial_id: str, status: str = "complete") -> None:
    folder = RunFolder(run)
    started, *trials, ended = folder.read_log().events
    assert isinstance(started, RunStarted)
    assert isinstance(trials[0], TrialFinished)
    first = msgspec.structs.replace(started.plan[0], id=trial_id)
    record = msgspec.structs.replace(trials[0].record, id=trial_id)
    folder.write_log(
        [
            msgspec.structs.replace(started, plan=[first, *started.plan[1:]]),
            TrialFinished(record=record),
            *trials[1:],
            msgspec.structs.replace(ended, status=RunStatus(status)),
        ]
    )


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def texts(run: Path) -> list[str]:
    return [request.text for trial in results.load(run).finished for request in trial.requests]


TRIAL_IDS = sorted(
    {"../../../private/one/trials/r1-e0-1", ".", "..", "", ".hidden", "a/b", "a\\b", "a b", "r1\n", "C:x", "a" * 300}
    | set(TRAVERSALS[:60])
    | {unquote(text) for text in TRAVERSALS[:60]}
)


@pytest.mark.parametrize("trial_id", TRIAL_IDS)
def test_a_trial_id_that_is_a_path_is_refused_in_one_line(tmp_path: Path, trial_id: str) -> None:
    run = RunFolder(tmp_path / "foreign")
    with pytest.raises(RunUnreadable, match=r"foreign is refused: the trial id .* is not a plain name") as refused:
        run.trial(trial_id)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("trial_id", ["r1-reference-1", "r1-v0.6_x-2", "r1-模型-1", "-", "_"])
def test_names_that_experiments_may_give_are_plain(tmp_path: Path, trial_id: str) -> None:
    assert RunFolder(tmp_path).trial(trial_id).path == tmp_path / "trials" / trial_id


def test_another_runs_answers_are_not_shown_through_a_trial_id(foreign: Path, private: Path) -> None:
    rename_trial(foreign, os.path.relpath(private, foreign / "trials"))
    assert (foreign / "trials" / os.path.relpath(private, foreign / "trials") / "requests.jsonl").exists()
    with pytest.raises(RunUnreadable, match="foreign is refused"):
        texts(foreign)


def test_salvaging_writes_nothing_outside_the_run(foreign: Path, private: Path) -> None:
    (private / "requests.jsonl").unlink()
    record = StreamRecord(
        index=0,
        phase=Phase.MEASURED,
        session="s",
        turn=0,
        planned_ns=1,
        ended_ns=2,
        end="complete",
        read_ns=[],
        reads=[],
    )
    with FrameAppender(private / "streams-0.frames") as log:
        log.append(record)
    before = files(private)
    rename_trial(foreign, os.path.relpath(private, foreign / "trials"), status="interrupted")
    with pytest.raises(RunUnreadable, match="foreign is refused"):
        recover(RunFolder.open(foreign))
    assert files(private) == before


def link_trial(run: Path, private: Path) -> None:
    shutil.rmtree(run / "trials" / "r1-e0-1")
    (run / "trials" / "r1-e0-1").symlink_to(private)


def link_trials(run: Path, private: Path) -> None:
    shutil.rmtree(run / "trials")
    (run / "trials").symlink_to(private.parent)


def link_file(run: Path, private: Path) -> None:
    (run / "trials" / "r1-e0-1" / "requests.jsonl").unlink()
    (run / "trials" / "r1-e0-1" / "requests.jsonl").symlink_to(private / "requests.jsonl")


def link_log(run: Path, private: Path) -> None:
    (run / "run.jsonl").unlink()
    (run / "run.jsonl").symlink_to(private.parents[1] / "run.jsonl")


def put_fifo(run: Path, private: Path) -> None:
    """Reading it would block for ever."""
    del private
    (run / "trials" / "r1-e0-1" / "quality.json").unlink(missing_ok=True)
    os.mkfifo(run / "trials" / "r1-e0-1" / "quality.json")


@pytest.mark.parametrize("spoil", [link_trial, link_trials, link_file, link_log, put_fifo])
def test_a_run_that_holds_a_symbolic_link_is_refused(
    foreign: Path, private: Path, spoil: Callable[[Path, Path], None]
) -> None:
    spoil(foreign, private)
    before = files(private)
    with pytest.raises(RunUnreadable, match=r"foreign is refused: .* is a symbolic link or no regular file") as refused:
        texts(foreign)
    assert "\n" not in str(refused.value)
    with pytest.raises(RunUnreadable, match="foreign is refused"):
        recover(RunFolder.open(foreign))
    assert files(private) == before


def test_an_address_of_this_machine_cannot_wash_links_into_files(foreign: Path) -> None:
    with pytest.raises(NotReachable, match="is a local path; give it without file://"):
        results.load(f"file://{foreign}")


def test_a_link_in_place_of_a_run_is_refused_and_others_are_found_without_it(foreign: Path, private: Path) -> None:
    link = foreign.parent / "later"
    link.symlink_to(private.parents[1])
    with pytest.raises(RunUnreadable, match=r"later is refused: .*later is a symbolic link"):
        results.load(link)
    assert [run.path for run in runs_below(foreign.parent)] == [foreign]
    assert earlier_run(foreign.parent, "demo", "latest").path == foreign


def test_the_newest_run_that_can_be_read_is_resumed(foreign: Path) -> None:
    newest = build_run(foreign.parent, replace(SHEET, run_id="newest"))
    log = newest / "run.jsonl"
    log.write_bytes(log.read_bytes().replace(b"demo", b"d\xffmo"))
    lines: list[str] = []
    assert earlier_run(foreign.parent, "demo", "latest", lines.append).path == foreign
    assert [line.partition(": ")[0] for line in lines] == ["newest is left out"]


def test_the_list_of_runs_says_which_run_is_refused_and_shows_the_others(foreign: Path, private: Path) -> None:
    (foreign.parent / "linked").symlink_to(private.parents[1])
    bad = build_run(foreign.parent, replace(SHEET, run_id="bad"))
    rename_trial(bad, "../../elsewhere")
    with Index(foreign.parent) as index:
        index.refresh()
        problems = {facts.id: facts.problem for facts in index.runs(Query())}
    assert problems["foreign"] is None
    assert "bad is refused: the trial id '../../elsewhere' is not a plain name" in (problems["bad"] or "")
    assert "linked is refused" in (problems["linked"] or "")
    assert SECRET not in json.dumps(problems)
