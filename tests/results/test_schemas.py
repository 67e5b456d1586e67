"""Runs of the schema before: a bump made for these tests, after which they are read, compared, gated and in history."""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bakeoff
from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.results import RunUnreadable, load, schema
from bakeoff.results.export.benchmark_json import benchmark_json, read_benchmark_json
from bakeoff.results.files.frames import FrameAppender, FrameLog
from bakeoff.results.log.store import RunFolder
from tests.results.builders import FAST, LOADS, SLOW, Sheet, build_run

SHEET = Sheet(engines={"a": FAST, "b": SLOW}, loads=LOADS[:1], requests=8, invalid=(), regret=None)
OF_THEN = schema.SCHEMA_VERSION
NAMES = {
    "run": {"run_id": "id_of_run", "load": "level"},
    "requests": {"index": "number"},
    "export": {"title": "heading"},
    "telemetry": {"source": "origin"},
    "spans": {"at_ns": "t_ns"},
}
"""Fields that the schema before called otherwise: today's names, and those of then."""


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [renamed(each, names) for each in value]
    if isinstance(value, dict):
        return {names.get(name, name): renamed(each, names) for name, each in value.items()}
    return value


def rewrite(path: Path, names: Mapping[str, str]) -> None:
    """Write a file of JSON lines anew, without hashes."""
    rows = [renamed(json.loads(line), names) for line in path.read_bytes().splitlines()]
    path.write_text("".join(json.dumps({key: row[key] for key in row if key != "chain"}) + "\n" for row in rows))


@pytest.fixture
def of_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of today's schema as that was before the next one, which this version has."""
    run = build_run(tmp_path / "runs", SHEET)
    rewrite(run / "run.jsonl", NAMES["run"])
    for kind in ("requests", "telemetry"):
        for file in run.rglob(f"{kind}.jsonl"):
            rewrite(file, NAMES[kind])
    back = {kind: {then: now for now, then in names.items()} for kind, names in NAMES.items()}
    upgrades = {kind: lambda row, names=names: renamed(row, names) for kind, names in back.items()}
    bumped = schema.SCHEMA_VERSION + 1
    for module in [each for name, each in sys.modules.items() if name.startswith(("bakeoff", "tests"))]:
        if hasattr(module, "SCHEMA_VERSION"):
            monkeypatch.setattr(module, "SCHEMA_VERSION", bumped)
    monkeypatch.setattr(schema, "UPGRADES", {bumped - 1: upgrades})
    return run


def test_it_is_read_as_what_it_was(of_then: Path, tmp_path: Path):
    now = load(build_run(tmp_path / "now", SHEET))
    then = load(of_then)
    assert [run.log.started and run.log.started.schema_version for run in (then, now)] == [OF_THEN, OF_THEN + 1]
    assert then.summary.equals(now.summary)
    assert list(then.all_requests.ttft_s) == list(now.all_requests.ttft_s)


def test_without_upgrades_it_is_refused_in_one_line(of_then: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schema, "OLDEST_SCHEMA", OF_THEN + 1)
    with pytest.raises(
        RunUnreadable,
        match=f"has schema {OF_THEN}, and this version of bakeoff reads schema {OF_THEN + 1} only; measure",
    ):
        load(of_then)


def test_it_is_compared_and_gated_with_a_run_of_today(
    of_then: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    now = build_run(tmp_path / "now", SHEET)
    compared = ["compare", f"{of_then}@a", f"{now}@a"]
    assert guarded(make_app(), compared) == 0
    gate = ["gate", "--baseline", f"{of_then}@a", "--candidate", f"{now}@b"]
    assert guarded(make_app(), gate) == 1
    assert "TTFT p50" in capsys.readouterr().out


def test_a_stored_baseline_of_then_is_a_baseline(of_then: Path, tmp_path: Path):
    data = json.loads(benchmark_json({"t": load(of_then)}))
    data["bakeoff"]["schema_version"] = OF_THEN
    data["bakeoff"]["runs"] = renamed(data["bakeoff"]["runs"], NAMES["export"])
    file = tmp_path / "baseline.json"
    file.write_text(json.dumps(data))
    (run,) = read_benchmark_json(file)
    assert run.title == "t"


def test_a_history_goes_across_the_bump(of_then: Path):
    for day in range(21, 26):
        today = dataclasses.replace(SHEET, run_id=f"202611{day}", created_utc=f"2026-11-{day}T10:15:00+00:00")
        build_run(of_then.parent, today)
    series = bakeoff.history(of_then.parent, metric=["ttft_p50_s"])
    assert [len(each.points) for each in series] == [6, 6]


class Span(msgspec.Struct):
    """A record of frames."""

    at_ns: int


@pytest.mark.usefixtures("of_then")
def test_frames_are_upgraded_and_damaged_ones_are_named(tmp_path: Path):
    path = tmp_path / "spans.frames"
    with contextlib.closing(FrameAppender(path)) as file:
        for record in (msgspec.defstruct("Then", [("t_ns", int)])(7), msgspec.defstruct("Odd", [("x", int)])(8)):
            file.append(record)
        file.flush()
    frames = iter(FrameLog(path, Span, schema=OF_THEN))
    assert next(frames) == Span(7)
    with pytest.raises(RunUnreadable, match=r"spans\.frames: the frame at byte \d+ is damaged"):
        next(frames)
    with pytest.raises(RunUnreadable, match="is damaged"):
        list(FrameLog(path, Span))


def test_what_this_version_decodes_of_a_run_that_was_cut_off_is_not_upgraded(of_then: Path):
    """Its version left no requests; those that are decoded now have today's form, and a name of their own."""
    run = RunFolder.open(of_then)
    (stored, *_) = load(of_then).finished
    decoded = list(stored.requests)
    run.trial("cut-off").create()
    run.trial("cut-off").write_requests(decoded)
    assert [record.index for record in run.trial("cut-off").read_requests()] == [record.index for record in decoded]
    assert not (of_then / "trials/cut-off/requests.jsonl").exists()
