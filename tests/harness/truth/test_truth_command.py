"""``bakeoff lab truth``."""

import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bakeoff.engines.adapters.vllm import METRICS
from bakeoff.engines.metrics.readers import reader_of
from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.commands.truth import serve_truth
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.truth import Answered, Ending, Fault, Schedule
from bakeoff.harness.truth.answered import ReplicaAnswered
from tests.harness.truth_client import ask, connect, request

BAKEOFF = [sys.executable, "-c", "import bakeoff.harness.entry; bakeoff.harness.entry.main()", "lab", "truth"]


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


def replicas(*arguments: object) -> tuple[subprocess.Popen[str], list[int]]:
    """Two replicas once they are ready, and their ports."""
    process = subprocess.Popen(
        [*BAKEOFF, "--replicas", "2", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    assert lines[2] == "press Ctrl-C to stop\n", (lines, process.communicate())
    return process, [int(line.rpartition(":")[2]) for line in lines[:2]]


def test_each_replica_has_its_own_cache_pace_and_page(tmp_path: Path):
    log = tmp_path / "truth.jsonl"
    process, ports = replicas(
        "--ttft-ms", 2, "--itl-ms", 1, "--prompt-token-ms", 0.01, "--slow", "2=1.5", "--log", log,
        "--cache-tokens", 1000, "--cache-tokens", "2=32", "--cache-block-tokens", 32,
    )  # fmt: skip
    asked = {"role": "user", "content": "word " * 98}
    conversation = [asked, {"role": "assistant", "content": " a" * 5}, {"role": "user", "content": "and now"}]
    with process:
        for port in ports:
            for messages in ([asked], conversation):
                assert ask(port, request(5, chat=True, messages=messages)).status == 200
        pages = [reader_of(METRICS).read(ask(port, b"GET /metrics HTTP/1.1\r\n\r\n").body) for port in ports]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert (process.returncode, err) == (0, "")
    assert out == "".join(f"replica {number}: 2 answers over 3 connections: 2 complete\n" for number in (1, 2))
    assert [page["prefix_hits_tokens_total"] for page in pages] == [96, 32]
    assert [page["prefix_queries_tokens_total"] for page in pages] == [100 + 109] * 2
    answers = [msgspec.json.decode(line, type=ReplicaAnswered) for line in log.read_bytes().splitlines()]
    assert [(answer.replica, answer.cached_tokens) for answer in answers] == [(1, 0), (1, 96), (2, 0), (2, 32)]
    for answer in answers:
        uncached = answer.prompt_tokens - (answer.cached_tokens or 0)
        due_ns = (2_000_000 + uncached * 10_000) * (3 if answer.replica == 2 else 2) // 2
        assert answer.written_ns[0] - answer.start_ns >= due_ns
        assert (answer.written_ns[0] - answer.start_ns - due_ns) < 10**9, "not in seconds or in another unit"


def test_a_replica_that_dies_ends_the_others():
    process, ports = replicas()
    with process:
        listeners = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
        os.kill(int(listeners[1]), signal.SIGKILL)
        out, err = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert err == "bakeoff: replica 2 has ended (exit code -9)\n"
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            connect(port)


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
        (("--replicas", "0"), "--replicas must be at least 1, not 0"),
        (
            ("--replicas", "2", "--slow", "3=2"),
            "expected the number of a replica, 1 to 2, before the =",
        ),
        (("--slow", "fast"), "such as --slow 2=1.5"),
        (("--slow", "0"), "slow must be a number above 0, not 0.0"),
        (("--cache-tokens", "1.5"), "such as --cache-tokens 1=100000"),
        (("--cache-tokens", "15"), "cache_tokens must hold at least one block of cache_block_tokens"),
        (("--cache-block-tokens", "0"), "cache_block_tokens must be at least 1"),
        (("--prompt-token-ms", "-1"), "prompt_token_s must be 0 or more seconds"),
        (("--replicas", "2", "--port", "65535"), "cannot listen on 127.0.0.1:65536 (a port is between 0 and 65535)"),
        (("--replicas", "2", "--log", "/no/such/folder/file"), "cannot write /no/such/folder/file"),
    ],
)
def test_mistakes_are_one_line_on_stderr(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]):
    assert guarded(make_app(), ("lab", "truth", *arguments)) == (3 if words.startswith("cannot write") else 2)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert words in printed.err
