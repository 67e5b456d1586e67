"""A trace of ten million rows is read as a stream. Run by ``make bench-workloads``.

The rows have the format of the Azure trace of 2024, at its 28 requests per second. Each pass is a new process, which
reads them through :func:`bakeoff.workloads.traces.formats.trace_format` and adds up their tokens. Another new process
makes the first request, with a prompt of exact length for the model; its time includes the start of that process. The
same file in gzip is measured too, without a bar.
"""

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.bars import Bars, model_argument

ROWS, RATE_PER_S, CHUNK = 10_000_000, 28.0, 1_000_000
READ = """
import json, sys, time
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.formats import trace_format

rows = trace_format("azure", {"path": sys.argv[1]}).rows(Seed.of("1"))
first = next(rows)
first_s = time.monotonic() - float(sys.argv[2])
count, tokens = 1, first.input_tokens + first.output_tokens
for row in rows:
    count += 1
    tokens += row.input_tokens + row.output_tokens
status = open("/proc/self/status").read()
peak_kb = int(status.partition("VmHWM:")[2].split()[0])
print(json.dumps({"first_s": first_s, "rows": count, "tokens": tokens, "peak_mb": peak_kb * 1024 / 1e6}))
"""
FIRST_REQUEST = """
import sys, time
from pathlib import Path
from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.workloads import Seed, Tokenizer, workload

replay = workload("trace", {"path": sys.argv[1], "format": "azure"})
session = next(iter(replay.sessions(Tokenizer(Path(sys.argv[2])), Seed.of("1"))))
request = ReferenceDialect().request(session.turns[0], "model")
print(time.monotonic() - float(sys.argv[3]), session.turns[0].input_tokens, len(request.body))
"""


def digits(values: np.ndarray, width: int) -> np.ndarray:
    """Decimal digits as ASCII, one row of ``width`` bytes a value."""
    return (values[:, None] // 10 ** np.arange(width - 1, -1, -1) % 10 + ord("0")).astype(np.uint8)


def fixed(text: str, count: int) -> np.ndarray:
    return np.tile(np.frombuffer(text.encode(), np.uint8), (count, 1))


def make(path: Path) -> int:
    """Write the trace; returns the sum of its tokens."""
    rng, now_us, tokens = np.random.default_rng(0), 0, 0
    with path.open("wb") as file:
        file.write(b"TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for _ in range(ROWS // CHUNK):
            at_us = now_us + np.cumsum(rng.exponential(1e6 / RATE_PER_S, CHUNK).astype(np.int64))
            now_us = int(at_us[-1])
            day, second, micros = at_us // 86_400_000_000, at_us // 1_000_000 % 86_400, at_us % 1_000_000
            context, generated = rng.integers(1000, 8000, CHUNK), rng.integers(100, 1000, CHUNK)
            tokens += int(context.sum() + generated.sum())
            fields = [fixed("2024-05-", CHUNK), digits(10 + day, 2), fixed(" ", CHUNK), digits(second // 3600, 2)]
            fields += [fixed(":", CHUNK), digits(second // 60 % 60, 2), fixed(":", CHUNK), digits(second % 60, 2)]
            fields += [fixed(".", CHUNK), digits(micros, 6), fixed("+00:00,", CHUNK), digits(context, 4)]
            fields += [fixed(",", CHUNK), digits(generated, 3), fixed("\n", CHUNK)]
            file.write(np.hstack(fields).tobytes())
    return tokens


def read(path: Path, tokens: int) -> dict[str, float]:
    """Read the trace once in a process of its own, and check the sum of tokens."""
    started = time.monotonic()
    out = subprocess.run([sys.executable, "-c", READ, str(path), str(started)], check=True, stdout=-1)
    counts = json.loads(out.stdout)
    wall_s = time.monotonic() - started
    assert counts["tokens"] == tokens, f"{path.name}: tokens add up to {counts['tokens']}, not {tokens}"
    size_mb = path.stat().st_size / 1e6
    speed = f"{wall_s / counts['rows'] * 1e6:.2f} µs a row, {size_mb / wall_s:.0f} MB/s of the file"
    print(f"{path.name}: {counts['rows']} rows in {wall_s:.1f} s ({speed}), peak {counts['peak_mb']:.0f} MB")
    return {**counts, "wall_s": wall_s}


def first_request(path: Path, model: str) -> float:
    """Seconds until the bytes of the first request are ready."""
    started = time.monotonic()
    argv = [sys.executable, "-c", FIRST_REQUEST, str(path), model, str(started)]
    seconds, tokens, size = subprocess.run(argv, check=True, stdout=-1, text=True).stdout.split()
    print(f"first request: {tokens} tokens, {size} bytes, ready after {float(seconds):.2f} s")
    return float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    model = parser.parse_args().model
    with tempfile.TemporaryDirectory() as scratch:
        plain, packed = Path(scratch, "trace.csv"), Path(scratch, "trace.csv.gz")
        tokens = make(plain)
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as target:
            shutil.copyfileobj(source, target, 2**20)
        ready_s = first_request(plain, model)
        counts = read(plain, tokens)
        read(packed, tokens)
    bars = Bars()
    bars.add("big_trace_rows", counts["rows"], "==", ROWS)
    bars.add("big_trace_first_request_s", ready_s, "<=", 2)
    bars.add("big_trace_wall_s", counts["wall_s"], "<=", 60)
    bars.add("big_trace_peak_mb", counts["peak_mb"], "<=", 300)
    bars.finish()


if __name__ == "__main__":
    main()
