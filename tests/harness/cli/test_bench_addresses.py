"""Bench with several addresses: what it takes, and where each address shows."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bakeoff import results
from bakeoff.engines.identity import Identity
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.bench import identified
from bakeoff.harness.virtual import VirtualEngine, VirtualWorld
from bakeoff.results.report import render_html
from tests.harness.cli.test_cli import in_process
from tests.workloads.small_tokenizers import checkpoint

ONE, OTHER = "http://one:1/v1", "http://other:2"


def bench(tmp_path: Path, *options: str, **engines: VirtualEngine) -> int:
    with inside(VirtualWorld(engines or {"reference": VirtualEngine()})):
        return in_process(
            "bench", "--engine", "reference", "--model", "truth", "--tokenizer", str(checkpoint(tmp_path / "tok")),
            "--workload", "random", "--concurrency", "4", "--ramp", "1", "--duration", "5", "--no-calibrate",
            "--out", str(tmp_path / "runs"), *options,
        )  # fmt: skip


@pytest.mark.parametrize("given", [("--url", ONE, "--url", OTHER), (ONE, OTHER)], ids=["options", "arguments"])
def test_several_addresses_are_replicas_that_show_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...]
) -> None:
    assert bench(tmp_path, *given, "--balance", "least-in-flight", "--json") == 0
    summary: dict[str, Any] = json.loads(capsys.readouterr().out)
    rows = summary["addresses"]["requests"]
    assert [row["name"] for row in rows] == ["one:1", "other:2"]
    run = results.load(summary["run"])
    assert set(run.requests["address"]) == {"one:1", "other:2"}
    assert [row["requests"] for row in rows] == [(run.requests["address"] == row["name"]).sum() for row in rows]
    html = render_html(run)
    assert "Results by address" in html
    assert "http://one:1 (replica), http://other:2 (replica); least-in-flight" in html
    assert in_process("report", summary["run"]) == 0
    table = capsys.readouterr().out
    assert "address" in table
    assert table.index("one:1") < table.index("other:2")


def test_two_servers_are_measured_in_turns_and_the_headline_says_which_is_better_and_what_would_undo_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path / "one", "--url", ONE, "--against", ONE, "--dry-run", "--json") == 0
    printed = capsys.readouterr()
    assert "reference-b at http://one:1 (one server: what differs is noise); model" in printed.err
    assert json.loads(printed.out) == {"dry_run": True}
    engines = {"reference-1": VirtualEngine(slowdown=1.1), "reference-2": VirtualEngine()}
    assert bench(tmp_path, "--url", ONE, "--against", OTHER, **engines) == 0
    captured = capsys.readouterr()
    assert "reference-1 at http://one:1, reference-2 at http://other:2; model truth" in captured.err
    run = results.load(next((tmp_path / "runs").iterdir()))
    in_turns = [f"{trial.record.engine[-1]}{trial.record.repeat}" for trial in run.finished]
    assert in_turns == ["11", "21", "22", "12", "13", "23"]
    out = " ".join(captured.out.split())
    assert "At c=4, reference-2 delivered 1.1" in out
    assert "; it stands unless the standard deviation between starts of one server exceeds " in out


@pytest.mark.parametrize("names", [("m", "other"), ("m", "m")])
def test_servers_are_compared_by_one_model_name(names: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter(Identity("openai", (name,)) for name in names)

    async def identify(*_: object) -> Identity:
        return next(found)

    monkeypatch.setattr("bakeoff.harness.experiment.bench.identify", identify)
    data: dict[str, Any] = {
        "name": "t", "engines": [{"url": ONE, "headers": {}}, {"url": OTHER, "headers": {}}],
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
        "loads": [{"concurrency": 1}],
    }  # fmt: skip
    same = (
        contextlib.nullcontext() if names[0] == names[1] else pytest.raises(BadExperiment, match="serves other; both")
    )
    with same:
        experiment, _ = identified(data, urls=[ONE, OTHER], engine=None, model=None, tokenizer="approximate")
        assert [each.name for each in experiment.engines] == ["openai-1", "openai-2"]


def test_one_address_shows_no_table_of_addresses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path, "--url", ONE) == 0
    assert "one:1" not in capsys.readouterr().out
    run = results.load(next((tmp_path / "runs").iterdir()))
    assert "Results by address" not in render_html(run)
    assert set(run.requests["address"]) == {None}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((ONE, "--balance", "by-session"), "--balance divides requests among several addresses; give --url for each"),
        ((ONE, "--repeats", "0"), "repeats must be at least 1"),
        ((ONE, OTHER, "--against", "http://third:3"), "--against compares two servers; give one --url"),
        ((ONE, OTHER, "--balance", "fair"), "--balance must be one of round-robin, least-in-flight, by-session,"),
        ((ONE, ONE), "urls (--url of bench) has an address twice; remove one"),
        ((ONE, OTHER, "--profile"), "an engine with several urls or replicas cannot be profiled; give one server"),
    ],
)
def test_what_makes_no_sense_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], complaint: str
) -> None:
    assert bench(tmp_path, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line


def test_servers_have_the_names_that_they_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engines = {"old": VirtualEngine(), "new": VirtualEngine()}
    options = ("--url", ONE, "--against", OTHER, "--label", "old", "--label", "new", "--repeats", "1")
    assert bench(tmp_path, *options, "--json", **engines) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [cell["engine"] for cell in summary["cells"]] == ["old", "new"]
    assert bench(tmp_path, "--url", ONE, "--label", "a", "--label", "b") == 2
    assert "--label names each server: give it once for each of 1" in capsys.readouterr().err


def test_the_latest_run_can_be_shared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert in_process("report", "latest") == 2
    assert "there is no run in runs/ that could be the latest" in capsys.readouterr().err
    assert bench(tmp_path, "--url", ONE) == 0
    (run,) = (tmp_path / "runs").iterdir()
    shutil.copytree(run, run.with_name("20250101-000000-older"))
    capsys.readouterr()
    assert in_process("report", "latest", "--markdown", "--svg", "picture.svg") == 0
    text = capsys.readouterr().out
    assert results.load("latest").path.name == run.name
    assert text.startswith("**reference: output ")
    assert "| Time to first token (TTFT) p50, ms | " in text
    picture = ET.parse("picture.svg").getroot()
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert "reference: output" in "".join(picture.itertext())
    assert "src=" not in Path("picture.svg").read_text(), "nothing is fetched"
    for wrong in (("--svg", "."), ("--svg", "a.png"), ("--markdown", "--json")):
        assert in_process("report", "latest", *wrong) == 2
        assert "bakeoff: --" in capsys.readouterr().err
    assert in_process("compare", "latest", "latest") in {0, 2, 3}
    assert "is not a run folder" not in capsys.readouterr().err
    assert "TTFT p50 (s)" in str(results.load("latest"))
