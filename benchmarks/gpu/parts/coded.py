"""Products with quantised weights on the shapes of Llama 3.1 8B: against float64, then times, then other tiles."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu.parts.correctness import error, random_rows
from benchmarks.gpu.parts.timing import (
    CACHE_BYTES, DIM, HEADS, HIDDEN, INNER, KV_HEADS, PEAK_GBS, PEAK_TFLOPS, graph_us, if_it_fits,
)  # fmt: skip
from reference_engine.kernels import coded_products
from reference_engine.quantization import fp8
from reference_engine.quantization.matrix import QuantisedMatrix
from reference_engine.quantization.methods import METHODS

SHAPES = {
    "qkv": ((HEADS + 2 * KV_HEADS) * DIM, HIDDEN), "out": (HIDDEN, HEADS * DIM), "gate_up": (2 * INNER, HIDDEN),
    "down": (HIDDEN, INNER),
}  # fmt: skip
NAMES = ("int4", "int4-zp", "int8", "fp8")
ROWS = (1, 8, 16, 32, 64, 128)
TILE = ("_TILE_OUTPUTS", "_STEP", "_STAGES", "_WARPS", "_PROGRAMS")
TILES = [
    (64, 128, 4, 4, 264), (64, 128, 6, 4, 264), (64, 128, 3, 4, 528), (64, 256, 3, 4, 264), (128, 128, 4, 4, 264),
    (128, 128, 4, 8, 264), (128, 256, 3, 8, 264), (64, 128, 4, 4, 528),
]  # fmt: skip


def matrix_of(name: str, outputs: int, inputs: int) -> QuantisedMatrix:
    matrix = METHODS[name].make(random_rows(outputs, inputs) / 20)
    assert matrix is not None
    return matrix


def errors() -> Iterator[tuple[str, float]]:
    """Of the linears that the engine chooses, for few and many rows; FP8 activations within their rounding."""
    for name, (outputs, inputs), bias in itertools.product(
        NAMES, ((4096, 1024), (192, 576)), (None, random_rows(4096))
    ):
        matrix = matrix_of(name, outputs, inputs)
        weight, bias = matrix.dequantised().double(), None if bias is None else bias[:outputs]
        for rows, keeps_float32 in itertools.product((1, 7, 16, 33, 64, 65, 300), (False, True)):
            x = random_rows(rows, inputs)
            exact = x.double() @ weight.T + (0.0 if bias is None else bias.double())
            result = matrix.linear(bias, keeps_float32=keeps_float32)(x)
            rounds = name == "fp8" and rows > coded_products.MAX_ROWS
            yield f"{name} products{', activations too' if rounds else ''}", error(result, exact)
    for columns in (4096, 14_336, 576):
        x = random_rows(5, columns)
        codes, scales = coded_products.scaled_codes(x)
        expected = fp8.quantised(x, fp8.E4M3)
        yield "fp8 codes", float((codes.float() != expected.codes.float()).float().mean())
        yield "fp8 scales", float((scales - expected.scales).abs().max() / expected.scales.max())


def layer_us(name: str, rows: int) -> tuple[float, float]:
    """Microseconds of a layer's four products by codes, and their bytes."""
    us = weight_bytes = 0.0
    for outputs, inputs in SHAPES.values():
        matrix = matrix_of(name, outputs, inputs)
        weight_bytes += matrix.nbytes
        calls: list[Callable[[], object]] = []
        x = random_rows(rows, inputs)
        for _ in range(int(CACHE_BYTES / matrix.nbytes) + 2):
            calls.append(functools.partial(matrix_copy(matrix).linear(None), x))
        us += if_it_fits(functools.partial(graph_us, calls))
    return us, weight_bytes


def matrix_copy(matrix: Any) -> QuantisedMatrix:  # noqa: ANN401 (a data class of some method)
    """The same codes elsewhere in memory."""
    return dataclasses.replace(matrix, codes=matrix.codes.clone())


def times() -> Iterator[tuple[str, float, float]]:
    """Name, µs of a layer's products, and share of the bandwidth, or of the peak of bf16 products."""
    flops = 2 * sum(outputs * inputs for outputs, inputs in SHAPES.values())
    for name in NAMES:
        for rows in ROWS:
            us, weight_bytes = layer_us(name, rows)
            yield f"a layer's products, {name}, {rows} rows", us, weight_bytes / us / 1e3 / PEAK_GBS
        us, _ = layer_us(name, 8192)
        yield f"a layer's products, {name}, 8192 rows", us, 8192 * flops / us / 1e6 / PEAK_TFLOPS


def sweep() -> Iterator[tuple[str, float, float]]:
    """Other tiles; infinitely slow where shared memory or registers are too small."""
    chosen = {name: getattr(coded_products, name) for name in (*TILE, "MAX_ROWS")}
    coded_products.MAX_ROWS = max(ROWS)
    for name, rows in itertools.product(("int4", "fp8"), ROWS):
        for tile in TILES:
            vars(coded_products).update(zip(TILE, tile, strict=True))
            us, weight_bytes = layer_us(name, rows)
            share = weight_bytes / us / 1e3 / PEAK_GBS
            yield f"a layer's products, {name}, {rows} rows, {'x'.join(map(str, tile))}", us, share
    vars(coded_products).update(chosen)
