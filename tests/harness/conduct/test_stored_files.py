"""A finished trial counts only with the files that were stored with it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bakeoff import results
from bakeoff.engines.dialects.anthropic import AnthropicDialect
from bakeoff.harness.cli.stored import read
from bakeoff.harness.conduct.recovery import recover
from bakeoff.harness.virtual import VirtualEngine, VirtualWorld, run_in, virtual_experiment
from bakeoff.results.errors import RunUnreadable
from bakeoff.results.log.run_log import TrialFinished
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import RequestRecord
from tests.harness.cli.test_cli import in_process as bakeoff

WORLD = VirtualWorld({"a": VirtualEngine()})
EXPERIMENT = virtual_experiment(
    ["a"], [{"concurrency": 3}], repeats=2, trial={"ramp_s": 0.2, "duration_s": 1.2, "warm_up_s": 0.0}
)
TRIAL = "trials/r1-a-1"


@pytest.fixture(scope="module", name="whole")
def fixture_whole(tmp_path_factory: pytest.TempPathFactory) -> results.Run:
    """A run of two trials."""
    return run_in(WORLD, EXPERIMENT, tmp_path_factory.mktemp("whole"))


@pytest.fixture(name="run")
def fixture_run(whole: results.Run, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(whole.path, tmp_path / whole.path.name)


def figures(run: results.Run) -> dict[str, object]:
    return {trial.record.id: (trial.record.verdict, trial.metrics) for trial in run.finished}


def shorten(file: Path) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: len(lines) // 2]))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


def change(file: Path) -> None:
    """Another number that could be: the first record ends a nanosecond later."""
    first, rest = file.read_bytes().split(b"\n", 1)
    record = msgspec.json.decode(first, type=RequestRecord)
    record = msgspec.structs.replace(record, ended_ns=record.ended_ns ^ 1)
    file.write_bytes(msgspec.json.encode(record) + b"\n" + rest)


def exchange(file: Path) -> None:
    shutil.copyfile(file.parent.parent / "r2-a-1" / file.name, file)


def test_a_trial_names_its_files(whole: results.Run) -> None:
    for trial in whole.finished:
        files = trial.record.files
        assert files.keys() == {"requests.jsonl", "streams-0.frames", "telemetry.jsonl"} & files.keys()
        assert files["requests.jsonl"].records == len(trial.requests) == files["streams-0.frames"].records
        path = whole.path / "trials" / trial.record.id / "requests.jsonl"
        assert files["requests.jsonl"].size_bytes == path.stat().st_size


@pytest.mark.parametrize("damage", [shorten, cut, change, exchange])
def test_requests_that_are_not_those_that_were_stored_are_refused(run: Path, damage: Callable[[Path], None]) -> None:
    damage(run / TRIAL / "requests.jsonl")
    with pytest.raises(
        RunUnreadable, match=r"requests\.jsonl (has .* bytes, and .* were stored|was changed)"
    ) as refused:
        figures(results.load(run))
    assert str(refused.value).endswith(f"move it away, and bakeoff report {run} decodes the raw log again")


def test_the_raw_log_gives_lost_requests_back(run: Path, whole: results.Run) -> None:
    (run / TRIAL / "requests.jsonl").unlink()
    with pytest.raises(
        RunUnreadable, match=rf"requests\.jsonl is missing; bakeoff report {run} decodes the raw log again"
    ):
        figures(results.load(run))
    assert figures(read(run)) == figures(whole)


def test_a_user_who_waits_does_not_wait_for_a_large_raw_log(run: Path) -> None:
    (run / TRIAL / "requests.jsonl").unlink()
    folder = RunFolder.open(run)
    size = sum(file.stat().st_size for file in (run / TRIAL).glob("streams-*"))
    assert recover(folder, most_bytes=size - 1) == 0
    assert recover(folder, most_bytes=size) == 1


def test_a_file_of_another_size_is_refused_unread(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be larger than the memory."""
    with (run / TRIAL / "requests.jsonl").open("ab") as file:
        file.write(b"x")
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"" if path.name == "requests.jsonl" else read_bytes(path))
    with pytest.raises(RunUnreadable, match=r"requests\.jsonl has [1-9].* bytes, and .* were stored"):
        figures(results.load(run))


def test_a_damaged_raw_log_gives_no_requests_back(run: Path) -> None:
    (run / TRIAL / "requests.jsonl").unlink()
    cut(run / TRIAL / "streams-0.frames")
    with pytest.raises(RunUnreadable, match=r"streams-0\.frames has .* bytes, and .* were stored"):
        recover(RunFolder.open(run))
    (run / TRIAL / "streams-0.frames").unlink()
    with pytest.raises(RunUnreadable, match=r"streams-0\.frames is missing"):
        read(run)


def test_a_lost_trial_is_named_by_every_reader(run: Path) -> None:
    shutil.rmtree(run / TRIAL)
    for reader in (lambda: figures(results.load(run)), lambda: read(run)):
        with pytest.raises(RunUnreadable, match=f"{run / TRIAL} is missing; restore the folder from a copy"):
            reader()


def test_requests_that_are_decoded_differently_here_are_not_taken(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = run / TRIAL / "requests.jsonl"
    file.unlink()
    monkeypatch.setattr("bakeoff.harness.conduct.recovery.dialect", lambda *_: AnthropicDialect())
    with pytest.raises(RunUnreadable, match="its raw log is decoded differently here"):
        recover(RunFolder.open(run))
    assert not file.exists()


def test_a_trial_with_fewer_requests_than_planned_is_refused_without_hashes(run: Path) -> None:
    """As in runs by earlier versions."""
    folder = RunFolder.open(run)
    folder.write_log([without_files(event) for event in folder.read_log().events])
    shorten(run / TRIAL / "requests.jsonl")
    with pytest.raises(RunUnreadable, match=r"holds \d+ requests under load, and \d+ were planned"):
        figures(results.load(run))
    cut(run / TRIAL / "requests.jsonl")
    with pytest.raises(RunUnreadable, match=r"requests\.jsonl ends within a line"):
        figures(results.load(run))


def without_files(event: object) -> object:
    if not isinstance(event, TrialFinished):
        return event
    return TrialFinished(record=msgspec.structs.replace(event.record, files={}))


def test_damaged_trials_are_measured_again_when_a_run_is_resumed(run: Path, whole: results.Run, tmp_path: Path) -> None:
    shorten(run / TRIAL / "requests.jsonl")
    resumed = run_in(WORLD, EXPERIMENT, tmp_path / "resumed", earlier=RunFolder.open(run))
    assert [trial.record.reused_from for trial in resumed.finished] == [None, whole.path.name]
    assert figures(resumed)["r2-a-1"] == figures(whole)["r2-a-1"]
    again = run_in(WORLD, EXPERIMENT, tmp_path / "again", earlier=resumed.folder)
    assert [trial.record.reused_from for trial in again.finished] == [resumed.path.name, whole.path.name]
    assert figures(again) == figures(resumed)


def test_every_command_says_it_in_one_line(run: Path, whole: results.Run, capsys: pytest.CaptureFixture[str]) -> None:
    shorten(run / TRIAL / "requests.jsonl")
    for command in (
        ("report", str(run)), ("compare", str(whole.path), str(run)), ("compare", str(run), str(whole.path)),
        ("export", str(run), "--as", "pytest-benchmark", "--out", str(run)), ("report", str(run), "views"),
        ("report", str(run), "frontier"),
    ):  # fmt: skip
        assert bakeoff(*command) != 0, command
        said = capsys.readouterr()
        assert said.out == "", command
        (line,) = said.err.splitlines()
        assert "requests.jsonl has " in line, command


@pytest.mark.parametrize(
    ("field", "changed", "problem"),
    [
        ("chunk_tokens", lambda tokens: tokens[1:], "chunks and \\d+ counts of tokens"),
        ("textless_chunks", lambda _: [10**12], "a chunk without text that it does not have"),
        ("chunk_ns", lambda times: times[::-1], "chunks out of order"),
        ("chunk_ns", lambda times: [t_ns - 10**12 for t_ns in times], "chunks out of order"),
        ("planned_ns", lambda _: 1 << 61, "impossible times"),
        ("ended_ns", lambda _: 10**30, "impossible times"),
        ("chunk_ns", lambda times: [*times[:-1], 10**30], "impossible times"),
        ("chunk_tokens", lambda tokens: [10**12, *tokens[1:]], "an impossible number of tokens"),
        ("chunk_tokens", lambda tokens: [-1, *tokens[1:]], "an impossible number of tokens"),
    ],
)
def test_what_cannot_be_is_refused_without_hashes(
    run: Path, field: str, changed: Callable[[Any], object], problem: str
) -> None:
    folder = RunFolder.open(run)
    folder.write_log([without_files(event) for event in folder.read_log().events])
    file = run / TRIAL / "requests.jsonl"
    first, rest = file.read_text().split("\n", 1)
    record = json.loads(first)
    file.write_text(json.dumps(record | {field: changed(record.get(field))}) + "\n" + rest)
    with pytest.raises(RunUnreadable, match=rf"requests\.jsonl is damaged: request -?\d+ has .*{problem}"):
        figures(results.load(run))


def test_an_integer_that_no_float_can_hold_is_left_out_of_its_sample(run: Path) -> None:
    folder = RunFolder.open(run)
    folder.write_log([without_files(event) for event in folder.read_log().events])
    line = '{"t_ns": 1, "source": "host", "values": {"cpu_share": ' + "1" + "0" * 400 + "}}\n"
    (run / TRIAL / "telemetry.jsonl").write_text(line)
    (sample,) = folder.trial("r1-a-1").read_telemetry().records
    assert sample.values == {"cpu_share": None}
    assert sample.reasons == {"cpu_share": "the source shows a number of 401 digits, which it cannot have"}


@pytest.mark.parametrize("value", ["1e999", "-1e999"])
def test_samples_that_are_not_finite_are_refused_without_hashes(run: Path, value: str) -> None:
    folder = RunFolder.open(run)
    folder.write_log([without_files(event) for event in folder.read_log().events])
    file = run / TRIAL / "telemetry.jsonl"
    file.write_text(f'{{"t_ns": 1, "source": "host", "values": {{"cpu_share": {value}}}}}\n' * 2)
    with pytest.raises(RunUnreadable, match=r"telemetry\.jsonl(: line 1)? is damaged"):
        figures(results.load(run))
