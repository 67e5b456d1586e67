"""``bakeoff dashboard`` as a user starts it, and in the ways in which it does not start."""

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.harness.cli.test_cli import in_process as bakeoff
from tests.results.builders import FAST, LOADS, Sheet, build_run

SHEET = Sheet(engines={"only": FAST}, loads=LOADS[:1], repeats=1, requests=3, invalid=())
BAKEOFF = Path(sys.executable).with_name("bakeoff")


def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    build_run(tmp_path, SHEET)
    command = [BAKEOFF, "dashboard", tmp_path, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("dashboard: ").strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address) as answer:
            assert b"1 runs" in answer.read()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0 can be reached from other machines; add --network if that is wanted"),
        (["--token-env", "NO_SUCH_VARIABLE"], "the environment variable NO_SUCH_VARIABLE is not set"),
        (["--port", "PORT"], "choose another --port"),
        (["--host", "203.0.113.7", "--network", "--port", "PORT"], "cannot listen on 203.0.113.7:"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_2(tmp_path: Path, capsys, more: list[str], message: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert bakeoff("dashboard", str(tmp_path), *(port if word == "PORT" else word for word in more)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bakeoff: ")
    assert message in line


def test_a_folder_that_is_not_there(tmp_path: Path, capsys) -> None:
    assert bakeoff("dashboard", str(tmp_path / "nothing")) == 2
    assert "is not a folder; give the folder that holds run folders" in capsys.readouterr().err
