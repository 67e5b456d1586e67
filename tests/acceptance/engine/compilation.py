"""Compiles the Triton kernels of attention and of quantised products for a GPU, without one.

    python -m tests.acceptance.engine.compilation [--capability 90]

The other tests run the kernels in Triton's interpreter, which checks no types, knows no inline assembly, and has as
much shared memory as a kernel asks for. This program calls the kernels as the engine does, with tensors on the CPU in
bfloat16; Triton compiles each launch with its own assembler, and launches nothing. The last line of the output is one
JSON object; the exit status is 0 if every kernel was compiled and fits into shared memory.
"""

# The tests, which start this program, set a variable that is read when Triton is imported.
import os

os.environ.pop("TRITON_INTERPRET", None)

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.errors import TritonError
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.attention.triton_backend import TritonAttention
from bakeoff.reference_engine.core.quantization_names import KvCacheDtypeName
from bakeoff.reference_engine.kernels import coded_products, grouped_products, paged_attention
from bakeoff.reference_engine.kernels.code_words import Words
from bakeoff.reference_engine.kernels.scoring import Scoring
from bakeoff.reference_engine.kv_cache.block_table import EVERYTHING, Visible, block_list
from bakeoff.reference_engine.kv_cache.layout import CacheLayout, LayerLayout
from bakeoff.reference_engine.kv_cache.quantised import store_maker
from bakeoff.reference_engine.kv_cache.storage import allocate_storage
from bakeoff.reference_engine.quantization import coded_linear
from bakeoff.reference_engine.quantization.coded_linear import CodedLinear
from bakeoff.reference_engine.quantization.methods import METHODS
from benchmarks.bars import Bars

CPU = torch.device("cpu")
SHARED_BYTES = 227 << 10  # that a program may have on a Hopper GPU
BATCHES: dict[str, Sequence[tuple[int, int]]] = {
    "decodes": [(40, 1)] * 9, "uneven decodes": [(5000, 1), (3, 1)], "short chunks": [(3000, 20), (0, 9)],
    "chunks": [(0, 200), (0, 150)],
}  # fmt: skip
LAYERS = {
    "128": LayerLayout(8, 128, 128, EVERYTHING), "80, window": LayerLayout(2, 80, 80, Visible(500, 4)),
    "256": LayerLayout(4, 256, 256, EVERYTHING),
}  # fmt: skip
KINDS: tuple[KvCacheDtypeName, ...] = ("auto", "int8", "fp8")
CODES = ("int4", "int4-zp", "int8", "nf4", "mxfp4")
ROWS = (1, 20, 50, 200)
EXPERTS, CHOICES = 8, 2

Case = tuple[str, Callable[[], object]]


def attention_cases() -> Iterator[Case]:
    for (name, layer), kind, is_invariant in itertools.product(LAYERS.items(), KINDS, (False, True)):
        storage = allocate_storage(
            CacheLayout((layer,)), num_blocks=[400], block_size=16, dtype=torch.bfloat16, device=CPU,
            make_store=store_maker(kind),
        )  # fmt: skip
        attention = TritonAttention(storage, batch_invariant=is_invariant)
        for batch, shape in BATCHES.items():
            spans = [Span([block_list(range(400))], *part) for part in shape]
            rows = torch.zeros(sum(length for _, length in shape), 6 * layer.num_kv_heads, layer.key_dim).bfloat16()
            query, key, value = rows.split([4 * layer.num_kv_heads, layer.num_kv_heads, layer.num_kv_heads], dim=1)
            step = attention.begin_step(spans)
            mode = ", batch-invariant" if is_invariant else ""
            for scoring in (Scoring(), Scoring(soft_cap=30.0)):
                capped = "" if scoring.soft_cap is None else ", soft cap"
                yield (
                    f"attention {name}, {kind}, {batch}{mode}{capped}",
                    lambda step=step, query=query, key=key, value=value, scoring=scoring: step.attend(
                        0, query, key, value, scoring
                    ),
                )


def product_cases() -> Iterator[Case]:
    for name, rows in itertools.product(CODES, ROWS):
        x = torch.zeros(rows, 512).bfloat16()
        yield (
            f"product, {name}, {rows} rows",
            lambda name=name, x=x: coded_products.multiply(x, words_of(name, 256), None),
        )
        groups = grouped_products.group(torch.zeros(rows * EXPERTS, CHOICES, dtype=torch.int64), range(EXPERTS))
        pairs, bias = torch.zeros(rows * EXPERTS, 512).bfloat16(), torch.zeros(EXPERTS, 256).bfloat16()
        yield (
            f"experts, {name}, {rows} rows each",
            lambda name=name, pairs=pairs, bias=bias, groups=groups: grouped_products.multiply_gathered(
                pairs, words_of(name, 256 * EXPERTS), bias, groups, batch_invariant=False
            ),
        )
    for rows, is_invariant in itertools.product((1, 20, 200), (False, True)):
        groups = grouped_products.group(torch.zeros(rows * EXPERTS, CHOICES, dtype=torch.int64), range(EXPERTS))
        pairs = torch.zeros(rows * EXPERTS * CHOICES, 512).bfloat16()
        weights = torch.zeros(EXPERTS, 256, 512).bfloat16()
        yield (
            f"experts, bf16, {rows} rows each" + (", batch-invariant" if is_invariant else ""),
            lambda pairs=pairs, weights=weights, groups=groups, is_invariant=is_invariant: (
                grouped_products.multiply_scattered(pairs, weights, None, groups, batch_invariant=is_invariant)
            ),
        )


def words_of(name: str, outputs: int) -> Words:
    matrix = METHODS[name].make(torch.randn(outputs, 512).bfloat16())
    assert matrix is not None
    linear = matrix.linear(None)
    assert isinstance(linear, CodedLinear)
    return linear.weight


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, default=90, help="of the GPU, 90 for Hopper (default: %(default)s)")
    options = parser.parse_args()
    target = GPUTarget("cuda", options.capability, 32)
    driver.set_active(
        SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda _: 0, get_current_target=lambda: target)
    )
    compile_launch, compiled = JITFunction.run, dict[str, int]()

    def launched(kernel: JITFunction[Any], *args: Any, **kwargs: Any) -> None:
        result = compile_launch(kernel, *args, **kwargs | {"warmup": True})
        compiled[result.hash] = result.metadata.shared

    def true(*_: object) -> bool:
        return True

    failures, began = 0, time.perf_counter()
    with (
        mock.patch.object(JITFunction, "run", launched),
        mock.patch.object(coded_linear, "has_triton", true),
        mock.patch.object(coded_products, "has_pairs", true),
        mock.patch.object(paged_attention, "has_pairs", true),
    ):
        for name, call in itertools.chain(attention_cases(), product_cases()):
            try:
                call()
            except (TritonError, RuntimeError) as error:
                failures += 1
                print(f"{name}: {error}", flush=True)
    seconds = time.perf_counter() - began
    print(f"{len(compiled)} kernels for {target.arch} in {seconds:.0f} s with Triton {triton.__version__}")
    bars = Bars()
    bars.add("compiled", len(compiled), ">=", 60)
    bars.add("failures", failures, "<=", 0)
    bars.add("most shared memory, KiB", max(compiled.values()) / 1024, "<=", SHARED_BYTES / 1024)
    bars.finish()


if __name__ == "__main__":
    main()
