"""The reference engine beside real servers, all resident on the same GPUs and measured in turns by `bakeoff run`.

All load one checkpoint with the shapes of ``--model`` and random weights, which is written first; the tokenizer is
``--tokenizer``'s, filled up to the model's vocabulary. ``--traffic`` is random prompts of 512 and answers of 128
tokens, the preset ``chat`` with prompts up to 4,000 tokens, both without prefix caching, or ``agents``: the preset
``agent-coding`` with every length times 0.2, a mean prompt of 22,000 tokens, of which 16 sessions fit into the KV cache
of a server on a GPU of 141 GB. With lengths times 0.5 and 32 sessions, which need four times the cache, no trial of
either server ended in 20 minutes. Each server may use 45 % of the GPU's memory.
SGLang has an environment of its own, see ``sglang/prepare.sh``. With ``--publish FOLDER`` the run's page and data are
written there.

A call ends when ``--budget-s`` is over; the same command continues its runs, in ``--out``.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, NamedTuple

from bakeoff import results
from bakeoff.engines import Deployment, EngineSpec, Model, engine, launched, pick_port
from bakeoff.results.log.store import runs_named
from benchmarks.bars import Bars
from benchmarks.gpu.offline import DEFAULT_MODEL, UNFINISHED
from benchmarks.gpu.parts.checkpoint import FORMATS, FormatName, write_checkpoint
from benchmarks.gpu.parts.shapes import MODELS, shape_of
from benchmarks.serving import VLLM_ENVIRONMENT
from docs.publishing import publish


class Traffic(NamedTuple):
    """What is sent, and what the servers need for it."""

    workload: str
    options: str
    levels: tuple[int, ...]
    """Requests or sessions in flight, unless ``--concurrency`` is given."""
    max_model_len: int = 8192
    enable_prefix_caching: bool = False


TRAFFIC = {
    "random": Traffic("random", "{ input_tokens = 512, output_tokens = 128, spread = 0.0 }", (8, 64, 256)),
    "chat": Traffic("chat", "{ max_input_tokens = 4000 }", (32, 64)),
    "agents": Traffic("agent-coding", "{ scale = 0.2 }", (8, 16, 32), 131_072, enable_prefix_caching=True),
}
EXPERIMENT = """
name = "{name}"
repeats = {repeats}
seed = 3

[model]
name = "{model}-shapes"
path = "{folder}"
{engines}
[workload]
name = "{workload}"
options = {options}
{loads}
[trial]
# The servers run at an address, so their CPU time counts as that of other processes.
max_foreign_share = 1.0
ramp_s = {ramp_s}
duration_s = {duration_s}
min_requests = 16
warm_up_s = {warm_up_s}

[client]
calibrate = false
# The tokens of a step arrive together: two workers were 1.5 ms late with 32 streams.
workers = 4

[quality]
samples = 0
"""
OPTIONS: dict[str, dict[str, Any]] = {
    "reference": {"generation_config": "none"},
    "vllm": {},
    # FlashInfer's sampler would be compiled at the first request.
    "sglang": {"attention_backend": "fa3", "sampling_backend": "pytorch"},
}
SGLANG = Path(__file__).with_name("sglang") / "serve.sh"
MAX_LATENCY_RATIO = 1.05
METRICS = ("output_tokens_per_s", "ttft_p50_s", "itl_p99_s")


def write_model(folder: Path, config: dict[str, Any], tokenizer: Path, quantization: FormatName | None = None) -> None:
    """Writes a checkpoint, and a tokenizer with as many tokens as the model has."""
    write_checkpoint(folder, config, quantization, "cuda")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(tokenizer / name, folder / name)
    content = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    for token_id in range(len(vocabulary), config["vocab_size"]):
        vocabulary[f"<|unused{token_id}|>"] = token_id
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")


def kept_port(adapter: str, out: Path) -> int:
    """The same in each call: a run goes on only with engines at the addresses that it began with."""
    file = out / f"{adapter}.port"
    if not file.exists():
        file.write_text(str(pick_port()), encoding="utf-8")
    return int(file.read_text(encoding="utf-8"))


@contextlib.asynccontextmanager
async def served(adapter: str, model: Model, traffic: Traffic, options: argparse.Namespace) -> AsyncGenerator[str]:
    """Starts an engine; yields its address."""
    spec = EngineSpec(
        dtype="bfloat16", max_model_len=traffic.max_model_len, max_num_seqs=256, memory_fraction=options.memory,
        enable_prefix_caching=traffic.enable_prefix_caching, tensor_parallel_size=options.tensor_parallel,
        pipeline_parallel_size=options.pipeline_parallel,
    )  # fmt: skip
    deployments = {
        "reference": Deployment(),
        "vllm": Deployment(env=VLLM_ENVIRONMENT, ready_timeout_s=400),
        "sglang": Deployment(program=str(SGLANG), ready_timeout_s=400),
    }
    served_engine = engine(adapter, model, OPTIONS[adapter], spec=spec, deployment=deployments[adapter])
    launch = served_engine.launch(kept_port(adapter, options.out))
    assert launch is not None
    async with launched(launch, options.out / f"{adapter}.log") as server:
        print(f"{adapter} is ready after {server.start_s:.0f} s", flush=True)
        yield server.base_url


def experiment(name: str, traffic: Traffic, folder: Path, urls: dict[str, str], options: argparse.Namespace) -> str:
    """The experiment, as TOML."""
    levels = options.concurrency or traffic.levels
    return EXPERIMENT.format(
        name=name, model=options.model, repeats=options.repeats, folder=folder, workload=traffic.workload,
        options=traffic.options, ramp_s=options.ramp_s, duration_s=options.duration_s, warm_up_s=options.warm_up_s,
        engines="".join(f'\n[[engines]]\nadapter = "{adapter}"\nurl = "{url}"\n' for adapter, url in urls.items()),
        loads="".join(f"\n[[loads]]\nconcurrency = {level}\n" for level in levels),
    )  # fmt: skip


def latest_run(name: str, out: Path) -> Path | None:
    """The newest run of an experiment; None if there is none."""
    return next((folder.path for folder in runs_named(out, name)), None)


async def run(file: Path, out: Path, limit_s: float) -> bool:
    """Run or resume an experiment; returns whether it ended within the limit."""
    resume = ["--resume", "latest"] if latest_run(file.stem, out) else []
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from bakeoff.harness.entry import main; main()",
        "run",
        str(file),
        "--out",
        str(out),
        *resume,
    )
    try:
        await asyncio.wait_for(process.wait(), limit_s)
    except TimeoutError:
        process.send_signal(signal.SIGINT)
        await process.wait()
        return False
    return True


def judge(run: results.Run, adapters: list[str], bars: Bars) -> None:
    """Prints the figures of a run and adds its bars."""
    for load in dict.fromkeys(cell.load for cell in run.cells):
        medians: dict[str, dict[str, float]] = {}
        for adapter in adapters:
            trials = run.trials
            trials = trials[(trials.load == load) & (trials.engine == adapter) & (trials.verdict == "VALID")]
            medians[adapter] = {metric: float(trials[metric].median()) for metric in METRICS}
            figures = ", ".join(f"{metric} {value:.4g}" for metric, value in medians[adapter].items())
            print(f"{load} {adapter}: {len(trials)} valid, {figures}", flush=True)
        for adapter in adapters:
            if adapter == "reference" or "reference" not in adapters:
                continue
            ratios = {metric: medians["reference"][metric] / medians[adapter][metric] for metric in METRICS}
            label = f"{run.manifest.name}_{load}_over_{adapter}".replace("=", "").replace("-", "_")
            bars.add(f"{label}_output", ratios["output_tokens_per_s"], ">=", 1.0)
            bars.add(f"{label}_ttft_p50", ratios["ttft_p50_s"], "<=", MAX_LATENCY_RATIO)
            bars.add(f"{label}_itl_p99", ratios["itl_p99_s"], "<=", MAX_LATENCY_RATIO)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--traffic", choices=tuple(TRAFFIC), required=True)
    parser.add_argument("--engine", nargs="+", choices=tuple(OPTIONS), default=["reference", "vllm"])
    parser.add_argument("--concurrency", type=int, nargs="+", help="requests or sessions in flight")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--duration-s", type=float, default=30.0)
    parser.add_argument("--ramp-s", type=float, default=3.0)
    parser.add_argument("--warm-up-s", type=float, default=20.0)
    parser.add_argument("--memory", type=float, default=0.45, help="share of the GPU's memory of each server")
    parser.add_argument("--budget-s", type=float, default=540.0, help="of this call")
    parser.add_argument("--model", choices=MODELS, default=DEFAULT_MODEL, help="whose shapes (default: %(default)s)")
    parser.add_argument("--quantization", choices=list(FORMATS), help="of its weights")
    parser.add_argument("--tensor-parallel", type=int, metavar="N", help="GPUs that divide each layer")
    parser.add_argument("--pipeline-parallel", type=int, metavar="N", help="GPUs that divide the layers")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir(), "bakeoff-gpu-served"))
    parser.add_argument("--publish", type=Path, help="folder for the run's page and data")
    return parser.parse_args()


def changed(options: argparse.Namespace) -> dict[str, object]:
    """The options of the model and its layout that are not the default."""
    given = {
        "model": options.model, "quantization": options.quantization, "tensor-parallel": options.tensor_parallel,
        "pipeline-parallel": options.pipeline_parallel,
    }  # fmt: skip
    return {name: value for name, value in given.items() if value not in {None, DEFAULT_MODEL}}


async def main() -> None:
    options = parse()
    deadline_s = asyncio.get_running_loop().time() + options.budget_s
    name, traffic = f"h200-served-{options.traffic}", TRAFFIC[options.traffic]
    name += "".join(f"-{key}-{value}" for key, value in changed(options).items())
    shapes = "-".join(filter(None, (options.model, options.quantization, "shapes")))
    folder, file = options.out / shapes, options.out / f"{name}.toml"
    options.out.mkdir(parents=True, exist_ok=True)
    write_model(folder, shape_of(options.model), options.tokenizer, options.quantization)
    async with contextlib.AsyncExitStack() as stack:
        urls: dict[str, str] = {}
        for adapter in options.engine:
            model = Model(f"{options.model}-shapes", str(folder))
            urls[adapter] = await stack.enter_async_context(served(adapter, model, traffic, options))
        file.write_text(experiment(name, traffic, folder, urls, options), encoding="utf-8")
        is_finished = await run(file, options.out, deadline_s - asyncio.get_running_loop().time())
    bars = Bars()
    if folder := latest_run(name, options.out):
        latest = results.load(folder)
        if len(latest.trials):
            judge(latest, options.engine, bars)
        if options.publish:
            command = f"python -m benchmarks.gpu.served --traffic {options.traffic} --tokenizer FOLDER"
            command += "".join(f" --{name} {value}" for name, value in changed(options).items())
            publish(latest, file, options.publish, command)
    if not is_finished:
        print("unfinished: the same command goes on from here")
        sys.exit(UNFINISHED)
    if len(options.engine) > 1:
        bars.finish()


if __name__ == "__main__":
    asyncio.run(main())
