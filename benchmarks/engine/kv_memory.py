"""The memory that each way to reduce the KV cache saves, and its cost in perplexity.

The text is this project's README.md and docs/*.md, in independent pieces, computed through the cache 32 tokens at a
time. The papers report, for larger models: less than 0.1 more perplexity with 3 bits and keys quantised by channel
(KVQuant, arXiv:2401.18079); four sinks reduce a window's perplexity from 5158 to 5.40 (StreamingLLM, arXiv:2309.17453,
Llama-2-13B); a fifth of the cache is about as good as all of it (H2O, arXiv:2306.14048).
"""

import argparse
from pathlib import Path
from typing import Any

from bakeoff.reference_engine.ablations.heavy_hitter import Census
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.tools.evaluator import Perplexity, PerplexityMeter
from benchmarks.bars import Bars, model_argument
from benchmarks.engine.prompts import text

ROOT = Path(__file__).parents[2]


def settings(budget: int) -> dict[str, dict[str, Any]]:
    """Engine settings by name; those that drop tokens keep `budget` of them."""
    return {
        "bf16": {},
        "int8": {"kv_cache_dtype": "int8"},
        "fp8": {"kv_cache_dtype": "fp8"},
        "int4": {"kv_cache_dtype": "int4"},
        f"latest {budget}": {"attention_window": budget},
        f"latest {budget - 4}, 4 sinks": {"attention_window": budget - 4, "attention_sinks": 4},
        f"H2O, {budget}, half heavy": {"ablation": f"heavy_hitter:{budget}:{budget // 2}"},
        "sinks and int8": {"attention_window": budget - 4, "attention_sinks": 4, "kv_cache_dtype": "int8"},
    }


def table_line(name: str, result: Perplexity, base: Perplexity) -> str:
    peak = result.census.compact_bytes if result.census else result.kv_peak_bytes
    return (
        f"{name:<22} {result.kv_bytes_per_token:>11} {result.kv_bytes_per_token / base.kv_bytes_per_token:>7.3f} "
        f"{peak / 2**20:>10.1f}{'*' if result.census else ' '} {result.perplexity:>10.4f} "
        f"{result.perplexity / base.perplexity - 1:>+8.2%}"
    )


def census_line(census: Census) -> str:
    """What a budget kept of the first piece."""
    return (
        f"peak if only the kept {census.kept_share:.0%} of the tokens took memory; the blocks take "
        f"{census.bytes / 2**20:.1f} MiB, {census.dead_in_layer_share:.0%} of them hold no kept token of their layer, "
        f"{sum(census.dead_blocks)} hold none of any layer"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    parser.add_argument("--tokens", type=int, default=8192, help="of the text")
    parser.add_argument("--piece", type=int, default=2048, help="tokens that see each other")
    parser.add_argument("--budget", type=int, default=512, help="tokens that windows and budgets keep")
    parser.add_argument("--threads", type=int, default=1, help="more only where nothing else runs")
    options = parser.parse_args()
    print(f"{'cache':<22} {'bytes/token':>11} {'of bf16':>7} {'peak MiB':>11} {'perplexity':>10} {'change':>8}")
    results: dict[str, Perplexity] = {}
    for name, changes in settings(options.budget).items():
        meter = PerplexityMeter(
            EngineConfig(
                model=options.model, dtype="bfloat16", device="cpu", max_model_len=options.piece,
                threads=options.threads, max_num_seqs=1, enable_prefix_caching=False, **changes,
            )
        )  # fmt: skip
        result = results[name] = meter.measure(meter.tokenizer.encode(text())[: options.tokens])
        print(table_line(name, result, results["bf16"]), flush=True)
        if result.census:
            print(f"  * {census_line(result.census)}")
    base, int8 = results["bf16"], results["int8"]
    window, sinks = (results[name] for name in results if name.startswith("latest"))
    bars = Bars()
    bars.add("int8_bytes_over_bf16", int8.kv_bytes_per_token / base.kv_bytes_per_token, "<=", 0.55)
    bars.add("int8_perplexity_change", abs(int8.perplexity / base.perplexity - 1), "<=", 0.01)
    bars.add("window_peak_bytes_over_bf16", sinks.kv_peak_bytes / base.kv_peak_bytes, "<=", 0.35)
    bars.add("sinks_perplexity_over_window", sinks.perplexity / window.perplexity, "<=", 1.0)
    bars.finish()


if __name__ == "__main__":
    main()
