"""Errors and CPU time of ``bakeoff run`` with all its processes on one core. Run by ``make bench-client``.

A whole run with the default configuration and a bare asyncio client (:mod:`benchmarks.peers.drivers.bare`) take turns,
each with all its processes on one core, against a truth server on another. As root the bare client gets real-time
priority, like our worker: a client that waits for its core reads several chunks at once, which takes less CPU time.
Errors are the client's records minus the truth server's for the same requests. CPU time is that of all processes of the
client from the first request of the load to the last token. Of a trial that was spoilt and repeated, the last attempt
counts. ``--rounds`` and ``--streams`` shorten the benchmark; ``--before CHECKOUT`` lets another commit take turns, too.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from bakeoff import results
from bakeoff.harness.cli.exits import EXIT_INVALID, EXIT_OK
from bakeoff.harness.truth import Answered, Ending, Schedule, truth_process
from bakeoff.harness.truth.record import gaps_s, ttft_s
from bakeoff.results.metrics import latency
from benchmarks.bars import Bars, model_argument
from benchmarks.peers.watch import Footprint, Watch

LEVELS = (64, 256, 512, 5_000)
SERVER_CORE, CLIENT_CORE = 0, 1
TTFT_S, ITL_S = 0.05, 0.02
MAX_CHUNKS_PER_S = 25_600
"""What a server on one core sends on time: with more streams, gaps are longer and answers shorter."""
DURATION_S = 8.0
_REPOSITORY = Path(__file__).resolve().parents[2]
_LIMIT_S = 600.0
_BAKEOFF = "from bakeoff.harness.entry import main; main()"
_FLOOR_MS = 0.1
"""Lower limit on the bare client's error in ratios: smaller errors are one or two wake-ups."""


def itl_s(streams: int) -> float:
    """Gap between the tokens of an answer."""
    return max(ITL_S, streams / MAX_CHUNKS_PER_S)


def tokens(streams: int) -> int:
    """Tokens of an answer."""
    return 64 if itl_s(streams) == ITL_S else 24


def turns(streams: int) -> int:
    """Answers of a stream in the time of a run."""
    return round(DURATION_S / (TTFT_S + itl_s(streams) * (tokens(streams) - 1)))


class Reading(msgspec.Struct, frozen=True):
    """One measurement of one client under one load."""

    itl_p99_error_ms: float
    ttft_p99_error_ms: float
    cpu_s_per_1m_chunks: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="+", default=list(LEVELS))
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="a checkout of the commit to compare with")
    options = parser.parse_args()
    model = Path(options.model)
    clients = {"bakeoff": partial(through_bakeoff, model, _REPOSITORY), "bare": through_bare}
    if options.before:
        clients["before"] = partial(through_bakeoff, model, options.before.resolve())
    readings: dict[tuple[int, str], list[Reading]] = {}
    for _ in range(options.rounds):
        for streams in options.streams:
            for name, measure in clients.items():
                reading = asyncio.run(measure(streams))
                readings.setdefault((streams, name), []).append(reading)
                print(f"{streams:5,} streams {name:8} {_line(reading)}", flush=True)
    medians = {key: _median(group) for key, group in readings.items()}
    print("\nmedians")
    for (streams, name), reading in medians.items():
        print(f"{streams:5,} streams {name:8} {_line(reading)}")
    bars = Bars()
    for streams in options.streams:
        bakeoff, bare = medians[streams, "bakeoff"], medians[streams, "bare"]
        if streams > LEVELS[0]:
            bars.add(f"itl_p99_error_ms_{streams}", bakeoff.itl_p99_error_ms, "<=", 0.5)
        ttft_ratio = bakeoff.ttft_p99_error_ms / max(_FLOOR_MS, bare.ttft_p99_error_ms)
        bars.add(f"ttft_from_send_p99_error_over_bare_{streams}", ttft_ratio, "<=", 2)
        bars.add(f"cpu_over_bare_{streams}", bakeoff.cpu_s_per_1m_chunks / bare.cpu_s_per_1m_chunks, "<=", 2)
        if before := medians.get((streams, "before")):
            for figure in Reading.__struct_fields__:
                ratio = getattr(bakeoff, figure) / max(_FLOOR_MS, getattr(before, figure))
                bars.add(f"{figure}_over_before_{streams}", ratio, "<=", 1.1)
    bars.finish()


async def through_bakeoff(model: Path, checkout: Path, streams: int) -> Reading:
    """One trial through the command line of ``checkout``."""
    with tempfile.TemporaryDirectory(prefix="bakeoff-") as scratch:
        async with truth_process(Schedule(TTFT_S, itl_s(streams), finish_chunk=False), core=SERVER_CORE) as truth:
            experiment = Path(scratch) / "cpu.toml"
            experiment.write_text(_experiment(truth.url, streams, model), encoding="utf-8")
            arguments = ["-c", _BAKEOFF, "run", str(experiment), "--out", str(Path(scratch) / "runs")]
            footprint = await asyncio.to_thread(_run_watched, arguments, checkout)
            answers = [answer for answer in await truth.answered() if answer.ending is Ending.COMPLETE]
        *_, trial = results.load(next((Path(scratch) / "runs").iterdir())).finished
        requests = trial.requests.ok
        record = trial.record
    answers = [answer for answer in answers if answer.start_ns >= record.issue_start_ns]
    # Ramp and tail are compared, too; the server may have written what the client gives up at the end.
    assert 0 <= len(answers) - len(requests) <= streams, f"{len(requests)} requests, {len(answers)} answers"
    ttfts_s = np.nan_to_num(latency.ttft_from_send_s(requests)).tolist()
    return _reading(ttfts_s, latency.chunk_gaps_s(requests)[0].tolist(), answers, footprint, record.issue_start_ns)


async def through_bare(streams: int) -> Reading:
    """The same number of requests through the bare client."""
    with tempfile.TemporaryDirectory(prefix="bakeoff-") as scratch:
        file = Path(scratch) / "bare.json"
        async with truth_process(Schedule(TTFT_S, itl_s(streams), finish_chunk=False), core=SERVER_CORE) as truth:
            port = truth.url.rpartition(":")[2]
            numbers = [port, str(streams), str(turns(streams) * streams), str(tokens(streams))]
            pinned = ["-m", "benchmarks.peers.pinned", str(CLIENT_CORE), "alone", sys.executable]
            arguments = [*pinned, "-m", "benchmarks.peers.drivers.bare", *numbers, str(file)]
            footprint = await asyncio.to_thread(_run_watched, arguments, _REPOSITORY)
            answers = await truth.answered()
        timings = msgspec.json.decode(file.read_bytes(), type=list[tuple[int, list[int]]])
    assert len(timings) == len(answers)
    ttfts_s = [(chunk_ns[0] - sent_ns) / 1e9 for sent_ns, chunk_ns in timings]
    gaps = [gap_ns / 1e9 for _, chunk_ns in timings for gap_ns in np.diff(chunk_ns)]
    return _reading(ttfts_s, gaps, answers, footprint, min(answer.start_ns for answer in answers))


def _experiment(url: str, streams: int, model: Path) -> str:
    return f"""
name = "cpu"
repeats = 1
model = {{ name = "truth", tokenizer = "{model}" }}
workload = {{ name = "random", options = {{ input_tokens = 64, output_tokens = {tokens(streams)} }} }}
loads = [{{ concurrency = {streams} }}]
trial = {{ duration_s = {DURATION_S}, max_requests = {20 * streams} }}
client = {{ calibrate = false }}
quality = {{ samples = 0 }}
[[engines]]
adapter = "openai"
url = "{url}"
"""


def _reading(
    ttfts_s: Sequence[float],
    client_gaps_s: Sequence[float],
    answers: Sequence[Answered],
    footprint: Footprint,
    start_ns: int,
) -> Reading:
    chunks = sum(t_ns >= start_ns for answer in answers for t_ns in answer.written_ns)
    cpu_s = footprint.cpu_between_s(start_ns, max(answer.written_ns[-1] for answer in answers))
    return Reading(
        itl_p99_error_ms=_p99_error_ms(client_gaps_s, gaps_s(answers)),
        ttft_p99_error_ms=_p99_error_ms(ttfts_s, ttft_s(answers)),
        cpu_s_per_1m_chunks=cpu_s / chunks * 1e6,
    )


def _p99_error_ms(seen_s: Sequence[float], true_s: Sequence[float]) -> float:
    return abs(float(np.quantile(seen_s, 0.99) - np.quantile(true_s, 0.99))) * 1e3


def _run_watched(arguments: Sequence[str], checkout: Path) -> Footprint:
    """Run Python with ``arguments`` on the client's core, and measure the cost of all its processes."""
    environment = {**os.environ, "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{checkout}"}
    allowed_cores = os.sched_getaffinity(0)
    with tempfile.TemporaryFile() as log:
        os.sched_setaffinity(0, {CLIENT_CORE})  # of this thread alone; the process inherits it
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        os.sched_setaffinity(0, allowed_cores)
        watch = Watch(process.pid, SERVER_CORE)
        watch.start()
        status = process.wait(_LIMIT_S)
        footprint = watch.finish(time.monotonic_ns(), 0.0)
        log.seek(0)
        # An event loop that was late makes the trial INVALID; its error is a measurement all the same.
        assert status in (EXIT_OK, EXIT_INVALID), log.read().decode()
    return footprint


def _median(readings: Sequence[Reading]) -> Reading:
    names = Reading.__struct_fields__
    return Reading(*(statistics.median(getattr(reading, name) for reading in readings) for name in names))


def _line(reading: Reading) -> str:
    return (
        f"ITL p99 error {reading.itl_p99_error_ms:6.3f} ms, TTFT from send p99 error "
        f"{reading.ttft_p99_error_ms:6.3f} ms, {reading.cpu_s_per_1m_chunks:5.1f} CPU s per million chunks"
    )


if __name__ == "__main__":
    main()
