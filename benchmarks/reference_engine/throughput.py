"""How fast is the reference engine beside Transformers on this machine? Same weights, same dtype, same run.

    .venv/bin/python benchmarks/reference_engine/throughput.py --model CHECKPOINT_DIR

Decoding: 200 prompt tokens, then 64 tokens each, at batch 1 and 8; only the time after the first token counts.
Prefill: one prompt of 512 tokens. Each number is the median of three runs, the two engines taking turns.
The last line of the output is one JSON object; the exit status is 0 if every goal is met.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from reference_engine.config import EngineConfig
from reference_engine.engine import Engine
from reference_engine.offline import load_engine
from reference_engine.request import Request, SamplingParams

REPEATS = 3
CONTEXT_TOKENS, NEW_TOKENS, PREFILL_TOKENS = 200, 64, 512


@dataclasses.dataclass(frozen=True)
class Pace:
    """Tokens per second."""

    prefill: float
    decode: float


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(100, 40_000, (length,), generator=generator).tolist()


def time_engine(engine: Engine, batch: int, length: int, new_tokens: int) -> Pace:
    params = SamplingParams(max_tokens=new_tokens, temperature=0.0)
    began = time.perf_counter()
    for number in range(batch):
        engine.add(Request(str(number), prompt(length, number), params))
    seen: set[str] = set()
    while len(seen) < batch:
        seen |= {output.request_id for output in engine.step().outputs}
    prefilled, decoded = time.perf_counter(), 0
    while engine.has_work:
        decoded += len(engine.step().outputs)
    ended = time.perf_counter()
    return Pace(batch * length / (prefilled - began), decoded / (ended - prefilled) if decoded else 0.0)


@torch.inference_mode()
def time_transformers(model: PreTrainedModel, length: int, new_tokens: int) -> Pace:
    ids = torch.tensor([prompt(length, 0)])
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    began = time.perf_counter()
    model.generate(ids, max_new_tokens=1, **options)
    first = time.perf_counter() - began
    if new_tokens == 1:
        return Pace(length / first, 0.0)
    began = time.perf_counter()
    model.generate(ids, max_new_tokens=new_tokens, **options)
    rest = time.perf_counter() - began - first
    return Pace(length / first, (new_tokens - 1) / rest)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="converted checkpoint directory")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    options = parser.parse_args()
    engine = load_engine(EngineConfig(model=options.model, dtype=options.dtype, num_blocks=512, max_model_len=2048))
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype))
    runs: dict[str, list[float]] = {}
    for repeat in range(REPEATS + 1):  # the first round warms up
        measured = {
            "transformers_decode_1": time_transformers(model, CONTEXT_TOKENS, NEW_TOKENS).decode,
            "reference_decode_1": time_engine(engine, 1, CONTEXT_TOKENS, NEW_TOKENS).decode,
            "reference_decode_8": time_engine(engine, 8, CONTEXT_TOKENS, NEW_TOKENS).decode,
            "transformers_prefill": time_transformers(model, PREFILL_TOKENS, 1).prefill,
            "reference_prefill": time_engine(engine, 1, PREFILL_TOKENS, 1).prefill,
        }
        for name, value in measured.items():
            if repeat:
                runs.setdefault(name, []).append(value)
    median = {name: statistics.median(values) for name, values in runs.items()}
    print(
        f"{options.dtype}, {torch.get_num_threads()} threads; tokens per second, median of {REPEATS} (lowest, highest)"
    )
    for name, values in runs.items():
        print(f"{name:<24}{median[name]:>9.1f}   ({min(values):.1f}, {max(values):.1f})")
    goals = {
        "reference_decode_1": median["transformers_decode_1"],
        "reference_decode_8": 4 * median["transformers_decode_1"],
        "reference_prefill": median["transformers_prefill"],
    }
    verdicts = {
        name: {"value": round(median[name], 1), "goal": round(goal, 1), "pass": median[name] >= goal}
        for name, goal in goals.items()
    }
    print(json.dumps(verdicts))
    return 0 if all(verdict["pass"] for verdict in verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
