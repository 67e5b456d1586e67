"""The reference engine's kernels on a GPU: correctness and speed. Run by ``make bench-gpu`` on a machine with an H200.

Needs torch, triton, numpy, msgspec and llguidance, and no files. Correctness: every kernel in bf16 against float64,
over caches that hold NaN wherever nothing visible was written, and greedy decoding with CUDA graphs against stock torch
attention. Times: medians of graph replays on random data that does not fit into the L2 cache; the share is of 4.3 TB/s,
or of 680 TFLOP/s for chunks and prefill. Quantised weights: the products that the engine chooses. Sampling is checked
against the sampler on the host and must never wait for the device. Batch invariance: tokens of requests alone and in a
batch, which must be equal, and the speed of that mode beside the default's; this part needs the other packages of the
engine, too. Experts: beside torch's grouped products. ``--sweep`` tries other tile shapes, ``--only`` runs one part.
"""

import argparse
import time
from collections.abc import Iterable
from pathlib import Path

import torch

from benchmarks.bars import Bars
from benchmarks.gpu.parts import coded, correctness, experts, sampling, timing

BOUNDS = {
    "argmax": 0, "replace_pending": 0, "graph tokens": 0, "sums without experts": 0, "float32 logits": 1e-4,
    "graph logits torch.float32": 1e-3,
    "graph logits torch.bfloat16": 0.1,  # each layer adds roundings
    "attention behind a long past, auto": 1.5e-2,  # the results of its pieces are rounded to bf16
    # Keys and values of long chunks are rounded to bf16 once more.
    **dict.fromkeys(("attention 7, int8, long", "attention 8, fp8, long"), 3e-2),
    **{f"attention behind a long past, {kind}": 4e-2 for kind in ("int8", "fp8")},
    "sampled tokens": 0, "sampling waits": 0,
    **{f"{name} products, largest": 3e-2 for name in coded.NAMES},  # of millions of elements of rounded weights
}  # fmt: skip
STEP_GOALS_MS = {"decode step 1 x 256": 4.7, "decode step 64 x 1152": 7.3, "decode step 256 x 1088": 16.0}
SHARE_GOALS = {
    "decode 64 x 1024": 0.85, "decode 64 x 8192": 0.9, "decode 64 x 1024, fp8": 0.55, "decode 64 x 8192, int8": 0.7,
    "chunk 2048 behind 8192": 0.4,
}  # fmt: skip


def show(title: str, unit: str, lines: Iterable[tuple[str, float, float]]) -> dict[str, tuple[float, float]]:
    """Print the lines as they come; returns them by name."""
    print(f"\n{title:<56}{unit:>10}  share")
    results: dict[str, tuple[float, float]] = {}
    for name, duration, share in lines:
        results[name] = duration, share
        print(f"{name:<56}{duration:>10.3f}  {share:>5.0%}" if share else f"{name:<56}{duration:>10.3f}", flush=True)
    return results


@torch.inference_mode()
def check(bars: Bars, *sources: Iterable[tuple[str, float]]) -> None:
    began, worst = time.perf_counter(), dict[str, float]()
    for source in sources:
        for name, error in source:
            worst[name] = max(error, worst.get(name, 0.0))
    over: list[str] = []
    for name, error in worst.items():
        bound = BOUNDS.get(name, 1e-2)
        bars.add(name, error, "<=", bound)
        over += [f"{name} {error:.4g}"] if error > bound else []
    seconds = time.perf_counter() - began
    # Printed now, so that a run that is interrupted during the timing shows it.
    print(f"correctness: {seconds:.0f} s, compilation included; too large: {', '.join(over) or 'none'}", flush=True)


def check_invariance(bars: Bars, model: Path | None, *, sweep: bool) -> None:
    from benchmarks.gpu.parts import invariance  # noqa: PLC0415  (needs more packages than the others)

    check(bars, invariance.product_differences())
    if sweep:
        with torch.inference_mode():
            show("invariant products with other tiles", "us", invariance.sweep())
    torch.cuda.empty_cache()
    check(bars, invariance.token_differences(model))
    show("8 layers of Llama 3.1 8B, batch-invariant", "tok/s", invariance.costs())


@torch.inference_mode()
def check_coded_times(bars: Bars, *, sweep: bool) -> None:
    layer_times = coded.times()
    print("", *coded.table(layer_times), sep="\n", flush=True)
    for name, value, bound in coded.goals(layer_times):
        bars.add(name, value, "<=", bound)
    if sweep:
        show("quantised weights with other pipelines", "us", coded.sweep())
    torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true", help="try other pipeline depths and tiles")
    parser.add_argument(
        "--only", choices=["correctness", "times", "coded", "experts", "sampling", "invariance"], help="one part"
    )
    parser.add_argument("--model", type=Path, help="a checkpoint for batch invariance; default: small random models")
    options = parser.parse_args()
    bars = Bars()
    torch.manual_seed(0)
    if options.only in {None, "correctness"}:
        check(
            bars,
            correctness.rows_errors(),
            correctness.attention_errors(),
            experts.errors(),
            correctness.graph_errors(torch.float32),
            correctness.graph_errors(torch.bfloat16),
        )
    if options.only in {None, "coded"}:
        check(bars, coded.errors())
        check_coded_times(bars, sweep=options.sweep)
    if options.only in {None, "experts"}:
        check(bars, experts.errors())
        with torch.inference_mode():
            show("experts of a layer", "us", experts.times())
    if options.only in {None, "sampling"}:
        check(bars, sampling.errors())
        with torch.inference_mode():
            show("sampling", "us", sampling.times())
    if options.only in {None, "invariance"}:
        check_invariance(bars, options.model, sweep=options.sweep)
    if options.only in {None, "times"}:
        with torch.inference_mode():
            show("operation, rows", "us", timing.row_kernels())
            show("product, rows", "us", timing.products())
            attention = show("attention of a layer", "us", timing.attention_kernels())
            if options.sweep:
                show("attention with other tiles", "us", timing.sweep())
        torch.cuda.empty_cache()
        step_times = show("Llama 3.1 8B", "ms", timing.steps())
        for name, goal in STEP_GOALS_MS.items():
            bars.add(f"{name}, ms", step_times[name][0], "<=", goal)
        for name, goal in SHARE_GOALS.items():
            bars.add(f"{name}, share", attention[name][1], ">=", goal)
    bars.finish()


if __name__ == "__main__":
    main()
