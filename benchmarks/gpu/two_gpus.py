"""Tensor parallelism over two GPUs: tokens beside those of one GPU, and the speed of both.

    python -m benchmarks.gpu.two_gpus [--layers 8]

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
CLOSE = 0.1
"""Difference of two log-probabilities that the roundings of bf16 explain."""
CELLS = {(1, 128, 128): 1.5, (64, 1024, 128): 1.55, (4, 8000, 1): 1.65}
"""Requests, prompt tokens and output tokens; and how many times as fast two GPUs should be."""


def tokens_off(raw: dict[str, object]) -> float:
    """Share of the tokens of two GPUs that one GPU finds less likely than its own choice, beyond roundings."""
    rng = random.Random(1)
    prompts = [[rng.randrange(2000) for _ in range(rng.randint(1, PROMPT_TOKENS))] for _ in range(PROMPTS)]
    settings = {"max_model_len": 1024, "num_blocks": 4096, "enable_prefix_caching": False}
    with engine(raw, tensor_parallel_size=2, **settings) as llm:
        greedy = SamplingParams(max_tokens=OUTPUT_TOKENS, min_tokens=OUTPUT_TOKENS, temperature=0.0)
        outputs = [answer.completions[0].token_ids for answer in llm.generate(prompts, greedy, ignore_eos=True)]
    with engine(raw, **settings) as llm:
        scoring = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
        texts = [prompt + output for prompt, output in zip(prompts, outputs, strict=True)]
        scores = [answer.prompt_logprobs or () for answer in llm.generate(texts, scoring)]
    off = [
        score.alternatives[0][1] - score.logprob > CLOSE
        for output, scored in zip(outputs, scores, strict=True)
        for score in scored[-len(output) :]
    ]
    return sum(off) / len(off)


def tokens_per_s(layers: int, **settings: int) -> list[float]:
    seconds = seconds_of(LLAMA_8B | {"num_hidden_layers": layers}, [*CELLS], **settings)
    tokens = [requests * (output if output > 1 else prompt) for requests, prompt, output in CELLS]
    return [count / duration for count, duration in zip(tokens, seconds, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=LLAMA_8B["num_hidden_layers"], help="of the model that is timed")
    options = parser.parse_args()
    if torch.cuda.device_count() < 2:
        raise SystemExit("this script needs two GPUs")
    bars = Bars()
    for name, changes in MODELS.items():
        share = tokens_off(SMALL | changes)
        print(f"{name:<12} tokens that one GPU would not choose: {share:.2%}", flush=True)
        bars.add(f"{name}_tokens_off", share, "<=", 0.01)
    one, two = tokens_per_s(options.layers), tokens_per_s(options.layers, tensor_parallel_size=2)
    print(
        f"{'requests, prompt, output':<26} {'one GPU':>10} {'two GPUs':>10}  tokens/s, {torch.cuda.get_device_name()}"
    )
    for (cell, goal), alone, together in zip(CELLS.items(), one, two, strict=True):
        print(f"{cell!s:<26} {alone:>10.0f} {together:>10.0f}  {together / alone:.2f}×", flush=True)
        bars.add("two_over_one_at_{}_{}_{}".format(*cell), together / alone, ">=", goal)
    bars.finish()


if __name__ == "__main__":
    main()
