"""Bar 5: half an hour of users who behave and users who do not, and a server that must not mind.

64 clients ask for whole answers and streams, for several answers, for guided ones; leave in the middle; read and send
slowly; break off; send what is malformed, too long, too big or no HTTP at all; scrape metrics; empty the prefix cache.
Beside them Schemathesis makes requests out of the server's own OpenAPI document. The pool of KV blocks is small, so
that requests push each other out. At the end nothing may have crashed, nobody be stuck, every status be the expected
one, memory be as it was (the median of the last fifth of the time against that of the second fifth), and the server
hold no request and no block.
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

from benchmarks.bars import Bars, model_argument
from benchmarks.engine.soaking.client import Client
from benchmarks.engine.soaking.crowd import BROKEN, STUCK, WRONG, Tally, user
from benchmarks.engine.soaking.fuzz import fuzz
from benchmarks.engine.soaking.watch import drift, left_over, memory_bytes
from benchmarks.serving import reference_server
from engines import EngineSpec, Server
from engines.adapters.reference import ReferenceOptions

MINUTES, CLIENTS, DRIFT = 30.0, 64, 0.03
SPEC = EngineSpec(max_model_len=512, max_num_seqs=32, max_num_batched_tokens=256)
NUM_BLOCKS = 320  # of 16 tokens: ten of the longest sequences
DRAIN_S = 30.0
FUZZED = 0.9  # of the time; then the users are alone


@dataclasses.dataclass
class Found:
    """What a soak found.

    Attributes:
        tally: of everything the users did.
        memory: resident bytes of the server, and of its engine's process, each second.
        left: what the server still held at the end.
        died: why it is not there any more, else None.
        logged: lines in which it complains of itself.
        fuzz_status: Schemathesis' exit status; None where it was not run.
        fuzz_text: what it said.
    """

    tally: Tally = dataclasses.field(default_factory=Tally)
    memory: list[tuple[int, int]] = dataclasses.field(default_factory=list[tuple[int, int]])
    left: dict[str, float] = dataclasses.field(default_factory=dict[str, float])
    died: str | None = None
    logged: list[str] = dataclasses.field(default_factory=list[str])
    fuzz_status: int | None = None
    fuzz_text: str = ""


async def soak(server: Server, options: argparse.Namespace, folder: Path) -> Found:
    """Let the users loose on a server; returns when the last one is through."""
    address, found = urllib.parse.urlsplit(server.base_url), Found()
    assert address.hostname
    assert address.port
    assert server.pid
    connector, patience = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)  # `act` has the patience
    async with aiohttp.ClientSession(connector=connector, timeout=patience) as session:
        client = Client(session, address.hostname, address.port)
        watching = asyncio.create_task(memory_bytes(server.pid))
        seconds = 60 * options.minutes
        fuzzing = asyncio.create_task(
            fuzz(client.url, FUZZED * seconds, options.seed, options.patience, folder)
        ) if options.schemathesis else None  # fmt: skip
        until = time.monotonic() + seconds
        everyone = [
            user(client, f"{options.seed} {number}", until, options.patience, found.tally)
            for number in range(options.clients)
        ]
        await asyncio.gather(*everyone)
        if fuzzing:
            found.fuzz_status, found.fuzz_text = await fuzzing
        with contextlib.suppress(aiohttp.ClientError, OSError):
            found.left = await left_over(client, DRAIN_S)
        watching.cancel()
        found.memory = await watching
    if died := server.died():
        found.died = str(died)
    if server.log:
        lines = server.log.read_text(encoding="utf-8", errors="replace").splitlines()
        found.logged = [line for line in lines if " ERROR reference_engine" in line]
    return found


async def served(options: argparse.Namespace) -> Found:
    """Start the server, and soak it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "server.log")
        own = ReferenceOptions(num_blocks=NUM_BLOCKS, preemption=options.preemption)
        async with reference_server(options.model, log, SPEC, own) as server:
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
    found = asyncio.run(served(options))
    tally = found.tally
    print(tally.table())
    for line in (*tally.complaints, *found.logged[:20], *filter(None, (found.died, found.fuzz_text))):
        print(line)
    tenths = found.memory[:: max(1, len(found.memory) // 10)]
    for name, samples in zip(("server", "engine"), zip(*tenths, strict=True), strict=False):
        told = " ".join(f"{sample / 2**20:.0f}" for sample in samples)
        print(f"memory of the {name} in MiB, by tenths of the time: {told}")
    print("left over: " + ", ".join(f"{name} {value:g}" for name, value in found.left.items()))
    bars = Bars()
    bars.add("minutes", options.minutes, ">=", MINUTES)
    bars.add("clients", options.clients, ">=", CLIENTS)
    bars.add("crashes", found.died is not None, "==", 0)
    bars.add("errors_logged", len(found.logged), "==", 0)
    bars.add("stuck", tally.unexpected(STUCK), "==", 0)
    bars.add("unexpected_statuses", tally.unexpected(), "==", 0)
    bars.add("wrong_answers", tally.unexpected(WRONG), "==", 0)
    bars.add("broken_connections", tally.unexpected(BROKEN), "==", 0)
    bars.add("memory_drift_share", abs(drift([sum(sample) for sample in found.memory])), "<=", DRIFT)
    bars.add("left_over", sum(found.left.values()) if found.left else -1, "==", 0)
    if found.fuzz_status is not None:
        bars.add("schemathesis_exit_status", found.fuzz_status, "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
