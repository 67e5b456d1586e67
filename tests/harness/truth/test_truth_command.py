"""``bakeoff truth``."""

import inspect
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.cli.truth import serve_truth
from bakeoff.harness.truth import Answered, Ending, Fault, Schedule
from tests.harness.truth_client import ask, request

BAKEOFF = [sys.executable, "-c", "import bakeoff.harness.entry; bakeoff.harness.entry.main()", "truth"]


def started(*arguments: object) -> tuple[subprocess.Popen[str], int]:
    """The command once it is ready, and its port."""
    process = subprocess.Popen(
        [*BAKEOFF, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("truth server at http://127.0.0.1:"), process.communicate()
    return process, int(line.split(";")[0].rpartition(":")[2])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_interrupted_and_says_what_it_did(tmp_path: Path, number: signal.Signals):
    log = tmp_path / "truth.jsonl"
    process, port = started(
        "--ttft-ms", 2, "--itl-ms", 1, "--tokens-per-chunk", 2, "--role-chunk", "early", "--no-done", "--model", "m",
        "--fault", "http_429=0.5", "--fault", "reset=0", "--seed", 3, "--log", log,
    )  # fmt: skip
    with process:
        replies = [ask(port, request(5, chat=True)) for _ in range(8)]
        process.send_signal(number)
        out, err = process.communicate()
        assert (process.returncode, err) == (0, "")
    refused = [reply.status for reply in replies].count(429)
    assert 0 < refused < 8
    assert out == f"8 answers over 8 connections: {8 - refused} complete, {refused} fault\n"
    answers = [msgspec.json.decode(line, type=Answered) for line in log.read_bytes().splitlines()]
    assert [answered.number for answered in answers] == list(range(8))
    assert [answered.fault is Fault.HTTP_429 for answered in answers] == [reply.status == 429 for reply in replies]
    whole = next(answered for answered in answers if answered.ending is Ending.COMPLETE)
    assert len(whole.written_ns) == 3
    assert whole.role_ns is not None
    streams = [reply for reply in replies if reply.status == 200]
    assert all(reply.ids == [0, 1, 2, 3, 4] and b"[DONE]" not in reply.body for reply in streams)


def test_without_a_request_it_reports_no_answers():
    process, _ = started("--stall", "20:5", "--stall", "40:5", "--restart", "30:2")
    with process:
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("0 answers over 0 connections\n", "")
        assert process.returncode == 0


def test_the_page_describes_every_option_and_fault():
    page = (Path(__file__).parents[3] / "docs/truth.md").read_text(encoding="utf-8")
    for name in (*Schedule.__struct_fields__, *Fault):
        assert f"`{name}`" in page
    flags = inspect.signature(serve_truth).parameters
    fields = {field.removesuffix("_s") for field in Schedule.__struct_fields__}
    for name in flags:
        assert name.removesuffix("_ms") in fields or f"--{name}" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--fault", "reset"), "expected NAME=SHARE, such as --fault http_429=0.1"),
        (("--fault", "explode=0.1"), "no fault 'explode'; known: http_429"),
        (("--fault", "reset=0.7", "--fault", "stall=0.5"), "add up to 1.2"),
        (("--stall", "5"), "such as --stall 20:5"),
        (("--restart", "soon"), "such as --restart 20:5"),
        (("--ttft-ms", "nan"), "ttft_s must be 0 or more seconds"),
        (("--tokens-per-chunk", "0"), "tokens_per_chunk must be at least 1"),
        (("--role-chunk", "late"), "--role-chunk"),
        (("--port", "70000"), "cannot listen on 127.0.0.1:70000"),
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1:0"),
        (("--core", "4000"), "core 4000 cannot be used"),
        (("--log", "/no/such/folder/file"), "cannot write /no/such/folder/file"),
        (("--itl", "3"), "--itl"),
    ],
)
def test_mistakes_are_one_line_on_stderr(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]):
    assert guarded(make_app(), ("truth", *arguments)) == (3 if words.startswith("cannot write") else 2)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert words in printed.err
