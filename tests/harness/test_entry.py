"""What leaves ``bakeoff`` after mistakes and bugs: one line, and an exit code that is never a wrong verdict."""

import os
import subprocess
import sys
from pathlib import Path

import cyclopts
import pytest

from bakeoff.harness import cli, entry
from bakeoff.harness.cli.guarded import guarded
from tests.harness.cli.test_cli import in_process
from tests.results.builders import Sheet, build_run


@pytest.mark.parametrize("arguments", [("report", "--odd\n"), ("report", "--" + 4000 * "x"), ("gate", "a\nb" * 900)])
def test_a_message_stays_one_line_whatever_was_typed(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    assert in_process(*arguments) in {2, 3}
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert len(line) < 1000


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KeyError("x\ny"), "unexpected error at test_entry.py:"),
        (ExceptionGroup("", [ZeroDivisionError("z")]), ": ZeroDivisionError: z; please report it at https://"),
        (RecursionError("deep"), ": RecursionError: deep;"),
    ],
)
def test_an_unexpected_error_is_one_line_and_exit_3(error: Exception, line: str, capsys: pytest.CaptureFixture[str]):
    app = cyclopts.App()

    @app.default
    def meet() -> None:
        raise error

    assert guarded(app, []) == 3
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert line in printed


def test_closed_standard_streams_do_not_become_other_files():
    """Descriptors 0, 1 and 2 would be given to the next file or socket."""
    argv = ["sh", "-c", f"exec {sys.executable} -m bakeoff doctor --help <&- >&- 2>&-"]
    assert subprocess.run(argv, check=False).returncode == 0


def test_an_argument_that_is_not_utf_8_is_refused_before_it_names_a_folder(capsys: pytest.CaptureFixture[str]):
    assert in_process("run", os.fsdecode(b"caf\xe9.toml")) == 2
    assert "is not UTF-8, which names that are stored must be; rename it" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["gate", "history", "claims"])
def test_a_bug_is_never_a_verdict(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def broken() -> cyclopts.App:
        raise RuntimeError("cannot make\nthe application")

    monkeypatch.setattr(cli, "make_app", broken)
    monkeypatch.setattr(sys, "argv", ["bakeoff", command])
    with pytest.raises(SystemExit) as exited:
        entry.main()
    assert exited.value.code == 3
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "RuntimeError: cannot make the application; please report it at https://" in line
    monkeypatch.setenv("BAKEOFF_TRACEBACK", "1")
    with pytest.raises(SystemExit):
        entry.main()
    assert capsys.readouterr().err.startswith("Traceback (most recent call last)")


def test_ctrl_c_while_modules_are_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch):
    def interrupted() -> cyclopts.App:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "make_app", interrupted)
    monkeypatch.setattr(sys, "argv", ["bakeoff", "gate"])
    with pytest.raises(SystemExit) as exited:
        entry.main()
    assert exited.value.code == 130


def test_a_terminal_without_unicode_gets_the_table(tmp_path: Path):
    run = build_run(tmp_path, Sheet(finished=1))
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "bakeoff", "report", str(run)], capture_output=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"c=" in done.stdout
    assert b"\\xb7" in done.stdout, "no sign that ASCII lacks"


def test_a_file_nested_too_deeply_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "e.toml").write_text("name = " + "[" * 3000, encoding="utf-8")
    assert in_process("run", str(tmp_path / "e.toml")) == 2
    line = capsys.readouterr().err
    assert line == f"bakeoff: {tmp_path}/e.toml is nested too deeply to be an experiment\n"
