"""The server survives half an hour of valid and invalid traffic.

64 clients request whole answers and streams, several answers at once, and guided ones; disconnect before the end; read
and send slowly; send incomplete requests and requests that are malformed, too long, too large or not HTTP; scrape
metrics; and reset the prefix cache. Beside them Schemathesis generates requests from the server's OpenAPI document. The
pool of KV blocks is small, so that requests preempt each other. At the end nothing may have crashed, no request may be
stuck, every status must be an expected one, and the server must hold no request and no block. Its memory must not have
drifted: the median of the last fifth of the time is compared with that of the second fifth.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import tempfile
import time
import urllib.parse
from pathlib import Path

import aiohttp

from bakeoff.engines import EngineSpec, Server
from bakeoff.engines.adapters.reference import ReferenceOptions
from benchmarks.bars import Bars, model_argument
from benchmarks.serving import reference_server
from tests.acceptance.engine.soaking.client import Client
from tests.acceptance.engine.soaking.crowd import BROKEN, STUCK, WRONG, Tally, user
from tests.acceptance.engine.soaking.fuzz import fuzz
from tests.acceptance.engine.soaking.watch import drift, left_over, memory_bytes

MINUTES, CLIENTS, DRIFT = 30.0, 64, 0.03
SPEC = EngineSpec(max_model_len=512, max_num_seqs=32, max_num_batched_tokens=256)
NUM_BLOCKS = 320  # of 16 tokens: ten of the longest sequences
DRAIN_S = 30.0
FUZZED_SHARE = 0.9  # of the time; the users run alone afterwards


@dataclasses.dataclass
class SoakResult:
    """Result of a soak.

    Attributes:
        tally: outcomes of the users' actions.
        memory: resident bytes of the server and of its engine process, each second.
        held: requests and blocks that the server held at the end, by metric.
        crash: why the server ended, else None.
        logged_errors: log lines of level ERROR.
        fuzz_status: Schemathesis' exit status; None if it was not run.
        fuzz_output: the end of its output.
    """

    tally: Tally = dataclasses.field(default_factory=Tally)
    memory: list[tuple[int, int]] = dataclasses.field(default_factory=list[tuple[int, int]])
    held: dict[str, float] = dataclasses.field(default_factory=dict[str, float])
    crash: str | None = None
    logged_errors: list[str] = dataclasses.field(default_factory=list[str])
    fuzz_status: int | None = None
    fuzz_output: str = ""


async def soak(server: Server, options: argparse.Namespace, folder: Path) -> SoakResult:
    """Run all users against a server until the last has finished."""
    address, result = urllib.parse.urlsplit(server.base_url), SoakResult()
    assert address.hostname
    assert address.port
    assert server.pid
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)  # `act` sets the timeout
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        client = Client(session, address.hostname, address.port)
        memory_task = asyncio.create_task(memory_bytes(server.pid))
        seconds = 60 * options.minutes
        fuzz_task = asyncio.create_task(
            fuzz(client.url, FUZZED_SHARE * seconds, options.seed, options.patience, folder)
        ) if options.schemathesis else None  # fmt: skip
        end_s = time.monotonic() + seconds
        users = [
            user(client, f"{options.seed} {number}", end_s, options.patience, result.tally)
            for number in range(options.clients)
        ]
        await asyncio.gather(*users)
        if fuzz_task:
            result.fuzz_status, result.fuzz_output = await fuzz_task
        with contextlib.suppress(aiohttp.ClientError, OSError):
            result.held = await left_over(client, DRAIN_S)
        memory_task.cancel()
        result.memory = await memory_task
    if error := server.died():
        result.crash = str(error)
    if server.log:
        lines = server.log.read_text(encoding="utf-8", errors="replace").splitlines()
        result.logged_errors = [line for line in lines if " ERROR reference_engine" in line]
    return result


async def run_soak(options: argparse.Namespace) -> SoakResult:
    """Start the server and run the soak against it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "server.log")
        engine_options = ReferenceOptions(num_blocks=NUM_BLOCKS, preemption=options.preemption)
        async with reference_server(options.model, log, SPEC, engine_options) as server:
            return await soak(server, options, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--patience", type=float, default=300.0, help="seconds after which a request is stuck")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--preemption", default="recompute", choices=("recompute", "swap"))
    parser.add_argument("--schemathesis", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    result = asyncio.run(run_soak(options))
    tally = result.tally
    print(tally.table())
    for line in (*tally.complaints, *result.logged_errors[:20], *filter(None, (result.crash, result.fuzz_output))):
        print(line)
    tenths = result.memory[:: max(1, len(result.memory) // 10)]
    for name, samples in zip(("server", "engine"), zip(*tenths, strict=True), strict=False):
        mebibytes = " ".join(f"{sample / 2**20:.0f}" for sample in samples)
        print(f"memory of the {name} in MiB, by tenths of the time: {mebibytes}")
    print("still held at the end: " + ", ".join(f"{name} {value:g}" for name, value in result.held.items()))
    bars = Bars()
    bars.add("minutes", options.minutes, ">=", MINUTES)
    bars.add("clients", options.clients, ">=", CLIENTS)
    bars.add("crashes", result.crash is not None, "==", 0)
    bars.add("errors_logged", len(result.logged_errors), "==", 0)
    bars.add("stuck", tally.unexpected(STUCK), "==", 0)
    bars.add("unexpected_statuses", tally.unexpected(), "==", 0)
    bars.add("wrong_answers", tally.unexpected(WRONG), "==", 0)
    bars.add("broken_connections", tally.unexpected(BROKEN), "==", 0)
    bars.add("memory_drift_share", abs(drift([sum(sample) for sample in result.memory])), "<=", DRIFT)
    bars.add("left_over", sum(result.held.values()) if result.held else -1, "==", 0)
    if result.fuzz_status is not None:
        bars.add("schemathesis_exit_status", result.fuzz_status, "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
