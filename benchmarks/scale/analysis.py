"""Time and memory of reading a run of a million requests, and its figures against those of the numbers themselves.

    python -m benchmarks.scale.analysis [--requests 1000000] [--trials 2]

Writes runs of synthetic requests with 20 chunks each, decoded as a trial stores them, of one engine under an open loop;
then times ``report``, ``compare`` of the run with itself, and ``export --as csv``, each in a fresh process, with the
largest resident size of that process. A tenth of the requests may take a tenth of the time and 5 s more. The figures
are computed once more from the arrays that the requests were made of.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bakeoff.results.log.run_log import RunEnded, RunStarted, TrialFinished
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import (
    Load,
    Outcome,
    Phase,
    RequestRecord,
    RunStatus,
    Slo,
    TokenSource,
    TrialPlan,
    TrialRecord,
    Verdict,
    Window,
)
from bakeoff.results.run.run import load
from bakeoff.results.schema import SCHEMA_VERSION
from benchmarks.bars import Bars

CHUNKS, RATE_PER_S, NS = 20, 500.0, 1_000_000_000
MAX_S, MAX_MB, MAX_CONSTANT_S = 600.0, 2048.0, 5.0
COMMANDS = {"report": ("report", "{run}"), "compare": ("compare", "{run}", "{run}"),
            "export": ("export", "{run}", "--as", "csv", "--out", "{out}")}  # fmt: skip
_SLICE = 50_000


class Truth:
    """Times of the requests of one trial, in nanoseconds.

    Args:
        count: of requests.
        seed: of the random numbers.
    """

    def __init__(self, count: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.planned = NS + np.cumsum(rng.exponential(NS / RATE_PER_S, count)).astype(np.int64)
        self.sent = self.planned + rng.integers(20_000, 90_000, count)
        gaps = rng.lognormal(np.log(8e6), 0.3, (count, CHUNKS)).astype(np.int64)
        gaps[:, 0] = rng.lognormal(np.log(60e6), 0.5, count).astype(np.int64)
        self.chunks = self.sent[:, None] + np.cumsum(gaps, axis=1)

    def records(self) -> Iterator[RequestRecord]:
        """The requests as a trial stores them."""
        for first in range(0, len(self.planned), _SLICE):
            last = first + _SLICE
            columns = (self.planned[first:last], self.sent[first:last], self.chunks[first:last])
            for number, (planned, sent, chunks) in enumerate(zip(*(c.tolist() for c in columns), strict=True), first):
                yield RequestRecord(
                    index=number, phase=Phase.MEASURED, session=f"s{number}", turn=0, planned_ns=planned,
                    ended_ns=chunks[-1] + 50_000, requested_input_tokens=100 + number % 900,
                    requested_output_tokens=CHUNKS, sent_ns=sent, sent_bytes=700, status=200, outcome=Outcome.OK,
                    first_byte_ns=chunks[0], chunk_ns=chunks, chunk_tokens=[1] * CHUNKS, usage_ns=chunks[-1],
                    last_event_ns=chunks[-1], token_source=TokenSource.CHUNKS, prompt_tokens=100 + number % 900,
                    output_tokens=CHUNKS, finish_reason="length", answer_id=f"cmpl-{number:032x}",
                    text="The ship sails at dawn, and the harbour sleeps until the bell is rung again.",
                )  # fmt: skip


def write_run(root: Path, requests: int, trials: int) -> tuple[Path, list[Truth]]:
    """A finished run; returns its folder and what it was made of."""
    level = Load(rate_per_s=RATE_PER_S, arrival="poisson")
    plans = [TrialPlan(f"r{repeat}-e-1", "e", "synthetic", level, repeat) for repeat in range(1, trials + 1)]
    started = RunStarted(
        schema_version=SCHEMA_VERSION, run_id=f"20261128-000000-scale-{requests}", name="scale", pid=os.getpid(),
        created_utc="2026-11-28T00:00:00+00:00", host="here", bakeoff_version="0", git_commit=None, experiment={},
        environment={}, plan=plans, slo=Slo(ttft_s=0.1, tpot_s=0.02), notes=[],
    )  # fmt: skip
    run, truths, finished = RunFolder.create(root, started), list[Truth](), list[TrialFinished]()
    for order, plan in enumerate(plans, 1):
        truth = Truth(requests // trials, order)
        folder = run.trial(plan.id)
        folder.create()
        folder.write_requests(truth.records())
        window = Window(int(truth.planned[0]), int(truth.planned[-1]) + 1)
        finished.append(TrialFinished(record=TrialRecord(
            id=plan.id, engine="e", workload="synthetic", load=level, repeat=plan.repeat, order=order, started_ns=0,
            ended_ns=int(truth.chunks.max()) + NS, issue_start_ns=NS, issue_end_ns=window.end_ns, window=window,
            planned_requests=len(truth.planned), workload_sha256="synthetic", verdict=Verdict.VALID,
            files=folder.stored_files(),
        )))  # fmt: skip
        truths.append(truth)
    run.write_log([started, *finished, RunEnded(status=RunStatus.COMPLETE, ended_utc="2026-11-28T01:00:00+00:00")])
    return run.path, truths


def timed(command: tuple[str, ...], **names: Any) -> tuple[float, float]:  # noqa: ANN401  (parts of paths)
    """Seconds and MiB of a command in a fresh process."""
    argv = [
        sys.executable,
        "-c",
        "from bakeoff.harness.entry import main; main()",
        *(p.format(**names) for p in command),
    ]
    began = time.perf_counter()
    with Path(names["out"], "printed.txt").open("wb") as printed:
        process = subprocess.Popen(argv, stdout=printed, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, Path(names["out"], "printed.txt").read_text(encoding="utf-8")[-2000:]
    return time.perf_counter() - began, used.ru_maxrss / 1024


def largest_deviation(run: Path, truths: list[Truth]) -> float:
    """Largest relative difference of a figure of the run from that of the arrays."""
    worst = 0.0
    for trial, truth in zip(load(run).finished, truths, strict=True):
        window = trial.window
        inside = (truth.chunks >= window.start_ns) & (truth.chunks < window.end_ns)
        ttft_s, e2e_s = ((truth.chunks[:, place] - truth.planned) / NS for place in (0, -1))
        gaps_s = np.diff(truth.chunks, axis=1)[inside[:, 1:]] / NS
        tpot_s = (truth.chunks[:, -1] - truth.chunks[:, 0]) / NS / (CHUNKS - 1)
        met = (ttft_s <= 0.1) & (tpot_s <= 0.02)
        expected = {
            "output_tokens_per_s": inside.sum() / window.length_s,
            "attainment": met.mean(),
            "goodput_per_s": met.sum() / window.length_s,
        }
        for name, values in {"ttft": ttft_s, "e2e": e2e_s, "itl": gaps_s, "chunk_gap": gaps_s, "tpot": tpot_s}.items():
            expected |= {f"{name}_p{q}_s": np.quantile(values, q / 100) for q in (50, 90, 95, 99)}
        for name, value in expected.items():
            found = trial.metrics[name].value
            assert found is not None, name
            worst = max(worst, abs(found / float(value) - 1))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--trials", type=int, default=2)
    options = parser.parse_args()
    bars, totals = Bars(), list[float]()
    for requests in (options.requests // 10, options.requests):
        with tempfile.TemporaryDirectory(prefix="bakeoff-scale-") as scratch:
            run, truths = write_run(Path(scratch), requests, options.trials)
            total_s = 0.0
            for name, command in COMMANDS.items():
                seconds, mebibytes = timed(command, run=run, out=scratch)
                total_s += seconds
                print(f"{requests:>10,} requests  {name:<8} {seconds:7.1f} s  {mebibytes:6.0f} MiB", flush=True)
                if requests == options.requests:
                    bars.add(f"{name}_mib", mebibytes, "<=", MAX_MB)
            totals.append(total_s)
            if requests < options.requests:  # in this process, whose memory is not limited
                bars.add("largest_deviation", largest_deviation(run, truths), "<=", 1e-9)
    tenth_s, whole_s = totals
    bars.add("seconds", whole_s, "<=", MAX_S)
    bars.add("seconds_of_a_tenth", tenth_s, "<=", whole_s / 10 + MAX_CONSTANT_S)
    print(f"this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    bars.finish()


if __name__ == "__main__":
    main()
