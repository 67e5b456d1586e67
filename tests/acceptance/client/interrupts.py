"""Ctrl-C and SIGTERM at 40 instants of runs with a million chunks: over within two seconds, the run readable.

The server writes answers of 15,000 events in blocks, so that a run spends as long on decoding as on its load. The first
run is left alone; its length is divided among the instants.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import RunStatus
from benchmarks.bars import Bars
from tests.acceptance.client.faulty_servers import HEAD, delta, end

ANSWERS, EVENTS, BLOCK, PAUSE_S = 16, 15_000, 100, 0.03
LIMIT_S, REPORT_EVERY = 2.0, 8
EXPERIMENT = f"""
name = "interrupted"
repeats = 1
model = {{{{ name = "m", tokenizer = "approximate" }}}}
loads = [{{{{ concurrency = {ANSWERS} }}}}]
quality = {{{{ samples = 0 }}}}
workload = {{{{ name = "random", options = {{{{ input_tokens = 8, output_tokens = {EVENTS}, spread = 0.0 }}}} }}}}
trial = {{{{ ramp_s = 0.5, duration_s = 4.0, warm_up_s = 0.0, max_foreign_share = 1.0 }}}}
client = {{{{ calibrate = false, max_error_share = 1000.0 }}}}
[[engines]]
adapter = "openai"
url = "http://127.0.0.1:{{port}}"
"""


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            body = b'{"object": "list", "data": [{"id": "m"}]}'
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        else:
            writer.write(HEAD)
            for _ in range(EVENTS // BLOCK):
                writer.write(delta() * BLOCK)
                await writer.drain()
                await asyncio.sleep(PAUSE_S)
            writer.write(end(EVENTS))
        await writer.drain()


def serve(listener: socket.socket) -> None:
    async def forever() -> None:
        server = await asyncio.start_server(answer, sock=listener)
        await server.serve_forever()

    asyncio.run(forever())


def started(port: int, out: Path) -> subprocess.Popen[bytes]:
    out.mkdir()
    path = out / "experiment.toml"
    path.write_text(EXPERIMENT.format(port=port))
    return subprocess.Popen(
        [sys.executable, "-m", "bakeoff", "run", str(path), "--out", str(out / "runs")],
        stdout=(out / "stdout").open("wb"), stderr=(out / "stderr").open("wb"), start_new_session=True,
    )  # fmt: skip


def problem_of(out: Path, took_s: float, status: int, *, report: bool) -> str | None:
    """What is wrong with an interrupted run."""
    if took_s > LIMIT_S:
        return f"took {took_s:.1f} s"
    if b"Traceback" in (said := (out / "stderr").read_bytes()) or b"unexpected" in said:
        return said.decode(errors="replace")[-500:]
    folders = list((out / "runs").glob("*/run.jsonl"))
    if not folders:
        return None if status != 0 else "status 0 without a run"
    run = RunFolder.open(folders[0].parent)
    if run.status() is RunStatus.RUNNING:
        return "its log says that it runs"
    if not report:
        return None
    shown = subprocess.run([sys.executable, "-m", "bakeoff", "report", run.path], capture_output=True, check=False)
    return shown.stderr.decode()[-300:] if b"Traceback" in shown.stderr or shown.returncode > 3 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instants", type=int, default=40)
    count = parser.parse_args().instants
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let jobs in the background ignore it
    bars, wrong = Bars(), 0
    with (
        tempfile.TemporaryDirectory(prefix="bakeoff-interrupts-") as name,
        socket.create_server(("127.0.0.1", 0)) as at,
    ):
        server = multiprocessing.Process(target=serve, args=(at,), daemon=True)
        server.start()
        port, began_s = at.getsockname()[1], time.monotonic()
        status = started(port, Path(name) / "whole").wait(600)
        whole_s = time.monotonic() - began_s
        assert list((Path(name) / "whole").glob("runs/*/run.jsonl")), (Path(name) / "whole" / "stderr").read_text()
        print(f"the whole run took {whole_s:.1f} s, status {status}", flush=True)
        for number in range(count):
            sent = signal.SIGTERM if number % 2 else signal.SIGINT
            out, after_s = Path(name) / str(number), 0.2 + (whole_s - 0.2) * (number + 0.5) / count
            process = started(port, out)
            time.sleep(after_s)
            (os.killpg if sent is signal.SIGINT else os.kill)(process.pid, sent)
            began_s = time.monotonic()
            try:
                status = process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status = process.wait()
            took_s = time.monotonic() - began_s
            problem = problem_of(out, took_s, status, report=number % REPORT_EVERY == 0)
            wrong += problem is not None
            print(f"{sent.name:<8} {after_s:5.1f} s  status {status:>3}  {took_s:4.2f} s  {problem or ''}", flush=True)
        server.terminate()
    bars.add("interrupted_runs_wrong", wrong, "<=", 0)
    bars.finish()


if __name__ == "__main__":
    main()
