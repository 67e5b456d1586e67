"""Products with quantised weights on the shapes of Llama 3.1 8B: against float64, then times, then other pipelines."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.gpu.parts.correctness import CUDA, error, random_rows
from benchmarks.gpu.parts.timing import CACHE_BYTES, LAYER_PRODUCTS, PEAK_GBS, PEAK_TFLOPS, graph_us, if_it_fits
from reference_engine.kernels import coded_products, small_products
from reference_engine.models.linear import make_linear
from reference_engine.quantization import fp8
from reference_engine.quantization.matrix import Linear, QuantisedMatrix
from reference_engine.quantization.methods import METHODS

NAMES = ("int4", "int4-zp", "int8", "fp8")
ROWS = (1, 8, 16, 32, 64, 128)
PIPELINES = [(warps, stages, splits) for warps in (2, 4) for stages in (2, 3, 4) for splits in (4, 8)]


def matrix_of(name: str, outputs: int, inputs: int) -> QuantisedMatrix:
    matrix = METHODS[name].make(random_rows(outputs, inputs) / 20)
    assert matrix is not None
    return matrix.to(CUDA, torch.bfloat16)


def errors() -> Iterator[tuple[str, float]]:
    """Of the linears that the engine chooses, for few and many rows; FP8 by activations that are rounded likewise."""
    for name, (outputs, inputs), biased in itertools.product(NAMES, ((4096, 1024), (192, 576)), (False, True)):
        matrix, bias = matrix_of(name, outputs, inputs), random_rows(outputs) if biased else None
        weight = matrix.dequantised().double()
        for rows, keeps_float32 in itertools.product((1, 7, 16, 33, 64, 65, 300), (False, True)):
            x = random_rows(rows, inputs)
            wide = x.double()
            if name == "fp8":
                codes, scales = coded_products.scaled_codes(x)
                wide = codes.double() * scales.double()
            exact = wide @ weight.T + (0.0 if bias is None else bias.double())
            yield f"{name} products", error(matrix.linear(bias, keeps_float32=keeps_float32)(x), exact)
    for columns in (4096, 14_336, 576):
        x = random_rows(5, columns)
        codes, scales = coded_products.scaled_codes(x)
        expected = fp8.quantised(x, fp8.E4M3)
        yield "fp8 codes", float((codes.float() != expected.codes.float()).float().mean())
        yield "fp8 scales", float((scales - expected.scales).abs().max() / expected.scales.max())


@functools.cache
def layer_products(name: str) -> dict[str, tuple[list[Linear], int]]:
    """For each product of a layer linears that do not fit into the L2 cache together, and the bytes of one weight."""
    products: dict[str, tuple[list[Linear], int]] = {}
    for shape, (outputs, inputs) in LAYER_PRODUCTS.items():
        matrix = matrix_of(name, outputs, inputs) if name in METHODS else random_rows(outputs, inputs)
        products[shape] = (
            [make_linear(copy_of(matrix)) for _ in range(int(CACHE_BYTES / matrix.nbytes) + 2)], matrix.nbytes,
        )  # fmt: skip
    return products


def copy_of(matrix: Any) -> Any:  # noqa: ANN401 (a tensor, or a data class of some method)
    """The same numbers elsewhere in memory."""
    if isinstance(matrix, torch.Tensor):
        return matrix.clone()
    return dataclasses.replace(matrix, codes=matrix.codes.clone())


def layer_us(name: str, rows: int) -> tuple[float, float]:
    """Microseconds of a layer's four products, and the bytes of their weights."""
    us = weight_bytes = 0.0
    for shape, (linears, nbytes) in layer_products(name).items():
        x = random_rows(rows, LAYER_PRODUCTS[shape][1])
        us += if_it_fits(functools.partial(graph_us, [functools.partial(linear, x) for linear in linears]))
        weight_bytes += nbytes
    return us, weight_bytes


def times() -> Iterator[tuple[str, float, float]]:
    """Name, µs of a layer's products, and share of the bandwidth, or of the peak of bf16 products."""
    flops = 2 * sum(outputs * inputs for outputs, inputs in LAYER_PRODUCTS.values())
    for name in ("bfloat16", *NAMES):
        for rows in ROWS:
            us, weight_bytes = layer_us(name, rows)
            yield f"a layer's products, {name}, {rows} rows", us, weight_bytes / us / 1e3 / PEAK_GBS
        us, _ = layer_us(name, 8192)
        yield f"a layer's products, {name}, 8192 rows", us, 8192 * flops / us / 1e6 / PEAK_TFLOPS
        layer_products.cache_clear()


def sweep(
    names: Sequence[str] = ("int4",), numbers: Sequence[int] = (1, 16, 32, 64)
) -> Iterator[tuple[str, float, float]]:
    """The fastest of other warps, stages and splits for each number of rows; infinitely slow where they do not fit."""
    chosen = {module: dict(vars(module)) for module in (coded_products, small_products)}
    for name, rows in itertools.product(names, numbers):
        measured: list[tuple[float, float, tuple[int, ...]]] = []
        for warps, stages, splits in PIPELINES:
            vars(coded_products).update(_SHAPES={64: (warps, stages)})
            vars(small_products).update(_SPLITS=splits)
            us, weight_bytes = layer_us(name, rows)
            measured.append((us, weight_bytes / us / 1e3 / PEAK_GBS, (warps, stages, splits)))
        for us, share, pipeline in sorted(measured)[:4]:
            yield f"a layer's products, {name}, {rows} rows, {'x'.join(map(str, pipeline))}", us, share
    for module, values in chosen.items():
        vars(module).update(values)
