"""Time and memory of decoding the raw log of a trial of a million streams, beside one process that keeps its records.

    python -m benchmarks.scale.decoding [--requests 200000]

Writes the frames of streams as vLLM sends chats, 20 chunks each, into one worker's log; then decodes them in a fresh
process as a trial does, and in another as one list of records, with the largest resident size of each. Both must give
the same bytes. The figures for a million requests are those of ``--requests``, scaled.
"""

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bakeoff import engines
from bakeoff.harness.client.decode.exchange import decode_stream
from bakeoff.harness.client.decode.log import decode_log
from bakeoff.harness.client.wire.orders import Format
from bakeoff.harness.host.threads import in_thread
from bakeoff.results.files.frames import FrameAppender
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import Phase, StreamEnd, StreamRecord
from benchmarks.bars import Bars

CHUNKS, NS, MILLION = 20, 1_000_000_000, 1_000_000
MAX_HEAD_MB = 2048.0
_FLUSHED = 5000
_CHUNK = (
    'data: {"id":"chatcmpl-%032x","object":"chat.completion.chunk","created":1766500000,"model":"m","choices":[{"index"'
    ':0,"delta":{"content":" word"},"logprobs":null,"finish_reason":%s,"token_ids":null}],"prompt_token_ids":null}\n\n'
)
_USAGE = (
    'data: {"id":"chatcmpl-%032x","object":"chat.completion.chunk","created":1766500000,"model":"m","choices":[],'
    '"usage":{"prompt_tokens":300,"total_tokens":320,"completion_tokens":20}}\n\ndata: [DONE]\n\n'
)
SIDES = ("parts", "list")


def streams(count: int) -> Iterator[StreamRecord]:
    """Streams of one token per chunk, a millisecond after each other."""
    for number in range(count):
        planned_ns = NS + number * 1_000_000
        reads = [_CHUNK % (number, '"length"' if k == CHUNKS - 1 else "null") for k in range(CHUNKS)]
        times_ns = [planned_ns + (k + 5) * 8_000_000 for k in range(CHUNKS)]
        yield StreamRecord(
            index=number, phase=Phase.MEASURED, session=f"s{number}", turn=0, planned_ns=planned_ns,
            sent_ns=planned_ns + 50_000, ended_ns=times_ns[-1] + 10_000, status=200, end=StreamEnd.COMPLETE,
            requested_input_tokens=300, requested_output_tokens=CHUNKS, sent_bytes=1800,
            read_ns=[*times_ns, times_ns[-1] + 5_000], reads=[*(r.encode() for r in reads), (_USAGE % number).encode()],
        )  # fmt: skip


def decode(side: str, folder: TrialFolder) -> None:
    """Decode a trial and print seconds and MiB."""
    dialect = engines.dialect("vllm", {}, engines.Deployment())
    began = time.perf_counter()
    if side == "parts":
        asyncio.run(
            decode_log(
                folder, dialect, None, Format("vllm", {}), in_thread=in_thread, cores=len(os.sched_getaffinity(0))
            )
        )
        requests = folder.read_decoded()
    else:
        requests = [decode_stream(stream, dialect, None) for stream in folder.read_streams()]
        folder.write_requests(requests)
    took_s, peak_mb = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(len(requests), took_s, peak_mb)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        decode(options.side, TrialFolder(options.folder))
        return
    bars = Bars()
    with tempfile.TemporaryDirectory() as place:
        folder = TrialFolder(Path(place))
        with FrameAppender(folder.stream_log(0)) as log:
            for number, stream in enumerate(streams(options.requests)):
                log.append(stream)
                if number % _FLUSHED == 0:
                    log.flush()
        figures: dict[str, tuple[float, float, bytes]] = {}
        for side in SIDES:
            command = [sys.executable, "-m", __spec__.name, "--side", side, "--folder", place]
            count, took_s, peak_mb = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            assert int(count) == options.requests
            (stored,) = Path(place).glob("requests.jsonl")
            figures[side] = float(took_s), float(peak_mb), stored.read_bytes()
            print(f"{side:<6} {float(took_s):7.1f} s {float(peak_mb):7.0f} MiB", flush=True)
    (parts_s, parts_mb, parts), (list_s, _, as_list) = figures["parts"], figures["list"]
    scale = MILLION / options.requests
    for side, (took_s, peak_mb, _) in figures.items():
        print(f"a million, {side}: {took_s * scale:.0f} s and {peak_mb * scale:,.0f} MiB")
    bars.add("same_bytes", float(parts == as_list), "==", 1.0)
    bars.add("head_mb_of_a_million", parts_mb * scale, "<=", MAX_HEAD_MB)
    bars.add("time_over_one_process", parts_s / list_s, "<=", 1.0)
    bars.finish()


if __name__ == "__main__":
    main()
