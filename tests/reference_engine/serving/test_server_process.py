"""The server as its users run it: processes, signals, and what is left of them."""

import asyncio
import contextlib
import json
import os
import signal
import sys

import aiohttp
import psutil
import pytest

from tests.selection import sampled

TEXT, LONG = "/v1/completions", {"prompt": "hello", "max_tokens": 200, "ignore_eos": True, "model": "tiny"}


@contextlib.asynccontextmanager
async def server(checkpoint_dir, *flags):
    """A ready server, as process and HTTP session."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bakeoff.reference_engine", "serve", "--model", str(checkpoint_dir)),
        *("--port", "0", "--served-model-name", "tiny", "--threads", "1", "--num-blocks", "64", *flags),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONWARNINGS": "error"},
    )
    try:
        async with asyncio.timeout(60):
            url = await line_with(process.stderr, "listening on ")
            await line_with(process.stderr, "ready: ")
            async with aiohttp.ClientSession(url) as session:
                yield process, session
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def line_with(stream, text):
    while line := (await stream.readline()).decode():
        if text in line:
            return line.split(text)[1].split(",")[0].strip()
    raise AssertionError(f"the server ended without saying {text!r}")


async def get(session, path):
    async with session.get(path) as answer:
        return answer.status, await answer.json(content_type=None)


async def post(session, path, body=None):
    async with session.post(path, json=body) as answer:
        return answer.status, await answer.json()


async def is_gone(*pids):
    """Waits for the end of processes that are not ours."""
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, 20)
    assert not alive


async def is_ill(session):
    """Waits until the server reports that it accepts no requests."""
    async with asyncio.timeout(5):
        while (await get(session, "/health"))[0] == 200:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.01)


def replica_pids(info):
    return [replica["facts"]["pid"] for replica in info["replicas"]]


@pytest.mark.parametrize("number", sampled([signal.SIGTERM, signal.SIGINT], [signal.SIGTERM]))
def test_an_idle_server_stops_in_time_and_takes_its_engine_along(checkpoint_dir, number):
    async def main():
        async with server(checkpoint_dir) as (process, session):
            status, answer = await post(session, TEXT, LONG)
            assert (status, answer["usage"]["completion_tokens"]) == (200, 200)
            _, info = await get(session, "/server_info")
            process.send_signal(number)
            async with asyncio.timeout(5):
                assert await process.wait() == 0
            await is_gone(*replica_pids(info))

    asyncio.run(main())


@pytest.mark.nightly
def test_replicas_work_side_by_side_are_profiled_and_drained(checkpoint_dir, tmp_path):
    async def main():
        flags = ("--data-parallel-size", "2", "--profile-dir", str(tmp_path / "profiles"))
        async with server(checkpoint_dir, *flags) as (process, session):
            assert (await post(session, "/start_profile"))[0] == 200
            refused = await post(session, "/start_profile")
            assert (refused[0], refused[1]["error"]["message"][:22]) == (400, "a profile runs already")
            answers = await asyncio.gather(*(post(session, TEXT, LONG | {"temperature": 0}) for _ in range(4)))
            assert len({answer["choices"][0]["text"] for _, answer in answers}) == 1  # whichever replica it was
            assert [status for status, _ in answers] == [200] * 4
            _, info = await get(session, "/server_info")
            assert len(set(replica_pids(info))) == 2
            assert [replica["latest_step"]["arrived"] for replica in info["replicas"]] == [3, 3]  # one to warm up
            _, stopped = await post(session, "/stop_profile")
            assert len(stopped["traces"]) == 2
            assert {str(path) for path in (tmp_path / "profiles").iterdir()} == set(stopped["traces"])
            assert (await post(session, "/stop_profile"))[0] == 400
            await drain(process, session)
            await is_gone(*replica_pids(info))

    asyncio.run(main())


async def drain(process, session):
    """SIGTERM in the middle of an answer: the answer is completed, and no further request is accepted."""
    async with session.post(TEXT, json=LONG | {"stream": True}) as answer:
        await answer.content.readline()
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(aiohttp.ClientError):  # on a fast machine all may be over by now
            await is_ill(session)
            status, refusal = await post(session, TEXT, LONG)
            assert (status, refusal["error"]["message"]) == (503, "the server is stopping")
        events = (await answer.read()).decode().split("\n\n")
    assert json.loads(events[-3].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert events[-2] == "data: [DONE]"
    async with asyncio.timeout(5):
        assert await process.wait() == 0


def test_who_profiles_without_a_place_for_it_is_told_the_flag(serve):
    async def main():
        async with serve() as served:
            error = (await served.post("/start_profile", {}, status=400))["error"]
            assert "--profile-dir" in error["message"]

    asyncio.run(main())


def test_an_engine_that_is_killed_is_named_and_a_server_that_is_killed_leaves_no_engine(checkpoint_dir):
    async def main():
        async with server(checkpoint_dir) as (_, session):
            _, info = await get(session, "/server_info")
            os.kill(replica_pids(info)[0], signal.SIGKILL)
            await is_ill(session)
            status, answer = await post(session, TEXT, LONG)
            assert status == 503
            assert "the engine's process has ended (killed; perhaps memory ran out)" in answer["error"]["message"]
        async with server(checkpoint_dir) as (process, session):
            _, info = await get(session, "/server_info")
            process.kill()
            await is_gone(*replica_pids(info))

    asyncio.run(main())


def test_what_is_wrong_with_a_model_is_said_by_the_server_in_one_line(tmp_path, save_checkpoint, make_model):
    directory = save_checkpoint(tmp_path / "broken", make_model())
    (directory / "model.safetensors").write_bytes(b"no weights")

    async def main():
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bakeoff.reference_engine", "serve", "--model", str(directory), "--port", "0"),
            stderr=asyncio.subprocess.PIPE,
        )
        _, stderr = await process.communicate()
        return process.returncode, stderr.decode().splitlines()

    status, lines = asyncio.run(main())
    assert status == 2
    assert [line for line in lines if line.startswith("error: ")] == [lines[-1]]
    assert "damaged or cut short" in lines[-1]
