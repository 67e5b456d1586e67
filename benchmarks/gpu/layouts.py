"""Parallelism over several GPUs: tokens beside those of one GPU, and the speed of each layout beside one GPU's.

    python -m benchmarks.gpu.layouts [--gpus 4] [--layers 8] [--models llama gemma3]

Run by ``make bench-gpu`` on a machine with several GPUs. Layouts are tensors, stages, contexts and experts in parallel,
and from four GPUs on two stages of tensors. Models whose tokens are compared are random and small, one for each kind of
layer. Several GPUs add partial products in another order than one, so their tokens may differ where two are almost
equally likely: one GPU therefore scores the tokens that several wrote. The speed is that of Llama 3.1 8B, or of some of
its layers. ``--device cpu`` rehearses the comparison of tokens with processes in place of GPUs.
"""

import argparse
import random
from typing import Any

import torch

from bakeoff.reference_engine.core.request import SamplingParams
from benchmarks.bars import Bars
from benchmarks.gpu.offline import LLAMA_8B
from benchmarks.gpu.parts.invariance import MODELS, SMALL, engine, seconds_of

PROMPTS, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 200, 48
"""Prompts of up to so many tokens; together a step of several thousand."""
CLOSE = {"bfloat16": 0.1, "float32": 1e-3}
"""Difference of two log-probabilities that roundings explain."""
Cell = tuple[int, int, int]
"""Requests, prompt tokens and output tokens."""
Layout = dict[str, Any]
"""Settings of the engine."""
TENSOR_GOALS: dict[int, dict[Cell, float]] = {
    2: {(1, 128, 128): 1.5, (64, 1024, 128): 1.55, (4, 8000, 1): 1.65},
    4: {(1, 128, 128): 2.2, (64, 1024, 128): 2.8},
}
"""By number of GPUs: how many times as fast as one they should be. Cells without a goal are measured, too."""
PIPELINE_GOALS: dict[int, dict[Cell, float]] = {
    2: {(256, 1024, 128): 1.45, (16, 4000, 1): 1.45},
    4: {(16, 4000, 1): 3.0},
}
CONTEXT_CELLS: dict[int, Cell] = {2: (1, 32_000, 1), 4: (1, 128_000, 1)}
"""By number of GPUs: one long prompt; without a goal."""
CHUNK_TOKENS = 4096
"""Most tokens in a step of a pipeline, and of the one GPU beside it: prompts need more steps than there are stages."""


def layouts(gpus: int) -> dict[str, Layout]:
    """Layouts over all GPUs by name: tensors, stages, contexts, experts, from four GPUs on two stages of tensors."""
    found: dict[str, Layout] = {
        f"TP {gpus}": {"tensor_parallel_size": gpus},
        f"PP {gpus}": {"pipeline_parallel_size": gpus},
        f"CP {gpus}": {"context_parallel_size": gpus},
        f"EP {gpus}": {"expert_parallel": True, "tensor_parallel_size": gpus},
    }
    if gpus >= 4 and gpus % 2 == 0:
        found[f"TP {gpus // 2} × PP 2"] = {"tensor_parallel_size": gpus // 2, "pipeline_parallel_size": 2}
    return found


def small_model(name: str, gpus: int) -> dict[str, Any]:
    """A small model whose heads, inner columns, experts and layers can be divided by the GPUs."""
    raw = SMALL | MODELS[name]
    kv_heads = -(-raw["num_key_value_heads"] // gpus) * gpus
    return raw | {
        "num_key_value_heads": kv_heads, "num_attention_heads": 3 * kv_heads,
        "intermediate_size": raw["intermediate_size"] // gpus * gpus,
        "num_hidden_layers": max(gpus, raw["num_hidden_layers"]),
    }  # fmt: skip


def tokens_off(raw: dict[str, Any], dtype: str, layout: Layout, device: str) -> float:
    """Share of the tokens of several GPUs that one GPU finds less likely than its own choice, beyond roundings."""
    rng = random.Random(1)
    asked = [[rng.randrange(2000) for _ in range(rng.randint(1, PROMPT_TOKENS))] for _ in range(PROMPTS)]
    settings = {
        "max_model_len": 1024, "num_blocks": 4096, "enable_prefix_caching": False, "dtype": dtype, "device": device,
    }  # fmt: skip
    with engine(raw, **layout, **settings) as llm:
        greedy = SamplingParams(max_tokens=OUTPUT_TOKENS, min_tokens=OUTPUT_TOKENS, temperature=0.0)
        outputs = [answer.completions[0].token_ids for answer in llm.generate(asked, greedy, ignore_eos=True)]
    with engine(raw, **settings) as llm:
        scoring = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
        texts = [prompt + output for prompt, output in zip(asked, outputs, strict=True)]
        scores = [answer.prompt_logprobs or () for answer in llm.generate(texts, scoring)]
    off = [
        score.alternatives[0][1] - score.logprob > CLOSE[dtype]
        for output, scored in zip(outputs, scores, strict=True)
        for score in scored[-len(output) :]
    ]
    return sum(off) / len(off)


def compare_tokens(bars: Bars, names: list[str], gpus: int, device: str) -> None:
    known = layouts(gpus)
    tensor, pipeline, context, experts, *mixed = known
    cases = [(name, "bfloat16", tensor) for name in names]
    cases += [("llama", "float32", layout) for layout in (tensor, pipeline, context, *mixed)]
    cases += [("gemma3", "bfloat16", layout) for layout in (pipeline, context)]
    cases += [("mixtral", dtype, experts) for dtype in CLOSE]
    for name, dtype, layout in cases:
        share = tokens_off(small_model(name, gpus), dtype, known[layout], device)
        print(f"{name}, {dtype}, {layout}: tokens that one GPU would not choose: {share:.2%}", flush=True)
        bars.add(f"{name}_{dtype}_{layout}_tokens_off".replace(" ", "").replace("×", "x"), share, "<=", 0.01)


def compare_speed(bars: Bars, layers: int, name: str, layout: Layout, goals: dict[Cell, float], **common: int) -> None:
    raw, cells = LLAMA_8B | {"num_hidden_layers": layers}, list(goals)
    common = {"max_num_seqs": max(requests for requests, *_ in cells), **common}
    alone, together = (seconds_of(raw, cells, **common, **settings) for settings in ({}, layout))
    print(f"{name:<26} {'one GPU':>10} {'all GPUs':>10}  tokens/s, {torch.cuda.get_device_name()}")
    for cell, one_s, all_s in zip(cells, alone, together, strict=True):
        requests, prompt, output = cell
        tokens = requests * (output if output > 1 else prompt)
        print(f"{cell!s:<26} {tokens / one_s:>10.0f} {tokens / all_s:>10.0f}  {one_s / all_s:.2f}×", flush=True)
        if goals[cell]:
            label = f"{name}_over_one_at_{requests}_{prompt}_{output}".replace(" ", "")
            bars.add(label, one_s / all_s, ">=", goals[cell])


def with_goals(goals: dict[int, dict[Cell, float]], gpus: int) -> dict[Cell, float]:
    """The cells of two GPUs with the goals of so many; 0 where there is none."""
    return dict.fromkeys(goals[2], 0.0) | goals.get(gpus, {})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, help="how many to use; default: all")
    parser.add_argument("--layers", type=int, default=LLAMA_8B["num_hidden_layers"], help="of the model that is timed")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS), help="whose tokens are compared")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    options.gpus = options.gpus or torch.cuda.device_count()
    if options.gpus < 2 or (options.device == "cuda" and torch.cuda.device_count() < options.gpus):
        parser.error(f"{max(2, options.gpus)} GPUs are needed, {torch.cuda.device_count()} are here; see --device")
    if options.device == "cuda" and LLAMA_8B["num_key_value_heads"] % options.gpus:
        parser.error(f"Llama 3.1 8B, whose speed is measured, has no heads for {options.gpus} GPUs; use 2, 4 or 8")
    return options


def main() -> None:
    options = parse()
    bars, gpus = Bars(), options.gpus
    compare_tokens(bars, options.models, gpus, options.device)
    if options.device == "cuda":
        known = layouts(gpus)
        tensor, pipeline, context, *_ = known
        compare_speed(bars, options.layers, tensor, known[tensor], with_goals(TENSOR_GOALS, gpus))
        goals = with_goals(PIPELINE_GOALS, gpus)
        compare_speed(bars, options.layers, pipeline, known[pipeline], goals, max_num_batched_tokens=CHUNK_TOKENS)
        long = CONTEXT_CELLS.get(gpus, CONTEXT_CELLS[2])
        compare_speed(bars, options.layers, context, known[context], {long: 0.0}, max_model_len=long[1] + 1)
    bars.finish()


if __name__ == "__main__":
    main()
