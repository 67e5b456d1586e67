"""A run of 600 s and 100,000 requests on a virtual clock.

The run includes everything but the network and the engine: requests are planned, fingerprinted, encoded in a dialect,
sent by the driver at their deadlines, answered by a script, recorded on disk, decoded and stored. Each round is a
process of its own; its whole run time and peak memory count.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.harness.client import Driver, Issue, decode_stream
from bakeoff.harness.client.wire.fake import ScriptedTransport
from bakeoff.harness.client.wire.orders import Pool
from bakeoff.harness.client.wire.plan import read_wire, wire_sessions, write_wire
from bakeoff.harness.host.clock import LoopClock, run_virtual
from bakeoff.results.files.frames import FrameAppender
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import Outcome
from bakeoff.system import peak_rss_bytes
from bakeoff.workloads import PlanHash, PlannedSession, Poisson, Seed, Session, Turn, plan_open
from benchmarks.bars import Bars

DURATION_S, REQUESTS, ROUNDS = 600.0, 100_000, 3
TOKEN = b'data: {"choices":[{"index":0,"text":" a","token_ids":[7]}]}\n\n'
END = (
    b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}],'
    b'"usage":{"prompt_tokens":64,"completion_tokens":4}}\n\ndata: [DONE]\n\n'
)
ANSWER = [(0.2, TOKEN), (0.02, TOKEN), (0.02, TOKEN), (0.02, TOKEN + END)]


class Constant:
    """Sessions of one turn and one length, so that the benchmark measures the run and not text generation."""

    def sessions(self, tokenizer: object, seed: Seed) -> Iterator[Session]:
        """See :class:`bakeoff.workloads.Workload`."""
        del tokenizer, seed
        return (Session(f"s{i}", (Turn(64, 4, prompt=f"{i} {'word ' * 64}"),)) for i in itertools.count())

    def notes(self) -> list[str]:
        """No notes."""
        return []


def one_run(folder: TrialFolder) -> int:
    """Run once; returns the number of correctly stored requests."""
    arrivals = Poisson(REQUESTS / DURATION_S)
    plan = plan_open(Constant(), arrivals, None, Seed.of("6"), duration_s=DURATION_S, count=2 * REQUESTS)
    wire, plan_hash, sessions = folder.path / "wire", PlanHash(), 0

    def fingerprinted() -> Iterator[PlannedSession]:
        nonlocal sessions
        for planned in plan:
            plan_hash.add(planned)
            sessions += 1
            yield planned

    write_wire([wire], wire_sessions(fingerprinted(), ReferenceDialect(), "m"))

    async def drive() -> Issue:
        transport = ScriptedTransport(ANSWER)
        transport.keep_sent = False
        with FrameAppender(folder.stream_log(0)) as log:
            driver = Driver(transport, clock=LoopClock(), recorder=log, timeout_s=60)
            return await driver.open_loop(read_wire(Pool(str(wire))), duration_s=DURATION_S)

    issue = run_virtual(drive())
    assert issue.end_ns == DURATION_S * 1e9
    dialect = ReferenceDialect()
    correct = 0

    def decoded() -> Iterator[object]:
        nonlocal correct
        for stream in folder.read_streams():
            request = decode_stream(stream, dialect, None)
            correct += request.outcome is Outcome.OK and request.chunk_tokens == [1] * 4
            yield request

    folder.write_requests(decoded())
    return correct - abs(sessions - correct)


def child() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps({"requests": one_run(TrialFolder(Path(scratch))), "rss_bytes": peak_rss_bytes()}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", action="store_true")
    if parser.parse_args().child:
        child()
        return
    walls_s, peaks_mb, requests = [], [], 0
    for number in range(ROUNDS):
        started = time.monotonic()
        out = subprocess.run(
            [sys.executable, "-m", "tests.acceptance.client.virtual", "--child"], check=True, stdout=-1
        )
        walls_s.append(time.monotonic() - started)
        result = json.loads(out.stdout)
        peaks_mb.append(result["rss_bytes"] / 1e6)
        requests = result["requests"]
        print(f"round {number + 1}: {requests} requests in {walls_s[-1]:.1f} s, peak {peaks_mb[-1]:.0f} MB")
    bars = Bars()
    bars.add("virtual_run_wall_s", statistics.median(walls_s), "<=", 10)
    bars.add("virtual_run_peak_mb", statistics.median(peaks_mb), "<=", 200)
    bars.add("virtual_run_requests", requests, ">=", 0.99 * REQUESTS)
    bars.finish()


if __name__ == "__main__":
    main()
