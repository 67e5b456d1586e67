"""bakeoff report RUN views, export and import as a user calls them."""

import json
from pathlib import Path
from typing import get_args

import pytest

from bakeoff import results
from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.commands import export, report
from bakeoff.harness.cli.guarded import guarded
from bakeoff.results.export.services import Service
from bakeoff.results.report import render_html
from bakeoff.results.views import VIEWS
from bakeoff.results.views.exports import EXPORTS
from tests.results.builders import FAST, SLOW, Sheet, build_run
from tests.results.views.test_views_import import SUMMARY, result, write


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sheet = Sheet(engines={"fast": FAST, "slow": SLOW}, repeats=2, invalid=(1,))
    return build_run(tmp_path_factory.mktemp("runs"), sheet)


def bakeoff(*arguments: object) -> int:
    return guarded(make_app(), [str(argument) for argument in arguments])


def test_the_options_are_the_tools() -> None:
    """The command spells the options out, so that --help imports no view."""
    names, _ = get_args(get_args(report.Tool)[0])  # one of them, or None
    assert set(get_args(names)) == set(VIEWS)
    assert set(get_args(get_args(export.Format)[0])) == {*EXPORTS, *Service}


def test_files_are_written_into_folders(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bakeoff("export", path, "--as", "csv", "--out", "s3://bucket/tables") == 2
    assert "--as csv writes files; give --out a folder" in capsys.readouterr().err


@pytest.mark.slow
def test_all_tools_side_by_side(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bakeoff("report", path, "views") == 0
    printed = capsys.readouterr().out
    assert "fast, c=4" in printed
    assert "slow, poisson 2/s" in printed
    for tool in VIEWS.values():
        assert printed.count(f"{tool.title} {tool.version}") == 1
        assert printed.count(f"{tool.title}  ") >= 8, "a row for each engine and load"
    assert "from the send, not the plan" in printed
    assert max(map(len, printed.splitlines())) <= 110


@pytest.mark.slow
def test_one_tool_in_full(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bakeoff("report", path, "views", "--as", "guidellm") == 0
    printed = capsys.readouterr().out
    assert "TTFT ms Mdn" in printed
    assert "includes the time to the first token" in printed
    assert "repeat 2" in printed
    assert "INVALID" in printed
    assert "Mean TTFT (ms)" not in printed, "no other tool's names"


@pytest.mark.slow
def test_json_holds_every_figure_of_every_trial(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bakeoff("report", path, "views", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["trials"]) == 16
    assert set(printed["trials"][0]["views"]) == set(printed["tools"]) == set(VIEWS)
    figure = printed["trials"][0]["views"]["vllm"]["figures"]["Mean TTFT (ms)"]
    assert figure["unit"] == "ms"
    assert figure["value"]["value"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "files"), [("vllm", 16), ("pytest-benchmark", 1)])
def test_export_prints_the_files_that_it_wrote(
    path: Path, tmp_path: Path, tool: str, files: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bakeoff("export", path, "--as", tool, "--out", tmp_path / "out") == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert len(written) == files
    assert all(file.is_file() for file in written)


def test_what_is_exported_for_vllm_is_imported_again(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bakeoff("export", path, "--as", "vllm", "--out", tmp_path / "out")
    file = Path(capsys.readouterr().out.splitlines()[0])
    assert bakeoff("import", "vllm", file, "--out", tmp_path / "runs") == 0
    assert "report: " in capsys.readouterr().out
    (run,) = (tmp_path / "runs").iterdir()
    assert bakeoff("report", run, "views", "--as", "vllm", "--json") == 0
    again = json.loads(capsys.readouterr().out)["trials"][0]["views"]["vllm"]["figures"]
    exported = json.loads(file.read_text())
    for name, tag in {"TTFT": "ttft", "ITL": "itl", "TPOT": "tpot", "E2EL": "e2el"}.items():
        assert again[f"Mean {name} (ms)"]["value"]["value"] == pytest.approx(exported[f"mean_{tag}_ms"], rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("report", "/no/such/run", "views"), "is not a run folder"),
        (("report", "/no/such/run", "views", "--as", "wrk"), "--help"),
        (("export", "/no/such/run", "--as", "vllm", "--out", "x"), "is not a run folder"),
        (("export", "/no/such/run", "--as", "sglang", "--out", "x"), "--help"),
        (("import", "vllm", "/no/such/file.json"), "cannot be read"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bakeoff(*arguments) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert words in printed.err


def test_a_summary_file_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bakeoff("import", "vllm", write(tmp_path / "r.json", SUMMARY), "--out", tmp_path / "runs") == 2
    assert capsys.readouterr().err.endswith("measure again with --save-detailed\n")
    assert bakeoff("import", "vllm", write(tmp_path / "r.json", result()), "--out", tmp_path / "runs") == 0


def test_whole_answers_have_no_views(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tools' figures of streams would show them a TTFT that is the whole answer, or 0 tokens."""
    path = build_run(tmp_path, Sheet(engines={"fast": FAST}, repeats=1, is_streamed=False))
    assert bakeoff("report", path, "views") == 2
    assert f"came whole: see bakeoff report {path}" in capsys.readouterr().err
    assert bakeoff("export", path, "--as", "llm-d", "--out", tmp_path / "out") == 2
    assert "came whole: use --as json" in capsys.readouterr().err
    assert bakeoff("export", path, "--as", "json", "--out", tmp_path / "out") == 0
    assert 'id="views"' not in render_html(results.load(path))
