"""The truth server in a process of its own: its handle, its orders on stdin, its end."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from bakeoff.harness.errors import TruthFailed
from bakeoff.harness.truth import Answered, Fault, Schedule, Truth, truth_process
from tests.harness.truth_client import ask, connect, read, request


def with_process(scene: Callable[[Truth], Awaitable[Any]], schedule: Schedule, **options: Any) -> Any:
    async def run() -> Any:
        async with truth_process(schedule, **options) as truth:
            return await scene(truth)

    return asyncio.run(run())


async def exchange(truth: Truth, data: bytes) -> list[int]:
    return (await asyncio.to_thread(ask, truth.port, data)).ids


def test_the_record_comes_out_of_the_process_and_can_be_forgotten():
    schedule = Schedule(0.001, 0.001, faults={Fault.NO_FINISH: 0.5}, seed=2)

    async def scene(truth: Truth) -> list[list[Answered]]:
        records = []
        for _ in range(2):
            for _ in range(4):
                assert await exchange(truth, request(3, model="m")) == [0, 1, 2]
            records.append(await truth.answered())
            await truth.reset()
        return [*records, await truth.answered()]

    first, second, after = with_process(scene, schedule)
    assert after == []
    assert [answered.number for answered in second] == [0, 1, 2, 3]
    assert [answered.fault for answered in first] == [schedule.fault(number) for number in range(4)]
    assert [answered.fault for answered in second] == [answered.fault for answered in first]
    assert [answered.connection for answered in second] == [4, 5, 6, 7]
    assert all(len(answered.written_ns) == 3 for answered in first + second)


def test_reset_makes_stalls_count_anew():
    async def scene(truth: Truth) -> list[Answered]:
        records = []
        for _ in range(2):
            await exchange(truth, request(1))
            records += await truth.answered()
            await truth.reset()
        return records

    for answered in with_process(scene, Schedule(0, 0, stalls=((0, 0.05),))):
        assert answered.written_ns[0] - answered.start_ns >= 50_000_000


def test_half_a_million_stamps_come_out():
    def read_away(port: int) -> None:
        with connect(port) as connection:
            connection.sendall(request(500_000))
            tail = b""
            while not tail.endswith(b"0\r\n\r\n"):
                tail = (tail + connection.recv(1 << 20))[-5:]

    async def scene(truth: Truth) -> list[Answered]:
        await asyncio.to_thread(read_away, truth.port)
        return await truth.answered()

    (answered,) = with_process(scene, Schedule(0, 0, events_per_write=250, token_ids=False))
    assert len(answered.written_ns) == 500_000
    assert answered.written_ns == sorted(answered.written_ns)


def test_port_model_host_and_core_are_taken():
    async def scene(truth: Truth) -> tuple[str, dict[str, Any], set[int]]:
        models = await asyncio.to_thread(ask, truth.port, b"GET /v1/models HTTP/1.1\r\n\r\n")
        return truth.url, models.json, os.sched_getaffinity(truth.pid)

    core = max(os.sched_getaffinity(0))
    url, models, cores = with_process(scene, Schedule(), model="their/model", core=core)
    assert url.startswith("http://127.0.0.1:")
    assert models["data"][0]["id"] == "their/model"
    assert cores == {core}


def test_what_cannot_be_started_says_why():
    async def twice(truth: Truth) -> None:
        async with truth_process(Schedule(), truth.port):
            pass

    with pytest.raises(TruthFailed, match=r"cannot listen on .* choose another"):
        with_process(twice, Schedule())
    with pytest.raises(TruthFailed, match="core 4000 cannot be used; this process may use 0"):
        with_process(twice, Schedule(), core=4000)


def test_a_killed_process_is_noticed():
    async def scene(truth: Truth) -> None:
        os.kill(truth.pid, signal.SIGKILL)
        await truth.answered()

    with pytest.raises(TruthFailed, match="has ended"):
        with_process(scene, Schedule())


def started(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "bakeoff.harness.truth", json.dumps(order)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_the_plain_process_takes_lines_and_ends_with_stdin():
    with started({"schedule": {"ttft_s": 0.001, "itl_s": 0.001}, "port": 0, "core": None}) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        word, port = process.stdout.readline().split()
        assert word == b"ready"
        with connect(int(port)) as connection:
            connection.sendall(request(2))
            assert read(connection).ids == [0, 1]
            process.stdin.write(b"answered\nreset\nans")
            process.stdin.flush()
            (answered,) = msgspec.json.decode(process.stdout.readline(), type=list[Answered])
            assert len(answered.written_ns) == 2
            assert process.stdout.readline() == b"reset\n"
            process.stdin.write(b"wered\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"[]\n"
            process.stdin.close()
            assert process.wait() == 0


def test_a_bad_order_is_one_line_and_a_failure():
    for order, words in (({"schedule": {"itl_s": -1}}, b"itl_s must be"), ({"schedule": {"itl": 1}}, b"unknown field")):
        with started(order) as process:
            out, _ = process.communicate()
            assert words in out
            assert out.count(b"\n") == 1
            assert process.returncode == 2
