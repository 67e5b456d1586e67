"""Child processes with a protocol of lines: orders, answers, and their end, whichever side causes it."""

import asyncio
import os
import tempfile
from asyncio.subprocess import Process
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from bakeoff.harness.host.child import child_process, read_line, send, tail

ECHO = """
import sys
print(sys.argv[1:], flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
print("a last word", file=sys.stderr)
sys.exit(3)
"""
TWO_THAT_STAY = """
import os, signal
os.fork()
print("here", flush=True)
signal.pause()
"""


class Pipes:
    """A fake process; only its pipes are real, and this test holds their other ends."""

    def __init__(self, *, closing: bool = False, broken: bool = False) -> None:
        self.stdin = self
        self.stdout = asyncio.StreamReader()
        self.written = b""
        self._closing = closing
        self._broken = broken

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None:
        if self._broken:
            raise BrokenPipeError


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write code as a module that ``python -m`` finds; returns its name."""

    def made(code: str) -> str:
        (tmp_path / "spoken_to.py").write_text(code, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return "spoken_to"

    return made


def sent(order: object, **state: bool) -> bytes:
    async def scene() -> bytes:
        pipes = Pipes(**state)
        await send(cast("Process", pipes), order)
        return pipes.written

    return asyncio.run(scene())


def test_an_order_is_a_line_of_json_or_as_it_is():
    assert sent({"stop": True}) == b'{"stop":true}\n'
    assert sent(msgspec.Raw(b"reset")) == b"reset\n"


def test_an_order_to_a_child_that_is_gone_is_lost_in_silence():
    assert sent(1, broken=True) == b"1\n"
    assert sent(1, closing=True) == b""


def test_answers_come_line_by_line_and_then_nothing():
    async def scene(error: Exception | None) -> list[bytes]:
        pipes = Pipes()
        pipes.stdout.feed_data(b"1\n2\n")
        lines = [await read_line(cast("Process", pipes)) for _ in range(2)]
        pipes.stdout.set_exception(error) if error else pipes.stdout.feed_eof()
        return [*lines, await read_line(cast("Process", pipes))]

    for error in (None, ConnectionResetError()):
        assert asyncio.run(scene(error)) == [b"1\n", b"2\n", b""]


def test_the_tail_is_the_end_of_what_was_written_wherever_the_writer_is():
    with tempfile.TemporaryFile() as file:
        assert tail(file) == ""
        file.write(b"x" * (1 << 17) + b"\nthe \xff end\n\n")
        file.flush()
        file.seek(5)
        assert tail(file).splitlines()[1:] == ["the � end"]
        assert len(tail(file)) < 1 << 16
        assert file.tell() == 5


def test_a_child_answers_in_a_session_of_its_own_and_ends_with_its_block(module: Callable[[str], str]):
    async def scene(stderr: Any) -> Process:
        async with child_process(module(ECHO), "--core", 7, None, stderr=stderr) as process:
            assert await read_line(process) == b"['--core', '7']\n"
            await send(process, [1])
            assert await read_line(process) == b"[1]\n"
            assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
        assert await read_line(process) == b""
        await send(process, [2])
        return process

    with tempfile.TemporaryFile() as stderr:
        assert asyncio.run(scene(stderr)).returncode == 3
        assert tail(stderr) == "a last word"


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_child_that_does_not_end_is_killed_with_all_that_it_started(module: Callable[[str], str], cancelled: bool):
    processes: list[Process] = []

    async def scene() -> None:
        async with child_process(module(TWO_THAT_STAY), stop_s=0.01) as process:
            processes.append(process)
            assert [await read_line(process) for _ in range(2)] == [b"here\n"] * 2
            if cancelled:
                raise asyncio.CancelledError

    async def ended() -> bytes:
        await asyncio.wait([asyncio.create_task(scene())])
        return await read_line(processes[0])

    assert asyncio.run(ended()) == b"", "nobody holds its stdout any more"
    assert processes[0].returncode == -9


def test_a_second_interrupt_while_it_ends_leaves_no_process(module: Callable[[str], str]) -> None:
    processes: list[Process] = []

    async def scene() -> None:
        async with child_process(module(TWO_THAT_STAY), stop_s=60) as process:
            processes.append(process)
            await read_line(process)

    async def interrupted() -> None:
        task = asyncio.create_task(scene())
        while not processes or not cast("Any", processes[0].stdin).is_closing():  # noqa: ASYNC110  (it ends)
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(interrupted())
    assert processes[0].returncode == -9
