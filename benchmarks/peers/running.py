"""Run one load generator on a core of its own, against a truth server on another."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from bakeoff.harness.truth import Schedule, truth_process
from benchmarks.peers.protocol import Client, Figures, Load
from benchmarks.peers.truths import Truth, truth_of
from benchmarks.peers.watch import Footprint, Watch, process_tree

SERVER_CORE, CLIENT_CORE = 0, 1
_ROOT = Path(__file__).parents[2]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One load by one client, once.

    Attributes:
        figures: as the client reported them.
        truth: from the server's record.
        footprint: of the client's processes.
        wall_s: of the client, start-up and report included.
    """

    figures: Figures
    truth: Truth
    footprint: Footprint
    wall_s: float

    @property
    def cpu_load_s(self) -> float:
        """CPU time from the first request to the last token."""
        return self.footprint.cpu_between_s(self.truth.first_ns, self.truth.last_ns)

    @property
    def cpu_report_s(self) -> float:
        """CPU time after the last token: deferred work, and the report."""
        return self.footprint.cpu_between_s(self.truth.last_ns, self.footprint.t_ns[-1])


class ClientFailed(Exception):
    """A client failed or took too long; the message includes its last output."""


async def measure(client: Client, schedule: Schedule, load: Load, folder: Path, *, timeout_s: float = 180) -> Trial:
    """Start a truth server and send it ``load``, with the server's URL as base URL, through ``client``.

    Args:
        client: sends the load.
        schedule: of the server.
        load: the load.
        folder: absolute path; created here for the client's files and its output.
        timeout_s: time after which the client is killed.

    Raises:
        ClientFailed: the client failed or took too long; with the end of its output.
    """
    async with truth_process(schedule, core=SERVER_CORE) as truth:
        load = msgspec.structs.replace(load, base_url=truth.url)
        wall_s, footprint = await asyncio.to_thread(_run, client, load, folder, timeout_s)
        answers = await truth.answered()
    if len(answers) < load.requests:
        raise ClientFailed(f"{client.name} sent {len(answers)} of {load.requests} requests; see {folder}/output.log")
    answers.sort(key=lambda answer: answer.start_ns)
    measured = answers[-load.requests :]  # some clients send a request first to check the server
    trial = Trial(
        figures=_figures(client, load, folder),
        truth=truth_of(measured, load.concurrency),
        footprint=footprint,
        wall_s=wall_s,
    )
    (folder / "trial.json").write_bytes(msgspec.json.encode(trial))
    return trial


def _figures(client: Client, load: Load, folder: Path) -> Figures:
    try:
        return client.figures(load, folder)
    except (FileNotFoundError, KeyError) as error:
        raise ClientFailed(f"{client.name} left no result ({error!r}); see {folder}/output.log") from error


def _run(client: Client, load: Load, folder: Path, timeout_s: float) -> tuple[float, Footprint]:
    """Run a client to its end and sample its processes; kill all of them after the timeout."""
    pinned = [sys.executable, "-m", "benchmarks.peers.pinned", str(CLIENT_CORE), "alone" if client.alone else "crowd"]
    folder.mkdir(parents=True)
    started_ns = time.monotonic_ns()
    with (folder / "output.log").open("wb") as log:
        process = subprocess.Popen(
            [*pinned, *client.command(load, folder)], cwd=_ROOT, env={**os.environ, **client.environment()},
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    timeout = threading.Timer(timeout_s, _kill, (process.pid,))
    timeout.start()
    try:
        watch = Watch(process.pid, SERVER_CORE)
        watch.start()
        _, status, usage = os.wait4(process.pid, 0)  # not Popen.wait: only wait4 gives the CPU time of ended children
    finally:
        timeout.cancel()
    ended_ns = time.monotonic_ns()
    footprint = watch.finish(ended_ns, usage.ru_utime + usage.ru_stime)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = (folder / "output.log").read_text(errors="replace")[-1500:]
        raise ClientFailed(f"{client.name} ended with {process.returncode}:\n{tail}")
    return (ended_ns - started_ns) / 1e9, footprint


def _kill(pid: int) -> None:
    for process in process_tree(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
