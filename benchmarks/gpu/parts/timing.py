"""Times of kernels and whole steps on the shapes of Llama 3.1 8B in bf16, on the device and on the host."""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from triton.runtime.errors import OutOfResources

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.attention.triton_backend import TritonAttention, TritonStep
from bakeoff.reference_engine.core.quantization_names import KvCacheDtypeName
from bakeoff.reference_engine.engine.graph_execution import GraphExecutor
from bakeoff.reference_engine.kernels import paged_attention
from bakeoff.reference_engine.kernels.cuda import CudaKernels
from bakeoff.reference_engine.kernels.small_products import multiply
from bakeoff.reference_engine.kv_cache.block_table import EVERYTHING
from bakeoff.reference_engine.kv_cache.layout import CacheLayout, LayerLayout
from bakeoff.reference_engine.kv_cache.quantised import store_maker
from bakeoff.reference_engine.kv_cache.storage import allocate_storage
from bakeoff.reference_engine.models import linear
from bakeoff.reference_engine.models.execution import Batch
from benchmarks.gpu.parts.model import BLOCK_SIZE, LLAMA_8B, batch_of, random_model, storage_for, tables_for

PEAK_GBS, PEAK_TFLOPS = 4300, 680  # of an H200: copies; matrix products at the power limit
CACHE_BYTES = 200 << 20  # more than the L2 cache: calls in turn read different data
HEADS, KV_HEADS, DIM = LLAMA_8B.num_attention_heads, LLAMA_8B.num_key_value_heads, LLAMA_8B.head_dim
HIDDEN, INNER, VOCAB = LLAMA_8B.hidden_size, LLAMA_8B.intermediate_size, LLAMA_8B.vocab_size
LAYER_PRODUCTS = {
    "qkv": ((HEADS + 2 * KV_HEADS) * DIM, HIDDEN), "out": (HIDDEN, HEADS * DIM), "gate_up": (2 * INNER, HIDDEN),
    "down": (HIDDEN, INNER),
}  # fmt: skip
"""Outputs and inputs of each."""
LAYER_WEIGHTS = HIDDEN * (2 * HIDDEN + 2 * KV_HEADS * DIM + 3 * INNER)
WEIGHT_BYTES = 2 * (LLAMA_8B.num_hidden_layers * LAYER_WEIGHTS + VOCAB * HIDDEN)
KV_BYTES = 2 * 2 * KV_HEADS * DIM  # of a token in a layer


def graph_us(calls: Sequence[Callable[[], object]], repeats: int = 5) -> float:
    """Median microseconds of one call; all are captured in one graph, one after the other."""
    for call in calls:
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = [call() for call in calls]  # kept, so that each call has memory of its own
    times: list[float] = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    del outputs
    return statistics.median(times)


def rotated(make: Callable[[], Callable[[], object]], call_bytes: float) -> list[Callable[[], object]]:
    """Calls on different data, which with few rows stays in the L2 cache, as it does in a step."""
    return [make() for _ in range(max(10, min(200, int(CACHE_BYTES / call_bytes) + 1)))]


def row_kernels() -> Iterator[tuple[str, float, float]]:
    """Name, µs and share of the bandwidth of each operation."""
    kernels = CudaKernels()

    def rows(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype)

    def norm(count: int) -> Callable[[], object]:
        residual, x, weight = rows(count, HIDDEN), rows(count, HIDDEN), rows(HIDDEN)
        return lambda: kernels.add_rms_norm(residual, x, weight, 1e-5)

    def activation(count: int) -> Callable[[], object]:
        gates = rows(count, 2 * INNER)
        return lambda: kernels.silu_mul(gates)

    def rope(count: int) -> Callable[[], object]:
        heads, cos, sin = rows(count, HEADS + 2 * KV_HEADS, DIM), rows(count, 1, DIM), rows(count, 1, DIM)
        return lambda: kernels.apply_rope(heads[:, : HEADS + KV_HEADS], cos, sin)

    def store(count: int) -> Callable[[], object]:
        keys, values = rows(count, BLOCK_SIZE, KV_HEADS, DIM), rows(count, BLOCK_SIZE, KV_HEADS, DIM)
        key, value = rows(count, KV_HEADS, DIM), rows(count, KV_HEADS, DIM)
        slots = (torch.randperm(count * BLOCK_SIZE, device="cuda")[:count]).int()
        return lambda: paged_attention.store_tokens(keys, values, key, value, slots)

    def argmax(count: int) -> Callable[[], object]:
        scores = rows(count, VOCAB, dtype=torch.float32)
        return lambda: kernels.argmax(scores)

    makers = {
        "add_rms_norm": (norm, 8 * HIDDEN), "silu_mul": (activation, 6 * INNER), "argmax": (argmax, 4 * VOCAB),
        "apply_rope": (rope, 4 * (HEADS + KV_HEADS) * DIM), "store_tokens": (store, 2 * KV_BYTES),
    }  # fmt: skip
    for name, (make, row_bytes) in makers.items():
        for count in (1, 64, 256) if name == "argmax" else (1, 64, 256, 8192):
            us = graph_us(rotated(lambda count=count, make=make: make(count), count * row_bytes))
            yield f"{name} {count}", us, count * row_bytes / us / 1e3 / PEAK_GBS


def products() -> Iterator[tuple[str, float, float]]:
    """The products of a layer and of the head for few rows, with cuBLAS and with the kernels of this project."""
    for name, (outputs, inputs) in {**LAYER_PRODUCTS, "head": (VOCAB, HIDDEN)}.items():
        weight_bytes = 2 * outputs * inputs
        weights = [
            torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16)
            for _ in range(int(CACHE_BYTES / weight_bytes) + 2)
        ]
        for rows in (1, 8, 16, 32, 64):
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            dtype = torch.float32 if name == "head" else torch.bfloat16
            library = linear.FloatLinear if name == "head" else lambda weight: linear.PlainLinear(weight, None)
            library_us = graph_us([functools.partial(library(weight), x) for weight in weights] * 4)
            kernel_us = graph_us([functools.partial(multiply, x, weight, None, dtype) for weight in weights] * 4)
            yield f"{name} {rows}, cuBLAS", library_us, weight_bytes / library_us / 1e3 / PEAK_GBS
            yield f"{name} {rows}, Triton", kernel_us, weight_bytes / kernel_us / 1e3 / PEAK_GBS


def decode_us(contexts: Sequence[int], kind: KvCacheDtypeName = "auto") -> float:
    """Microseconds of one layer's attention for one new token of each sequence."""
    layers = max(1, min(256, int(CACHE_BYTES / (sum(contexts) * KV_BYTES)) + 1))
    step, query = attention_step([(context - 1, 1) for context in contexts], layers, kind)
    return graph_us([lambda layer=layer: step.attend(layer, query, None, None) for layer in range(layers)] * 2)


def uneven_lengths(batch: int) -> list[int]:
    """Sequences as in chat: quantiles of a log-normal distribution with median 835 and sigma 0.7, longest first."""
    normal = statistics.NormalDist()
    return [round(835 * math.exp(0.7 * normal.inv_cdf((i + 0.5) / batch))) for i in reversed(range(batch))]


def chunk_us(shape: list[tuple[int, int]], kind: KvCacheDtypeName = "auto", *, is_fresh: bool = False) -> float:
    """Microseconds of one layer's attention for chunks; with fresh keys and values if `is_fresh`."""
    step, query = attention_step(shape, 4, kind)
    cached = torch.randn(len(query), 2, KV_HEADS, DIM, device="cuda", dtype=torch.bfloat16)
    key, value = (cached[:, 0], cached[:, 1]) if is_fresh else (None, None)
    return graph_us([lambda layer=layer: step.attend(layer, query, key, value) for layer in range(4)])


def attention_step(
    shape: list[tuple[int, int]], layers: int, kind: KvCacheDtypeName = "auto"
) -> tuple[TritonStep, torch.Tensor]:
    layout = CacheLayout((LayerLayout(KV_HEADS, DIM, DIM, EVERYTHING),) * layers)
    longest = max(start + length for start, length in shape)
    tables = tables_for(len(shape), longest)
    blocks = [len(shape) * -(-longest // BLOCK_SIZE)]
    device = torch.device("cuda")
    storage = allocate_storage(
        layout,
        num_blocks=blocks,
        block_size=BLOCK_SIZE,
        dtype=torch.bfloat16,
        device=device,
        make_store=store_maker(kind),
    )
    spans = [Span([table], *part) for table, part in zip(tables, shape, strict=True)]
    tokens = sum(length for _, length in shape)
    query = torch.randn(tokens, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
    step = TritonAttention(storage).begin_step(spans)
    step.attend(0, query, None, None)  # stages the tiles, which is not allowed during a capture
    return step, query


def attention_kernels() -> Iterator[tuple[str, float, float]]:
    """Decodes with their share of the bandwidth, chunks with their share of the peak of matrix products."""
    shapes = (
        (1, 256), (1, 1024), (1, 8192), (1, 32768), (8, 256), (8, 1024), (8, 8192), (64, 1024), (64, 8192), (256, 1024),
    )  # fmt: skip
    batches = {f"{batch} x {context}": [context] * batch for batch, context in shapes}
    batches |= {f"{batch} of uneven lengths": uneven_lengths(batch) for batch in (8, 32, 64, 256)}
    for name, contexts in batches.items():
        us = decode_us(contexts)
        yield f"decode {name}", us, sum(contexts) * KV_BYTES / us / 1e3 / PEAK_GBS
    for kind, batch, context in itertools.product(("int8", "fp8"), (8, 64), (1024, 8192)):
        us = decode_us([context] * batch, kind)
        kv_bytes = KV_BYTES / 2 + 4 * KV_HEADS
        yield f"decode {batch} x {context}, {kind}", us, batch * context * kv_bytes / us / 1e3 / PEAK_GBS
    for name, shape, is_fresh, *kinds in (
        ("chunk 250 from 0", [(0, 250)], False),
        ("chunk 512 from 0", [(0, 512)], False, "int8", "fp8"),
        ("chunk 800 from 0", [(0, 800)], False),
        ("chunk 8 x 512 from 0", [(0, 512)] * 8, False),
        ("chunk 2048 from 0", [(0, 2048)], False),
        ("whole 2048", [(0, 2048)], True),
        ("whole 8 x 1024", [(0, 1024)] * 8, True),
        ("whole 8192", [(0, 8192)], True, "int8", "fp8"),
        ("chunk 2048 behind 8192", [(8192, 2048)], False, "int8", "fp8"),
        ("whole 2048 behind 8192", [(8192, 2048)], True, "int8", "fp8"),
        ("chunk 64 behind 1024, 16 times", [(1024, 64)] * 16, False),
        ("chunk 64 behind 2048", [(2048, 64)], False),
        ("chunk 16 behind 16384", [(16_384, 16)], False),
        ("chunk 256 behind 16384", [(16_384, 256)], False),
    ):
        pairs = sum(length * start + length * (length + 1) / 2 for start, length in shape)
        for kind in ("auto", *kinds):
            us = chunk_us(shape, kind, is_fresh=is_fresh)
            label = name if kind == "auto" else f"{name}, {kind}"
            yield label, us, 4 * HEADS * DIM * pairs / us / 1e6 / PEAK_TFLOPS


def sweep() -> Iterator[tuple[str, float, float]]:
    """Other pipeline depths and tiles than the chosen ones; infinitely slow where shared memory is too small."""
    names = ("_DECODE_STAGES", "_PROGRAMS", "_CHUNK_STAGES", "_CHUNK_ROWS", "_MAX_KEYS", "_KEY_TILE_BYTES")
    chosen = {name: getattr(paged_attention, name) for name in names}
    batches = {
        f"{batch} x {context}": [context] * batch for batch, context in ((1, 1024), (1, 32768), (8, 1024), (64, 1024))
    }
    batches |= {f"{batch} of uneven lengths": uneven_lengths(batch) for batch in (8, 32, 64)}
    for stages, programs in itertools.product((4, 5, 7), (264, 396, 528)):
        vars(paged_attention).update(_DECODE_STAGES=stages, _PROGRAMS=programs)
        for name, contexts in batches.items():
            us = if_it_fits(functools.partial(decode_us, contexts))
            share = sum(contexts) * KV_BYTES / us / 1e3 / PEAK_GBS
            yield f"decode {name}, {stages} stages, {programs} programs", us, share
    vars(paged_attention).update(chosen)
    for stages, rows, keys in itertools.product((3, 5), (64, 128), (64, 128)):
        tile = {"_MAX_KEYS": keys, "_KEY_TILE_BYTES": 2 * DIM * keys}
        vars(paged_attention).update(tile, _CHUNK_STAGES=stages, _CHUNK_ROWS=rows)
        us = if_it_fits(functools.partial(chunk_us, [(8192, 2048)]))
        share = 4 * HEADS * DIM * 2048 * (8192 + 1024) / us / 1e6 / PEAK_TFLOPS
        yield f"chunk 2048 behind 8192, {stages} stages, {rows} rows, {keys} keys", us, share
    vars(paged_attention).update(chosen)


def if_it_fits(measure: Callable[[], float]) -> float:
    try:
        return measure()
    except OutOfResources:
        return float("inf")


def decode_step(executor: GraphExecutor, count: int, context: int) -> list[tuple[str, float, float]]:
    """Times of a decode step for `count` sequences, and of its host part."""
    device_ms, host_ms = step_ms(
        executor, batch_of(tables_for(count, context), [(context - 1, 1)] * count, [7] * count)
    )
    floor_bytes = WEIGHT_BYTES + LLAMA_8B.num_hidden_layers * count * context * KV_BYTES
    name = f"{count} x {context}"
    return [
        (f"decode step {name}", device_ms, floor_bytes / device_ms / 1e6 / PEAK_GBS),
        (f"  its host part {name}", host_ms, 0.0),
    ]


def steps() -> Iterator[tuple[str, float, float]]:
    """Whole steps: name, GPU ms (or s for the capture), share of the bandwidth or of the peak of matrix products."""
    model = random_model(LLAMA_8B)
    storage = storage_for(LLAMA_8B, 256 * 1152 // BLOCK_SIZE)
    began = time.perf_counter()
    executor = GraphExecutor(
        model, TritonAttention(storage), max_rows=256, max_tokens=LLAMA_8B.max_position_embeddings, has_prompts=False
    )
    torch.cuda.synchronize()
    yield "capture of all graphs, s", time.perf_counter() - began, 0.0
    for count, context in ((1, 256), (1, 1024), (8, 256), (16, 1024), (32, 1152), (64, 1152), (128, 1152), (256, 1088)):
        yield from decode_step(executor, count, context)
    for shape in ([(0, 2048)], [(0, 1024)] * 8, [(0, 8192)], [(6144, 2048)], [(1024, 1)] * 64 + [(0, 448)]):
        tokens = sum(length for _, length in shape)
        tables = tables_for(len(shape), max(start + length for start, length in shape))
        device_ms, host_ms = step_ms(executor, batch_of(tables, shape, [7] * tokens), repeats=5)
        share = (WEIGHT_BYTES - 2 * VOCAB * HIDDEN) * tokens / device_ms / 1e9 / PEAK_TFLOPS
        name = f"{len(shape)} spans, {tokens} tokens from {shape[0][0]}"
        yield f"prefill step {name}", device_ms, share
        yield f"  its host part {name}", host_ms, 0.0


def step_ms(executor: GraphExecutor, batch: Batch, repeats: int = 20) -> tuple[float, float]:
    """Milliseconds of a step in a row of steps, and of the call on the host alone."""
    argmax = CudaKernels().argmax

    def run() -> float:
        began = time.perf_counter()
        logits = executor.execute(batch)
        if logits is not None:
            argmax(logits)
        return time.perf_counter() - began

    with torch.inference_mode():
        run()
        torch.cuda.synchronize()
        host_s = run()  # the queue is empty: nothing makes it wait
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3 / repeats, host_s * 1e3
