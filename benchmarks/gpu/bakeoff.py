"""vLLM, Transformers' server and the reference engine on one GPU, each alone on it, measured by ``bakeoff run``.

``--experiments`` are files beside this one. All but the last have Llama-3.1-8B shapes with random weights; the
tokenizer is ``--tokenizer``'s, filled up to the model's vocabulary.

- ``h200-bakeoff`` (vLLM and the reference engine) and ``h200-transformers`` load one checkpoint.
- ``h200-quantised`` and ``h200-quantised-vllm``: weights in fewer bits.
- ``profile`` and ``power-cap``: where the latency comes from.
- ``h200-token-match``: answers of ``--smollm2``'s real weights, compared with float32.

A call ends when ``--budget-s`` is over; the same command continues. The runs' pages are written to ``--publish``
each time, from the trials that have ended.
"""

import argparse
import asyncio
import multiprocessing
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bakeoff import results
from bakeoff.harness.experiment.reading import load_experiment
from bakeoff.results.machine.ceilings import CEILINGS_FILE
from benchmarks.gpu.offline import LLAMA_8B, UNFINISHED
from benchmarks.gpu.served import run, write_model
from docs.publishing import publish

REPORT_S = 60.0
"""Part of a call's budget, for the report of an interrupted run and for the published page."""
SPEED, TOKEN_MATCH = "h200-bakeoff", "h200-token-match"
PROFILED = ("profile", "power-cap")
WITHOUT_CHECKPOINT = ("h200-quantised", "h200-quantised-vllm", *PROFILED)
"""Experiments whose engines make their weights themselves."""
EXPERIMENTS = (SPEED, "h200-transformers", *WITHOUT_CHECKPOINT, TOKEN_MATCH)


def write_checkpoint(folder: Path, tokenizer: Path, device: str = "cuda") -> None:
    """Writes a checkpoint of random weights with ``LLAMA_8B``'s shapes, 16 GB."""
    folder.mkdir(parents=True, exist_ok=True)
    options = {name: value for name, value in LLAMA_8B.items() if name != "model_type"}
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **options), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_model(folder, LLAMA_8B, tokenizer)


def prepare(name: str, folder: Path, options: argparse.Namespace) -> None:
    """Writes an experiment's model unless it exists; for profiles also measures the ceilings, beside their runs."""
    if name == TOKEN_MATCH:
        shutil.copytree(options.smollm2, folder, dirs_exist_ok=True)
    elif name in WITHOUT_CHECKPOINT:
        folder.mkdir(parents=True, exist_ok=True)
        write_model(folder, LLAMA_8B, options.tokenizer)
    elif not (folder / "config.json").exists():
        # In a process of its own, because torch's allocator keeps the GPU memory until its process ends.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            pool.submit(write_checkpoint, folder, options.tokenizer).result()
    out = folder.parent / name
    if name in PROFILED and not (out / CEILINGS_FILE).exists():
        subprocess.run([sys.executable, "-m", "bakeoff", "lab", "machine", "--seconds", "3", "--out", out], check=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--smollm2", type=Path, help=f"checkpoint for {TOKEN_MATCH}")
    parser.add_argument("--experiments", nargs="+", choices=EXPERIMENTS, default=[SPEED])
    parser.add_argument("--budget-s", type=float, default=540.0, help="of this call")
    parser.add_argument("--publish", type=Path, required=True, help="folder for the published pages")
    return parser.parse_args()


async def main() -> None:
    options = parse()
    deadline_s = asyncio.get_running_loop().time() + options.budget_s - REPORT_S
    files = {name: Path(__file__).with_name(f"{name}.toml") for name in options.experiments}
    models = {name: Path(load_experiment(file).model.path or "") for name, file in files.items()}
    for name, folder in models.items():
        prepare(name, folder, options)
    is_finished = True
    for name, file in files.items():
        out = models[name].parent / name
        if is_finished:
            is_finished = await run(file, out, deadline_s - asyncio.get_running_loop().time())
        if runs := sorted(out.glob("*/run.jsonl")):
            latest = results.load(runs[-1].parent)
            publish(latest, file, options.publish / name, "python -m benchmarks.gpu.bakeoff --tokenizer FOLDER")
            print(f"{name}: {len(latest.finished)} of {len(latest.manifest.trials)} trials", flush=True)
    if not is_finished:
        print("unfinished: the same command goes on from here")
        sys.exit(UNFINISHED)


if __name__ == "__main__":
    asyncio.run(main())
