"""Planted bottlenecks are named, and their delay is recovered. Run by ``make bench-profile``, twelve minutes.

Each case profiles the real reference engine with a bottleneck in it, around it or before it, ``--rounds`` times.

- At least 19 of 20 planted bottlenecks are named; runs without a planted bottleneck name only decoding.
- Where the delay is known, the time of its part is right to 10 %. Where the bottleneck can be removed, *what if*
  predicts the E2E of runs without it to 10 %.
- At most 2 % of E2E are unattributed in 99 % of requests; no time stamps contradict each other by more than 50 µs.
- Where decode or prefill should reach a limit of the machine, that limit is named, and no phase exceeds a limit by
  more than the error of its measurement.

The cost of recording is printed without a bar: one trial on a shared machine cannot resolve so small a difference.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bakeoff import results
from bakeoff.engines import Deployment, EngineSpec, Model, Setup, launched, pick_port
from bakeoff.engines.adapters.reference import ReferenceEngine, ReferenceOptions
from bakeoff.harness.host.ceilings import measure
from bakeoff.harness.host.environment import environment
from bakeoff.results.attribution import Attribution, Latency, Part
from bakeoff.results.attribution.bottleneck import bottleneck, phase_limit, what_if
from bakeoff.results.attribution.roofline import Bound
from bakeoff.results.machine.ceilings import Ceilings, store_ceilings
from bakeoff.results.text.attribution import bottleneck_sentence, overhead_line
from benchmarks.bars import Bars, model_argument

NETWORK_S, DETOKENISE_S, GAP_S = 0.4, 0.04, 0.06
THREADS = 1  # two would wait for a busy core
MAX_SHARE = 1.05
NAMED, ERROR, ATTRIBUTED, RESIDUAL_US = 0.95, 0.1, 0.99, 50
SLOW = {
    "detokenise": f"""
import time
from bakeoff.reference_engine.engine import text_writer
push = text_writer.TextWriter.push
def slow(self, token_id, finish_reason):
    time.sleep({DETOKENISE_S})
    return push(self, token_id, finish_reason)
text_writer.TextWriter.push = slow
""",
    "step loop": f"""
import time
from bakeoff.reference_engine.serving.core import channel
receive = channel.Channel.receive
def slow(self, *, wait):
    if not wait:
        time.sleep({GAP_S})
    return receive(self, wait=wait)
channel.Channel.receive = slow
""",
}
"""``sitecustomize`` of the engine's processes."""
Expected = Callable[[Attribution], dict[Part, float]]


@dataclass(frozen=True)
class Case:
    """One planted bottleneck.

    Attributes:
        part: to be named.
        expected: seconds of the parts that carry a known delay.
        is_clean: nothing is planted.
        is_removable: without the bottleneck, the case is exactly `ALONE`.
    """

    part: Part
    load: str = "concurrency = 1"
    input_tokens: int = 32
    output_tokens: int = 24
    spec: EngineSpec = field(default_factory=EngineSpec)
    slow: str | None = None
    network_s: float = 0.0
    bound: Bound | None = None
    expected: Expected = lambda _: {}
    is_clean: bool = False
    is_removable: bool = False


def mean(attribution: Attribution, part: Part) -> float:
    return attribution.means[Latency.E2E][part]


def network(_: Attribution) -> dict[Part, float]:
    return dict.fromkeys((Part.NETWORK_IN, Part.NETWORK_OUT), NETWORK_S)


def gaps(_: Attribution) -> dict[Part, float]:
    """One gap between two steps of a request: one prefill step, and one step for each later token."""
    return {Part.BUBBLES: GAP_S * (CASES["slow step loop"].output_tokens - 1)}


def backlog(attribution: Attribution) -> dict[Part, float]:
    """Tokens queue for detokenisation, while the engine computes the next ones."""
    computing = mean(attribution, Part.DECODE) + mean(attribution, Part.BUBBLES)
    return {Part.DETOKENISE: DETOKENISE_S * CASES["slow detokeniser"].output_tokens - computing}


ALONE = "nothing, one user"
CASES = {
    ALONE: Case(Part.DECODE, is_clean=True),
    "nothing": Case(Part.DECODE, "concurrency = 2", is_clean=True),
    "slow client": Case(Part.CLIENT, 'arrival = "constant"\nrate_per_s = 12\nmax_in_flight = 1'),
    "slow network": Case(Part.NETWORK_IN, network_s=NETWORK_S, expected=network, is_removable=True),
    "queue by slots": Case(Part.QUEUE, "concurrency = 6", spec=EngineSpec(max_num_seqs=1)),
    "prefill interference": Case(Part.INTERFERENCE, "concurrency = 6", input_tokens=384, output_tokens=32),
    "slow detokeniser": Case(Part.DETOKENISE, slow="detokenise", expected=backlog, is_removable=True),
    "slow step loop": Case(Part.BUBBLES, slow="step loop", expected=gaps, is_removable=True),
    "memory-bound decode": Case(Part.DECODE, output_tokens=64, bound=Bound.MEMORY),
    "compute-bound prefill": Case(Part.PREFILL, input_tokens=512, output_tokens=4, bound=Bound.COMPUTE),
}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--duration", type=float, default=3.0, help="seconds of each window (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of all cases (default: %(default)s)")
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    options = parser.parse_args()
    measured: dict[str, list[Attribution]] = {name: [] for name in options.case or CASES}
    ceilings = one_thread()
    for name in [name for _ in range(options.rounds) for name in measured]:
        with tempfile.TemporaryDirectory() as scratch:
            store_ceilings(Path(scratch) / "runs", environment(), [ceilings])
            run = await profiled(CASES[name], options, Path(scratch))
        (attribution,) = run.attributions
        overhead = overhead_line(run.finished[0], run.profiled[0])
        print(f"{name}: {bottleneck_sentence(attribution)}; {overhead}", flush=True)
        measured[name].append(attribution)
    bars = Bars()
    judge_names(bars, measured)
    for name, runs in measured.items():
        judge(bars, name, runs, measured.get(ALONE, []))
    bars.finish()


def judge_names(bars: Bars, measured: dict[str, list[Attribution]]) -> None:
    """Add the bars of the named bottlenecks."""
    cases = [(CASES[name], attribution) for name, runs in measured.items() for attribution in runs]
    planted = [is_named(case, attribution) for case, attribution in cases if not case.is_clean]
    clean = [is_named(case, attribution) for case, attribution in cases if case.is_clean]
    if planted:
        bars.add("share_of_planted_named", sum(planted) / len(planted), ">=", NAMED)
    if clean:
        bars.add("named_although_nothing_is_planted", len(clean) - sum(clean), "==", 0)


def is_named(case: Case, attribution: Attribution) -> bool:
    """Whether the largest part is the planted one. Both directions of the network are one bottleneck."""
    largest = bottleneck(attribution)
    return not isinstance(largest, str) and largest.part in parts_of(case)


def parts_of(case: Case) -> set[Part]:
    return {Part.NETWORK_IN, Part.NETWORK_OUT} if case.part is Part.NETWORK_IN else {case.part}


def one_thread() -> Ceilings:
    """Measure the machine's limits for the engine's number of threads."""
    torch.set_num_threads(THREADS)
    return measure(torch.device("cpu"), 1.0)


def judge(bars: Bars, name: str, runs: list[Attribution], alone: list[Attribution]) -> None:
    """Add the bars of one case, each for its worst run."""
    case, key = CASES[name], name.replace(",", "").replace(" ", "_").replace("-", "_")
    residuals = [attribution.clock.residual_ns / 1e3 if attribution.clock else 1e9 for attribution in runs]
    bars.add(f"{key}_attributed_share", min(attribution.attributed_share for attribution in runs), ">=", ATTRIBUTED)
    bars.add(f"{key}_clock_residual_us", max(residuals), "<=", RESIDUAL_US)
    if case.bound is not None:
        limits = [phase_limit(attribution, case.part) for attribution in runs]
        shares = [max(limit.work.mbu(limit.ceiling), limit.work.mfu(limit.ceiling)) for limit in limits if limit]
        bars.add(
            f"{key}_limit_is_named",
            sum(limit is not None and limit.bound is case.bound for limit in limits),
            "==",
            len(runs),
        )
        bars.add(f"{key}_share_of_limit", max(shares, default=1e9), "<=", MAX_SHARE)
    errors: dict[Part, float] = {}
    for attribution in runs:
        for part, seconds in case.expected(attribution).items():
            errors[part] = max(errors.get(part, 0.0), abs(mean(attribution, part) / seconds - 1))
    for part, error in errors.items():
        bars.add(f"{key}_{part.value}_error", error, "<=", ERROR)
    if case.is_removable and alone:
        predicted_s = statistics.median(without(attribution, parts_of(case)) for attribution in runs)
        actual_s = statistics.median(attribution.mean_s(Latency.E2E) for attribution in alone)
        print(f"{name}: E2E without it {predicted_s:.3f} s predicted, {actual_s:.3f} s measured")
        bars.add(f"{key}_what_if_error", abs(predicted_s / actual_s - 1), "<=", ERROR)


def without(attribution: Attribution, parts: set[Part]) -> float:
    """The mean E2E that *what if* predicts without these parts."""
    total_s = attribution.mean_s(Latency.E2E)
    return total_s - sum(total_s - case.latency_s for case in what_if(attribution) if case.part in parts)


async def profiled(case: Case, options: argparse.Namespace, scratch: Path) -> results.Run:
    """Start the engine of a case, and profile it."""
    env: dict[str, str] = {}
    if case.slow:
        (scratch / "sitecustomize.py").write_text(SLOW[case.slow], encoding="utf-8")
        env["PYTHONPATH"] = f"{scratch}:{Path.cwd()}"
    settings = ReferenceOptions(step_log_dir=str(scratch / "steps"), threads=THREADS)
    engine = ReferenceEngine(Setup(Model("served", options.model), case.spec, settings, Deployment(env=env)))
    launch = engine.launch(pick_port())
    assert launch is not None
    async with launched(launch, scratch / "engine.log") as server, delayed(server.base_url, case.network_s) as url:
        file = scratch / "experiment.toml"
        file.write_text(experiment(case, url, options), encoding="utf-8")
        code = "from bakeoff.harness.entry import main; main()"
        argv = [sys.executable, "-c", code, "profile", str(file), "--json", "--out", str(scratch / "runs")]
        process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        printed, _ = await process.communicate()
        run = results.load(json.loads(printed)["run"])
        _ = run.attributions, run.finished  # read before the folder is deleted
        return run


def experiment(case: Case, url: str, options: argparse.Namespace) -> str:
    return f"""
name = "planted"
model = {{ name = "served", tokenizer = "{options.model}" }}
client = {{ calibrate = false }}
[workload]
name = "random"
options = {{ input_tokens = {case.input_tokens}, output_tokens = {case.output_tokens} }}
[[engines]]
adapter = "reference"
url = "{url}"
[[loads]]
{case.load}
[trial]
duration_s = {options.duration}
ramp_s = 0.5
max_foreign_share = 1
"""


@contextlib.asynccontextmanager
async def delayed(url: str, seconds: float) -> AsyncGenerator[str]:
    """Yield the URL of a proxy that delays all bytes in both directions; for 0, the URL itself."""
    if not seconds:
        yield url
        return
    host, port = url.removeprefix("http://").split(":")
    tasks: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(1 << 16):
            loop.call_later(seconds, writer.write, data)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
        for direction in (pipe(reader, upstream_writer), pipe(upstream_reader, writer)):
            tasks.add(asyncio.create_task(direction))

    server: Any = await asyncio.start_server(connect, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
