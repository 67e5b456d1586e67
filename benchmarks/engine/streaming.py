"""Perplexity of the same tokens at the end of ever longer texts, with sinks that are seen from right before the window.

    python -m benchmarks.engine.streaming [--text FILE] [--window 1020] [--lengths 2048,4096,...,65536]

The model is SmolLM2-135M, made for 8,192 tokens. Only what stands before the measured tokens differs: with positions in
the text the longest texts cannot be computed at all, with positions in the cache (StreamingLLM, arXiv 2309.17453)
perplexity should stay where it is, and so should the memory of the cache. Prints a table and one JSON line.
"""

import argparse
import math
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.files import read_text
from bakeoff.reference_engine.tools.evaluator import PerplexityMeter
from benchmarks.bars import Bars, model_argument
from benchmarks.engine.prompts import text as documentation

MEASURED = 1024  # tokens at the end of each text
SINKS = 4


def main() -> None:
    """Measures every length."""
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    parser.add_argument("--text", type=Path, help="UTF-8 text, such as a book; without it the project's documentation")
    parser.add_argument("--window", type=int, default=1020)
    parser.add_argument("--lengths", default=",".join(str(2048 << power) for power in range(6)))
    options = parser.parse_args()
    lengths = [int(length) for length in options.lengths.split(",")]
    config = EngineConfig(
        model=options.model,
        attention_window=options.window,
        attention_sinks=SINKS,
        ablation="streaming_sinks",
        max_model_len=max(lengths),
    )
    meter = PerplexityMeter(config)
    tokens = meter.tokenizer.encode(read_text(options.text) if options.text else documentation())
    if len(tokens) < max(lengths):
        parser.error(f"--text has {len(tokens):,} tokens, and {max(lengths):,} are wanted; give a longer one")
    tokens = tokens[: max(lengths)]
    perplexities: list[float] = []
    print(f"{'tokens':>8} {'perplexity':>11}")
    for length in lengths:
        text = tokens[-length:]
        nats, places = 0.0, 0
        for start, logits in meter.logits(text, length - MEASURED - 1):
            successors = torch.tensor(text[start + 1 : start + 1 + len(logits)])
            nats += float(cross_entropy(logits.float(), successors, reduction="sum"))
            places += len(successors)
        perplexities.append(math.exp(nats / places))
        print(f"{length:>8} {perplexities[-1]:>11.3f}", flush=True)
    peaks = [meter.measure(tokens[:length]).kv_peak_bytes for length in (min(lengths), max(lengths))]
    print(
        f"blocks in use at most: {', '.join(f'{peak / 2**20:.1f}' for peak in peaks)} MiB with the shortest and longest"
    )
    bars = Bars()
    bars.add("largest_change_of_perplexity", max(abs(each / perplexities[0] - 1) for each in perplexities), "<=", 0.05)
    bars.add("cache_bytes_of_longest_over_shortest", peaks[1] / peaks[0], "<=", 1.02)
    bars.finish()


if __name__ == "__main__":
    main()
