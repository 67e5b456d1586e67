"""Parallelism over two GPUs: tokens beside those of one GPU, and the speed of tensors and stages in parallel.

    python -m benchmarks.gpu.two_gpus [--layers 8] [--models llama gemma3]

Run by ``make bench-gpu`` on a machine with two GPUs. Models are random and small, one for each kind of layer, in bf16.
Two GPUs add partial products in another order than one, so their tokens may differ where two are almost equally
likely: one GPU therefore scores the tokens that two wrote. The speed is that of Llama 3.1 8B, or of some of its layers.
"""

import argparse
import random

import torch

from bakeoff.reference_engine.core.request import SamplingParams
from benchmarks.bars import Bars
from benchmarks.gpu.offline import LLAMA_8B
from benchmarks.gpu.parts.invariance import MODELS, SMALL, engine, seconds_of

PROMPTS, PROMPT_TOKENS, OUTPUT_TOKENS = 24, 200, 48
CLOSE = {"bfloat16": 0.1, "float32": 1e-3}
"""Difference of two log-probabilities that roundings explain."""
Cells = dict[tuple[int, int, int], float]
"""Requests, prompt tokens and output tokens; and how many times as fast two GPUs should be."""
TENSOR, PIPELINE = {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}
CONTEXT, EXPERTS = {"context_parallel_size": 2}, {"expert_parallel": True, **TENSOR}
TENSOR_CELLS: Cells = {(1, 128, 128): 1.5, (64, 1024, 128): 1.55, (4, 8000, 1): 1.65}
PIPELINE_CELLS: Cells = {(256, 1024, 128): 1.45, (16, 4000, 1): 1.45}


def tokens_off(raw: dict[str, object], dtype: str, **shape: object) -> float:
    """Share of the tokens of two GPUs that one GPU finds less likely than its own choice, beyond roundings."""
    rng = random.Random(1)
    prompts = [[rng.randrange(2000) for _ in range(rng.randint(1, PROMPT_TOKENS))] for _ in range(PROMPTS)]
    settings = {"max_model_len": 1024, "num_blocks": 4096, "enable_prefix_caching": False, "dtype": dtype}
    with engine(raw, **shape, **settings) as llm:
        greedy = SamplingParams(max_tokens=OUTPUT_TOKENS, min_tokens=OUTPUT_TOKENS, temperature=0.0)
        outputs = [answer.completions[0].token_ids for answer in llm.generate(prompts, greedy, ignore_eos=True)]
    with engine(raw, **settings) as llm:
        scoring = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
        texts = [prompt + output for prompt, output in zip(prompts, outputs, strict=True)]
        scores = [answer.prompt_logprobs or () for answer in llm.generate(texts, scoring)]
    off = [
        score.alternatives[0][1] - score.logprob > CLOSE[dtype]
        for output, scored in zip(outputs, scores, strict=True)
        for score in scored[-len(output) :]
    ]
    return sum(off) / len(off)


def compare_tokens(bars: Bars, names: list[str]) -> None:
    cases = [(name, "bfloat16", TENSOR) for name in names]
    cases += [("llama", "float32", shape) for shape in (TENSOR, PIPELINE, CONTEXT)]
    cases += [("gemma3", "bfloat16", shape) for shape in (PIPELINE, CONTEXT)]
    cases += [("mixtral", dtype, EXPERTS) for dtype in CLOSE]
    for name, dtype, shape in cases:
        share, kind = tokens_off(SMALL | MODELS[name], dtype, **shape), next(iter(shape))
        print(f"{name}, {dtype}, {kind}: tokens that one GPU would not choose: {share:.2%}", flush=True)
        bars.add(f"{name}_{dtype}_{kind}_tokens_off", share, "<=", 0.01)


def compare_speed(bars: Bars, layers: int, cells: Cells, **shape: int) -> None:
    raw, (kind,), seats = LLAMA_8B | {"num_hidden_layers": layers}, shape, max(requests for requests, *_ in cells)
    alone, together = (seconds_of(raw, [*cells], max_num_seqs=seats, **settings) for settings in ({}, shape))
    print(f"{kind:<26} {'one GPU':>10} {'two GPUs':>10}  tokens/s, {torch.cuda.get_device_name()}")
    for (cell, goal), one_s, two_s in zip(cells.items(), alone, together, strict=True):
        requests, prompt, output = cell
        tokens = requests * (output if output > 1 else prompt)
        print(f"{cell!s:<26} {tokens / one_s:>10.0f} {tokens / two_s:>10.0f}  {one_s / two_s:.2f}×", flush=True)
        bars.add(f"{kind}_two_over_one_at_{requests}_{prompt}_{output}", one_s / two_s, ">=", goal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=LLAMA_8B["num_hidden_layers"], help="of the model that is timed")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS), help="whose tokens are compared")
    options = parser.parse_args()
    if torch.cuda.device_count() < 2:
        raise SystemExit("this script needs two GPUs")
    bars = Bars()
    compare_tokens(bars, options.models)
    compare_speed(bars, options.layers, TENSOR_CELLS, **TENSOR)
    compare_speed(bars, options.layers, PIPELINE_CELLS, **PIPELINE)
    bars.finish()


if __name__ == "__main__":
    main()
