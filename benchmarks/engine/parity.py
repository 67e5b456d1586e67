"""Does the reference engine say, token for token, what Transformers says? Greedy, float32, real prompts.

    python -m benchmarks.engine.parity [--device cuda]

Transformers runs each prompt alone in a greedy loop with its own cache. The engine runs the same prompts alone, in
mixed batches of 8 with chunked prefill, and once more with so few KV blocks that requests are preempted. A difference
is excused only where Transformers' own two best log-probabilities are within 1e-4; that prompt is then compared no
further.
The last line of the output is one JSON object; the exit status is 0 if every goal is met.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.bars import Bars, model_argument
from reference_engine.config import EngineConfig
from reference_engine.engine import Engine
from reference_engine.loading.checkpoint import open_checkpoint
from reference_engine.offline import generate, load_engine
from reference_engine.request import SamplingParams

PROMPTS = Path(__file__).with_name("prompts.json")
EXCUSED_MARGIN = 1e-4  # natural-log units
BATCH = 8


@dataclasses.dataclass(frozen=True)
class Truth:
    """What Transformers chose, and by how much: the gap between its two best log-probabilities at each position."""

    tokens: list[int]
    margins: list[float]


@dataclasses.dataclass
class Tally:
    """How many prompts agree in full, and where excuses were needed."""

    equal: int = 0
    excused: int = 0
    different: int = 0
    tokens: int = 0
    seconds: float = 0.0
    preemptions: int = 0


@torch.inference_mode()
def transformers_greedy(model: PreTrainedModel, prompt: list[int], length: int) -> Truth:
    ids, cache = torch.tensor([prompt], device=model.device), None
    tokens, margins = [], []
    for _ in range(length):
        answer = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = answer.past_key_values
        best = answer.logits[0, -1].log_softmax(-1).topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        ids = best.indices[:1][None]
    return Truth(tokens, margins)


def compare(truth: Truth, tokens: list[int], tally: Tally) -> None:
    tally.tokens += len(tokens)
    for place, (ours, theirs) in enumerate(zip(tokens, truth.tokens, strict=True)):
        if ours != theirs:
            excused = truth.margins[place] <= EXCUSED_MARGIN
            tally.excused += excused
            tally.different += not excused
            return
    tally.equal += 1


def run(engine: Engine, prompts: list[list[int]], truths: list[Truth], batch: int) -> Tally:
    tally = Tally()
    params = SamplingParams(max_tokens=len(truths[0].tokens), temperature=0.0)
    began, before = time.perf_counter(), engine.preemptions
    for first in range(0, len(prompts), batch):
        group = prompts[first : first + batch]
        for truth, tokens in zip(truths[first:], generate(engine, group, [params] * len(group)), strict=False):
            compare(truth, tokens, tally)
        engine.check_integrity()
    tally.seconds, tally.preemptions = time.perf_counter() - began, engine.preemptions - before
    return tally


def read_prompts(model: str, count: int) -> list[list[int]]:
    """Token ids, long and short prompts side by side, so that every batch mixes prefill chunks with decodes."""
    tokenizer = open_checkpoint(Path(model)).tokenizer
    texts = json.loads(PROMPTS.read_text(encoding="utf-8"))[:count]
    prompts = [
        tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": entry["text"]}]))
        if entry["kind"] == "chat"
        else tokenizer.encode(entry["text"])
        for entry in texts
    ]
    prompts = sorted(prompts, key=len)
    return [prompt for start in range(4) for prompt in prompts[start::4]]


def truths_of(model_path: str, device: str, prompts: list[list[int]], tokens: int) -> list[Truth]:
    began = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).to(device)
    truths = [transformers_greedy(model, prompt, tokens) for prompt in prompts]
    lengths = f"{min(map(len, prompts))} to {max(map(len, prompts))} tokens"
    print(f"transformers: {len(prompts)} prompts of {lengths}, {tokens} more each, {time.perf_counter() - began:.1f} s")
    return truths


def cases_of(model: str, device: str, longest: int) -> dict[str, tuple[EngineConfig, int]]:
    common = EngineConfig(model=model, dtype="float32", device=device, max_model_len=2048, num_blocks=1024)
    mixed = dataclasses.replace(common, max_num_seqs=BATCH, max_num_batched_tokens=48)
    # Room for one and a half of the longest sequences: eight of them must push each other out.
    tight = dataclasses.replace(mixed, num_blocks=int(1.5 * longest / 16))
    return {"alone": (common, 1), "batched": (mixed, BATCH), "preempted": (tight, BATCH)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    prompts = read_prompts(options.model, options.prompts)
    truths = truths_of(options.model, options.device, prompts, options.tokens)
    bars = Bars()
    print(f"{'case':<12}{'equal':>7}{'excused':>9}{'different':>11}{'preemptions':>13}{'seconds':>9}")
    longest = max(map(len, prompts)) + options.tokens
    for name, (config, batch) in cases_of(options.model, options.device, longest).items():
        tally = run(load_engine(config), prompts, truths, batch)
        counts = f"{tally.equal:>7}{tally.excused:>9}{tally.different:>11}{tally.preemptions:>13}{tally.seconds:>9.1f}"
        print(f"{name:<12}{counts}")
        bars.add(f"parity_{name}", tally.equal + tally.excused, "==", len(prompts))
    bars.add("preemptions_forced", tally.preemptions, ">=", 1)
    bars.finish()


if __name__ == "__main__":
    main()
