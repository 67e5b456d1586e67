"""The index agrees with its folder, whatever happens to either of them."""

import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bakeoff.results.errors import RunNotFound
from bakeoff.results.history.history import history
from bakeoff.results.index import INDEX_FILE, Index, Order, Query, facts_of, store
from bakeoff.results.log.run_log import Source
from bakeoff.results.log.store import RunFolder
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import RunStatus
from tests.results.amending import amend, begin_trial
from tests.results.builders import FAST, LOADS, SLOW, Sheet, Texts, build_run

TINY = Sheet(engines={"only": FAST}, loads=LOADS[:1], repeats=2, requests=5, invalid=(), regret=None)


def a_run(root: Path, run_id: str, sheet: Sheet = TINY, **changes: object) -> Path:
    path = build_run(root, replace(sheet, run_id=run_id))
    if changes:
        folder = RunFolder(path)
        amend(folder.path, **changes)
    return path


def ids(index: Index, **asked: object) -> list[str]:
    return [facts.id for facts in index.runs(Query(**asked))]  # type: ignore[arg-type]


def test_the_manifest_first_the_figures_when_they_are_folded(tmp_path: Path) -> None:
    a_run(tmp_path, "one")
    with Index(tmp_path) as index:
        scan = index.scan()
        assert (scan.runs, scan.changed, list(scan.unfolded)) == (1, ["one"], ["one"])
        (planned,) = index.runs(Query())
        assert (planned.name, planned.planned, planned.finished, planned.is_folded) == ("demo", 2, None, False)
        assert index.unfolded() == 1
        index.keep(facts_of(tmp_path / "one"), scan.unfolded["one"])
        (folded,) = index.runs(Query())
        assert (folded.finished, folded.valid, folded.is_folded, index.unfolded()) == (2, 2, True, 0)
        assert folded.cells[0].metrics["output_tokens_per_s"].trials == 2
        assert folded.headline is not None
        assert folded.headline.values["only"] == folded.cells[0].metrics["output_tokens_per_s"].mean
        assert index.scan() == msgspec.structs.replace(scan, changed=[], unfolded={})


def test_the_facts_are_those_of_the_run(demo_path: Path) -> None:
    facts = facts_of(demo_path)
    assert facts.engines == ["reference", "transformers"]
    assert facts.levels == [load.label for load in LOADS]
    assert (facts.planned, facts.finished, facts.valid) == (24, 24, 23)
    assert facts.verdict is not None
    assert facts.verdict.sentence.startswith("At c=8, reference delivered ")
    assert len(facts.cells) == 8


def test_new_changed_and_gone_runs(tmp_path: Path) -> None:
    a_run(tmp_path, "one")
    with Index(tmp_path) as index:
        index.refresh()
        a_run(tmp_path, "two", status=RunStatus.FAILED, failure="the engine died")
        folder = RunFolder(tmp_path / "one")
        amend(folder.path, name="renamed")
        assert sorted(index.scan().changed) == ["one", "two"]
        assert {facts.id: facts.name for facts in index.runs(Query())} == {"one": "renamed", "two": "demo"}
        (tmp_path / "one").rename(tmp_path.parent / "elsewhere")
        index.scan()
        assert ids(index) == ["two"]
        assert index.run("one") is None
        assert index.stamp("one") is None


def test_what_was_folded_of_a_run_that_has_changed_since_is_not_kept(tmp_path: Path) -> None:
    a_run(tmp_path, "one")
    with Index(tmp_path) as index:
        stamp = index.scan().unfolded["one"]
        facts = facts_of(tmp_path / "one")
        folder = RunFolder(tmp_path / "one")
        amend(folder.path, failure="later")
        index.scan()
        index.keep(facts, stamp)
        assert index.unfolded() == 1


def test_a_run_whose_process_died_is_seen_though_no_file_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_run(tmp_path, "one", replace(TINY, status=RunStatus.RUNNING, finished=1))
    with Index(tmp_path) as index:
        index.refresh()
        assert ids(index, status=RunStatus.RUNNING) == ["one"]
        assert index.scan().changed == []
        monkeypatch.setattr("bakeoff.results.log.store._alive", lambda pid, run: False)
        assert index.scan().changed == ["one"]
        assert ids(index, status=RunStatus.INCOMPLETE) == ["one"]


def test_a_trial_more_of_a_run_that_goes_on_is_seen(tmp_path: Path) -> None:
    a_run(tmp_path, "one", replace(TINY, status=RunStatus.RUNNING, finished=1))
    with Index(tmp_path) as index:
        index.refresh()
        begin_trial(RunFolder(tmp_path / "one"), "r2-e0-1")
        assert index.scan().changed == ["one"]


def test_filters(tmp_path: Path) -> None:
    a_run(tmp_path, "a", created_utc="2026-01-01T00:00:00+00:00", source=Source("c1", "main"))
    a_run(tmp_path, "b", created_utc="2026-01-03T00:00:00+00:00", source=Source("c2+", "side"), name="other")
    a_run(tmp_path, "c", replace(TINY, engines={"only": FAST, "on": SLOW}), created_utc="2026-01-02T00:00:00+00:00")
    with Index(tmp_path) as index:
        index.refresh()
        assert ids(index) == ["b", "c", "a"]
        assert ids(index, order=Order.OLDEST) == ["a", "c", "b"]
        assert ids(index, order=Order.NAME) == ["c", "a", "b"]
        assert ids(index, limit=1, offset=1) == ["c"]
        assert ids(index, limit=10**21) == ids(index)
        assert ids(index, limit=1, offset=10**21) == []
        assert ids(index, name="other") == ["b"]
        assert ids(index, branch="main") == ["a"]
        assert ids(index, engine="on") == ["c"], "a label is found whole, not inside another"
        assert ids(index, words="SIDE c2") == ["b"]
        assert ids(index, words="side c1") == []
        assert index.count(Query(words="xeon")) == 3
        assert index.choices() == {
            "name": ["demo", "other"], "branch": ["main", "side"], "status": ["complete"], "engine": ["on", "only"],
            "model": [], "url": [], "level": ["c=1"], "workload": ["chat"],
        }  # fmt: skip
        assert index.newest_name() == "other"


HOSTILE = ["%", "_", "'; DROP TABLE runs; --", '"', "\\", "a' OR '1'='1", "\0"]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_asked_is_a_value_and_never_sql(tmp_path: Path, text: str) -> None:
    a_run(tmp_path, "one")
    with Index(tmp_path) as index:
        index.refresh()
        for field in ("words", "name", "engine", "branch"):
            assert index.runs(Query(**{field: text})) == []
        assert ids(index) == ["one"]


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    path = a_run(tmp_path, "one", replace(TINY, texts=Texts(name="fine")))
    (path / "run.jsonl").write_text("{ no\n")
    a_run(tmp_path, "newer", schema_version=99)
    with Index(tmp_path) as index:
        index.refresh()
        index.refresh()
        problems = {facts.id: facts.problem for facts in index.runs(Query())}
    assert "cannot be read" in (problems["one"] or "")
    assert "schema 99, and this" in (problems["newer"] or "")


def test_a_run_that_breaks_while_it_is_folded_says_so(tmp_path: Path) -> None:
    path = a_run(tmp_path, "one")
    next(path.glob("trials/*/requests.jsonl")).write_text("]\n]\n")
    with Index(tmp_path) as index:
        index.refresh()
        (facts,) = index.runs(Query())
    assert "requests.jsonl: line 1 is damaged" in (facts.problem or "")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [b'{"t_ns": "\xff"}\n', b"[" * 100_000 + b"\n", b"\n", b"\0\n"])
def test_a_run_with_one_bad_line_is_left_out_of_the_history_until_it_is_restored(tmp_path: Path, damage: bytes) -> None:
    log = a_run(tmp_path, "bad") / "run.jsonl"
    good = log.read_bytes()
    for number in range(6):
        a_run(tmp_path, f"night-{number}")
    first, _, rest = good.partition(b"\n")
    log.write_bytes(first + b"\n" + damage + rest)
    said: list[str] = []
    series = history(tmp_path, notify=said.append)
    assert {len(entry.points) for entry in series} == {6}
    assert len(said) == 1
    assert said[0].startswith("bad is left out: ")
    assert "run.jsonl: line 2 is damaged" in said[0]
    log.write_bytes(good)
    assert {len(entry.points) for entry in history(tmp_path, notify=said.append)} == {7}
    assert len(said) == 1


def test_folders_that_are_no_runs_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden").mkdir()
    with Index(tmp_path) as index:
        assert index.scan().runs == 0
    with pytest.raises(RunNotFound, match="is not a folder"):
        Index(tmp_path / "missing")


@pytest.mark.parametrize("damage", ["not a database", "SQLite format 3\0" + "x" * 4096])
def test_a_damaged_index_is_made_anew(tmp_path: Path, damage: str) -> None:
    a_run(tmp_path, "one")
    (tmp_path / INDEX_FILE).write_text(damage)
    with Index(tmp_path) as index:
        index.refresh()
        assert ids(index) == ["one"]
    with Index(tmp_path) as again:
        assert again.scan().changed == [], "it was kept in the file"


def test_a_new_metric_is_another_version() -> None:
    """Runs that were folded before it have no value of it."""
    assert store._version(CATALOGUE, ":memory:") != store._version([*CATALOGUE, "new"], ":memory:")


def test_an_index_that_came_from_elsewhere_is_made_anew(tmp_path: Path) -> None:
    """It may state any facts of the runs beside it."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    a_run(here, "one")
    with Index(here) as index:
        index.refresh()
    db = sqlite3.connect(here / INDEX_FILE)
    with db:
        db.execute("UPDATE runs SET name = 'forged'")
    db.close()
    shutil.copytree(here, elsewhere)
    with Index(elsewhere) as index:
        index.scan()
        assert [facts.name for facts in index.runs(Query())] == ["demo"]


def test_an_index_of_another_version_is_made_anew(tmp_path: Path) -> None:
    a_run(tmp_path, "one")
    db = sqlite3.connect(tmp_path / INDEX_FILE)
    with db:
        db.execute("CREATE TABLE runs (word TEXT)")
        db.execute("PRAGMA user_version = 77")
    db.close()
    with Index(tmp_path) as index:
        index.refresh()
        assert ids(index) == ["one"]


def test_where_nothing_can_be_written_the_index_lives_in_memory(tmp_path: Path) -> None:
    a_run(tmp_path, "one")
    (tmp_path / INDEX_FILE).mkdir()  # even root cannot write a file over a folder
    with Index(tmp_path) as index:
        index.refresh()
        assert ids(index) == ["one"]


def test_forgetting_makes_it_anew(tmp_path: Path) -> None:
    a_run(tmp_path, "one")
    with Index(tmp_path) as index:
        index.refresh()
        index.forget()
        assert ids(index) == []
        assert index.scan().changed == ["one"]


def test_two_at_once(tmp_path: Path) -> None:
    a_run(tmp_path, "one")
    with Index(tmp_path) as first, Index(tmp_path) as second:
        first.scan()
        second.refresh()
        assert first.unfolded() == 0
        assert ids(first) == ["one"]
