"""A worker or a sampler that is stopped or killed costs its trial, not the run, and never hangs it.

``bakeoff bench`` measures two levels of 5 s on a truth server; one child is stopped or killed after the first
requests. The run must end at most 15 s later than an undisturbed one, with exit code 3, one
INVALID trial, no traceback and no process left behind.
"""

import asyncio
import json
import signal

import psutil

from bakeoff.harness.truth import Schedule, truth_process
from bakeoff.results.records import Verdict
from benchmarks.bars import Bars
from tests.acceptance.disturbed import DisturbedRun

MAX_EXCESS_S = 15.0
CHILDREN = {"worker": "bakeoff.harness.client.worker", "sampler": "bakeoff.harness.telemetry"}


def bench(url: str) -> list[str]:
    return [
        "bench", "--url", url, "--engine", "openai", "--model", "m", "--tokenizer", "approximate", "--no-calibrate",
        "--max-foreign-share", "1", "--concurrency", "1", "--concurrency", "2", "--duration", "5", "--ramp", "1",
    ]  # fmt: skip


def measure(url: str) -> None:
    """Disturb each child in both ways, then print the bars."""
    bars = Bars()
    undisturbed = DisturbedRun(bench(url), lambda _: None)
    print(f"undisturbed: exit {undisturbed.code} after {undisturbed.seconds:.1f} s", flush=True)
    bars.add("undisturbed exit code", undisturbed.code, "==", 0)
    for child, module in CHILDREN.items():
        for sent in (signal.SIGSTOP, signal.SIGKILL):

            def disturb(harness: psutil.Process, module: str = module, sent: signal.Signals = sent) -> None:
                next(p for p in harness.children(recursive=True) if module in p.cmdline()).send_signal(sent)

            run, name = DisturbedRun(bench(url), disturb), f"{child} {sent.name}"
            excess_s = run.seconds - undisturbed.seconds
            codes = [finding.code for trial in run.finished for finding in trial.record.invalidating]
            verdicts = [trial.record.verdict for trial in run.finished]
            print(f"{name}: exit {run.code}, {excess_s:+.1f} s, {json.dumps(codes)}\n{run.stderr}", flush=True)
            bars.add(f"{name}: seconds longer", excess_s, "<=", MAX_EXCESS_S)
            bars.add(f"{name}: exit code", run.code, "==", 3)
            bars.add(f"{name}: INVALID trials", verdicts.count(Verdict.INVALID), "==", 1)
            bars.add(f"{name}: finished trials", len(verdicts), "==", 2)
            bars.add(f"{name}: tracebacks", run.stderr.count("Traceback"), "==", 0)
            bars.add(f"{name}: processes left", run.orphans, "==", 0)
    bars.finish()


async def main() -> None:
    async with truth_process(Schedule()) as truth:
        await asyncio.to_thread(measure, truth.url)


if __name__ == "__main__":
    asyncio.run(main())
