"""Speed of the reference engine beside Transformers on this machine: same weights, same dtype, same run.

    python -m benchmarks.engine.throughput [--device cuda]

Decoding: 200 prompt tokens, then 64 tokens each, at batch 1 and 8; only the time after the first token counts.
Prefill: one prompt of 512 tokens. Each number is the median of three runs, the two engines taking turns.
"""

import argparse
import dataclasses
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.engine.beam_engine import BeamSearchEngine
from bakeoff.reference_engine.offline import load_engine
from benchmarks.bars import Bars, model_argument

REPEATS = 3
CONTEXT_TOKENS, NEW_TOKENS, PREFILL_TOKENS = 200, 64, 512


@dataclasses.dataclass(frozen=True)
class Speed:
    """Tokens per second."""

    prefill: float
    decode: float


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(100, 40_000, (length,), generator=generator).tolist()


def time_engine(engine: BeamSearchEngine, batch: int, length: int, new_tokens: int) -> Speed:
    params = SamplingParams(max_tokens=new_tokens, temperature=0.0)
    began = time.perf_counter()
    for number in range(batch):
        engine.add(Request(str(number), prompt(length, number), params))
    started_ids: set[str] = set()
    while len(started_ids) < batch:
        started_ids |= {output.request_id for output in engine.step().outputs}
    prefilled, decoded = time.perf_counter(), 0
    while engine.has_work:
        decoded += len(engine.step().outputs)
    ended = time.perf_counter()
    return Speed(batch * length / (prefilled - began), decoded / (ended - prefilled) if decoded else 0.0)


@torch.inference_mode()
def time_transformers(model: PreTrainedModel, length: int, new_tokens: int) -> Speed:
    ids = torch.tensor([prompt(length, 0)], device=model.device)
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    began = time.perf_counter()
    model.generate(ids, max_new_tokens=1, **options)
    prefill_s = time.perf_counter() - began
    if new_tokens == 1:
        return Speed(length / prefill_s, 0.0)
    began = time.perf_counter()
    model.generate(ids, max_new_tokens=new_tokens, **options)
    decode_s = time.perf_counter() - began - prefill_s
    return Speed(length / prefill_s, (new_tokens - 1) / decode_s)


def one_round(engine: BeamSearchEngine, model: PreTrainedModel) -> dict[str, float]:
    return {
        "transformers_decode_1": time_transformers(model, CONTEXT_TOKENS, NEW_TOKENS).decode,
        "reference_decode_1": time_engine(engine, 1, CONTEXT_TOKENS, NEW_TOKENS).decode,
        "reference_decode_8": time_engine(engine, 8, CONTEXT_TOKENS, NEW_TOKENS).decode,
        "transformers_prefill": time_transformers(model, PREFILL_TOKENS, 1).prefill,
        "reference_prefill": time_engine(engine, 1, PREFILL_TOKENS, 1).prefill,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    options = parser.parse_args()
    config = EngineConfig(
        model=options.model, dtype=options.dtype, device=options.device, num_blocks=512, max_model_len=2048,
        enable_prefix_caching=False,  # every round sends the same prompts
    )  # fmt: skip
    engine = load_engine(config)
    dtype = getattr(torch, options.dtype)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype).to(options.device)
    one_round(engine, model)  # warms up
    rounds = [one_round(engine, model) for _ in range(REPEATS)]
    print(f"{options.dtype}, {torch.get_num_threads()} threads; tokens/s, median of {REPEATS} (lowest, highest)")
    median: dict[str, float] = {}
    for name in rounds[0]:
        values = [rates[name] for rates in rounds]
        median[name] = statistics.median(values)
        print(f"{name:<24}{median[name]:>9.1f}   ({min(values):.1f}, {max(values):.1f})")
    bars = Bars()
    bars.add("decode_1_over_transformers", median["reference_decode_1"] / median["transformers_decode_1"], ">=", 1)
    bars.add("decode_8_over_transformers", median["reference_decode_8"] / median["transformers_decode_1"], ">=", 4)
    bars.add("prefill_over_transformers", median["reference_prefill"] / median["transformers_prefill"], ">=", 1)
    bars.finish()


if __name__ == "__main__":
    main()
