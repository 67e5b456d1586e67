"""Products with quantised weights on the shapes of Llama 3.1 8B: errors against float64, times, other pipelines.

Each layout is timed as the engine multiplies it, by codes, and by plain numbers that are dequantised for cuBLAS at each
call. `coded_products.MAX_ROWS` is the number of rows up to which codes are faster.
"""

import contextlib
import dataclasses
import functools
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import torch
from triton.errors import TritonError
from triton.runtime.errors import OutOfResources

from bakeoff.reference_engine.kernels import coded_products, row_codes
from bakeoff.reference_engine.kernels.blocks import FORMATS
from bakeoff.reference_engine.models.linear import make_linear
from bakeoff.reference_engine.quantization import fp8
from bakeoff.reference_engine.quantization.blocks import BlockMatrix
from bakeoff.reference_engine.quantization.coded_linear import CodedLinear
from bakeoff.reference_engine.quantization.matrix import Linear, QuantisedMatrix, SlabLinear
from bakeoff.reference_engine.quantization.methods import METHODS
from benchmarks.gpu.parts.correctness import CUDA, error, random_rows
from benchmarks.gpu.parts.timing import CACHE_BYTES, LAYER_PRODUCTS, LAYER_WEIGHTS, PEAK_GBS, graph_us, if_it_fits

TIMED = ("int4", "int4-zp", "int8", "fp8", "nf4", "mxfp4", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0")
"""Without layouts that the kernels treat like one of these."""
NAMES = tuple(dict.fromkeys((*TIMED, "nf4-double", *FORMATS)))
ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 2048, 8192)
MANY_ROWS = tuple(rows for rows in (*ROWS, 1024) if rows > 64)
CODES, PLAIN, MAKING, STOCK = " by codes", " by plain numbers", ", making plain numbers", " with stock torch"
"""Kinds of products: the two that the engine chooses from, the first part of the second, and that without a kernel."""
OVER_BFLOAT16 = {"int4": 0.55, "int4-zp": 0.6, "nf4": 0.8, "mxfp4": 0.8, "Q4_0": 0.65, "Q4_K": 0.8, "int8": 0.75}
"""Goals for one row: time over that of bfloat16."""
OVER_BEST = 1.05
"""Goal for the engine's choice: time over that of the faster kind."""
SWEPT = {
    16: [(64, 2, 3), (64, 2, 4), (64, 2, 5), (64, 4, 4), (128, 4, 3)],
    32: [(64, 4, 3), (64, 4, 4), (64, 2, 3), (128, 8, 3)],
    64: [(64, 4, 2), (64, 4, 3), (128, 8, 2), (128, 8, 3), (128, 4, 3)],
    128: [(64, 4, 2), (64, 4, 3), (128, 8, 2), (128, 8, 3)],
}
"""Candidates for `coded_products.SHAPES`."""
SWEPT_ROWS = {1: 16, 16: 16, 32: 32, 64: 64, 128: 128, 512: 128}
"""Numbers of rows that candidates are measured with, and the tile for each."""
SWEPT_NAMES = ("int4", "nf4", "Q4_K", "int8")
_HALVES = {"Q6_K": (208,), "Q3_K": (108,), "Q2_K": (80, 82), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}
"""Offsets of the float16 numbers in a block; the other layouts have two at the beginning."""


def matrix_of(name: str, outputs: int, inputs: int) -> QuantisedMatrix:
    """Random weights of about 0.05; in blocks, all bits but those of the scales are random."""
    if name not in FORMATS:
        matrix = METHODS[name].make(random_rows(outputs, inputs) / 20)
        assert matrix is not None
        return matrix.to(CUDA, torch.bfloat16)
    layout = FORMATS[name]
    shape = (outputs, inputs // layout.elements, layout.bytes)
    blocks = torch.randint(0, 256, shape, dtype=torch.uint8, device=CUDA)
    for place in _HALVES.get(name, (0, 2)):
        scales = torch.randn(*shape[:2], 1, device=CUDA) / (20 << layout.bits) / (32 if name.endswith("_K") else 1)
        blocks[..., place : place + 2] = scales.half().view(torch.uint8)
    return BlockMatrix(blocks.flatten(1), layout, torch.bfloat16)


def odd_inputs(name: str) -> int:
    """A number of inputs that does not fill the words of a row, where blocks are small enough for that."""
    return 768 if name.endswith("_K") else 576


def errors(processes: int = 16) -> Iterator[tuple[str, float]]:
    """Errors of the linears that the engine chooses; in several processes, because compilation takes longest."""
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        for layout_errors in pool.imap_unordered(check, NAMES):
            yield from layout_errors
    for columns in (4096, 14_336, 576):
        x = random_rows(5, columns)
        codes, scales = row_codes.scaled_codes(x)
        expected = fp8.quantised(x)
        yield "fp8 codes", float((codes.float() != expected.codes.float()).float().mean())
        yield "fp8 scales", float((scales - expected.scales).abs().max() / expected.scales.max())


def relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square of the deviations over that of the elements."""
    return float((result.double() - exact).norm() / exact.norm())


@torch.inference_mode()
def check(name: str) -> list[tuple[str, float]]:
    """Errors of one layout for few and many rows; compiles the kernels that are timed, too.

    FP8 is compared with equally rounded activations.
    """
    results: list[tuple[str, float]] = []
    try:
        results += shape_errors(name, 4096, 1024, biased=False)
        results += shape_errors(name, 192, odd_inputs(name), biased=True)
        for outputs, inputs in LAYER_PRODUCTS.values() if name in TIMED else ():
            product = matrix_of(name, outputs, inputs).linear(None)
            for rows in (*ROWS[:-1], 1024):
                by_codes(product, random_rows(rows, inputs))
        torch.cuda.synchronize()
    except (TritonError, RuntimeError) as problem:  # the other layouts are still measured
        print(f"{name}: {problem}", flush=True)
        results.append((f"{name} products", float("inf")))
    return results


def shape_errors(name: str, outputs: int, inputs: int, *, biased: bool) -> list[tuple[str, float]]:
    results: list[tuple[str, float]] = []
    matrix, bias = matrix_of(name, outputs, inputs), random_rows(outputs) if biased else None
    # In float32, so that rounding the weight counts as an error.
    weight = matrix.to(CUDA, torch.float32).dequantised().double()
    product = matrix.linear(bias, keeps_float32=biased)
    for rows in (1, 7, 16, 33, 64, 65, 300, 1100):
        x = random_rows(rows, inputs)
        wide = x.double()
        if name == "fp8":
            codes, scales = row_codes.scaled_codes(x)
            wide = codes.double() * scales.double()
        exact = wide @ weight.T + (0.0 if bias is None else bias.double())
        output = product(x)
        results.append((f"{name} products", relative_error(output, exact)))
        results.append((f"{name} products, largest", error(output, exact)))
    if isinstance(product, CodedLinear):
        plain = coded_products.plain(product.weight, torch.bfloat16)
        results.append((f"{name} plain", relative_error(plain, weight)))
    return results


@functools.lru_cache(maxsize=1)
def layer_products(name: str) -> dict[str, tuple[list[Linear], int]]:
    """By product of a layer: linears that together do not fit into the L2 cache, and the bytes of one weight."""
    products: dict[str, tuple[list[Linear], int]] = {}
    for shape, (outputs, inputs) in LAYER_PRODUCTS.items():
        matrix: Any = matrix_of(name, outputs, inputs) if name in NAMES else random_rows(outputs, inputs)
        nbytes = matrix.nbytes if isinstance(matrix, torch.Tensor) else matrix.held_bytes(CUDA, torch.bfloat16)
        products[shape] = [make_linear(copy_of(matrix)) for _ in range(int(CACHE_BYTES / nbytes) + 2)], nbytes
    return products


def copy_of(matrix: Any) -> Any:  # noqa: ANN401 (a tensor, or a data class of some method)
    """A copy of the weights elsewhere in memory."""
    if isinstance(matrix, torch.Tensor):
        return matrix.clone()
    name = "blocks" if isinstance(matrix, BlockMatrix) else "codes"
    return dataclasses.replace(matrix, **{name: getattr(matrix, name).clone()})


def layer_us(name: str, rows: int, product: Callable[[Any, torch.Tensor], torch.Tensor] | None = None) -> float:
    """Microseconds of a layer's four products, as the engine computes them or as `product` does."""
    us = 0.0
    for shape, (linears, _) in layer_products(name).items():
        x = random_rows(rows, LAYER_PRODUCTS[shape][1])
        calls = [
            functools.partial(linear if product is None else functools.partial(product, linear), x)
            for linear in linears
        ]
        us += if_it_fits(functools.partial(graph_us, calls, 3))
    return us


def by_codes(linear: Linear, rows: torch.Tensor) -> torch.Tensor:
    """Multiply by codes if there are kernels for them."""
    return coded_products.multiply(rows, linear.weight) if isinstance(linear, CodedLinear) else linear(rows)


def by_plain_numbers(linear: CodedLinear, rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(rows, coded_products.plain(linear.weight, rows.dtype))


def plain_numbers(linear: CodedLinear, rows: torch.Tensor) -> torch.Tensor:
    return coded_products.plain(linear.weight, rows.dtype)


Times = dict[str, dict[int, float]]
"""Microseconds of a layer's products by layout and kind, and by rows."""


def times() -> Times:
    all_times: Times = {}
    for name in ("bfloat16", *TIMED):
        try:
            all_times |= layout_times(name)
        except (TritonError, RuntimeError) as problem:  # `check` has counted it as an error
            print(f"{name}: {problem}", flush=True)
        layer_products.cache_clear()
        torch.cuda.empty_cache()
    return all_times


def layout_times(name: str) -> Times:
    kinds = {name: {rows: layer_us(name, rows) for rows in ROWS}}
    if all(isinstance(linears[0], CodedLinear) for linears, _ in layer_products(name).values()):
        kinds[name + CODES] = {rows: layer_us(name, rows, by_codes) for rows in MANY_ROWS}
        kinds[name + PLAIN] = {rows: layer_us(name, rows, by_plain_numbers) for rows in (64, *MANY_ROWS)}
        kinds[name + MAKING] = {1: layer_us(name, 1, plain_numbers)}
    if name in {"nf4", "mxfp4", *FORMATS}:
        layer_products.cache_clear()
        kinds[name + STOCK] = {rows: stock_us(name, rows) for rows in (1, 128)}
    return kinds


def stock_us(name: str, rows: int) -> float:
    """Microseconds of a layer's products as they were without a kernel for the layout."""
    us = 0.0
    for outputs, inputs in LAYER_PRODUCTS.values():
        call = functools.partial(SlabLinear(matrix_of(name, outputs, inputs), None), random_rows(rows, inputs))
        us += graph_us([call], 3)
    torch.cuda.empty_cache()
    return us


def table(layer_times: Times) -> Iterator[str]:
    """Lines of a table: microseconds of each layout and kind by rows; then the least time for bf16 weights."""
    columns = sorted({rows for row in layer_times.values() for rows in row})
    yield f"{'a layer of Llama 3.1 8B, us; rows:':<34}" + "".join(f"{rows:>8}" for rows in columns)
    for name, row in layer_times.items():
        yield f"{name:<34}" + "".join(f"{row[rows]:>8.0f}" if rows in row else f"{'':>8}" for rows in columns)
    yield f"the bf16 weights of a layer at {PEAK_GBS} GB/s: {2 * LAYER_WEIGHTS / PEAK_GBS / 1e3:.0f} us"


def goals(layer_times: Times) -> Iterator[tuple[str, float, float]]:
    """Name, value and bound of each goal."""
    for name, bound in OVER_BFLOAT16.items():
        if name not in layer_times:
            continue
        yield f"{name} over bfloat16 at 1 row", layer_times[name][1] / layer_times["bfloat16"][1], bound
    for name in TIMED:
        if name + CODES not in layer_times:
            continue
        chosen, codes, plain = (layer_times[name + kind] for kind in ("", CODES, PLAIN))
        worst = max(chosen[rows] / min(codes[rows], plain[rows]) for rows in MANY_ROWS if rows in chosen)
        yield f"{name} over its better path above 64 rows", worst, OVER_BEST


def sweep(processes: int = 16) -> Iterator[tuple[str, float, float]]:
    """Other tiles and pipelines; infinitely slow where they do not fit into shared memory."""
    chosen = coded_products.SHAPES, coded_products.MAX_ROWS_SCALED_AFTER
    candidates = [
        (name, rows, shape, max_scaled_after)
        for name, (rows, tile) in itertools.product(SWEPT_NAMES, SWEPT_ROWS.items())
        for shape in SWEPT[tile]
        for max_scaled_after in ((0, tile) if tile <= 32 and name not in {"nf4", "int8"} else (chosen[1],))
    ]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(compile_candidate, candidates)
    for name, rows, shape, max_scaled_after in candidates:
        use(rows, shape, max_scaled_after)
        us = layer_us(name, rows, by_codes)
        tiles = "x".join(map(str, shape))
        yield f"{name}, {rows} rows, {tiles}, scaled after up to {max_scaled_after} rows", us, 0.0
    coded_products.SHAPES, coded_products.MAX_ROWS_SCALED_AFTER = chosen


def use(rows: int, shape: tuple[int, int, int], max_scaled_after: int) -> None:
    coded_products.SHAPES = {**coded_products.SHAPES, SWEPT_ROWS[rows]: shape}
    coded_products.MAX_ROWS_SCALED_AFTER = max_scaled_after


@torch.inference_mode()
def compile_candidate(candidate: tuple[str, int, tuple[int, int, int], int]) -> None:
    name, rows, shape, max_scaled_after = candidate
    use(rows, shape, max_scaled_after)
    for outputs, inputs in LAYER_PRODUCTS.values():
        product = matrix_of(name, outputs, inputs).linear(None)
        with contextlib.suppress(OutOfResources):
            by_codes(product, random_rows(rows, inputs))
