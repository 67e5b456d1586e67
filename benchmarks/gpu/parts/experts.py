"""Experts of a layer on the device: errors of their kernels, and times beside torch's grouped products."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import grouped_mm

from bakeoff.reference_engine.kernels import grouped_products
from bakeoff.reference_engine.kernels.code_words import Words
from bakeoff.reference_engine.kernels.cuda import CudaKernels
from bakeoff.reference_engine.quantization.coded_linear import CodedLinear
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix
from benchmarks.gpu.parts import coded
from benchmarks.gpu.parts.correctness import CUDA, error, random_rows
from benchmarks.gpu.parts.timing import PEAK_GBS, PEAK_TFLOPS, graph_us

SHAPES = {"Qwen3-30B-A3B": (128, 8, 2048, 768), "Mixtral 8x7B": (8, 2, 4096, 14_336)}
"""Experts, experts of a token, hidden size, columns of an expert."""
TOKENS = (1, 8, 64, 256, 1024, 8192)
CODED = ("int4", "int4-zp", "int8", "mxfp4")
INT4_SHARE = (4 + 32 / 128) / 16  # bits of a weight, its group's scale included, of those of bf16
KERNELS = CudaKernels()


def routed(tokens: int, experts: int, choices: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Shares and experts of random tokens."""
    best = torch.rand(tokens, experts, device=CUDA).softmax(-1).topk(choices, dim=-1)
    return best.values.contiguous(), best.indices


def ours(
    rows: torch.Tensor,
    shares: torch.Tensor,
    chosen: torch.Tensor,
    gate_up: torch.Tensor | Words,
    down: torch.Tensor | Words,
    *,
    experts: int,
) -> torch.Tensor:
    own = range(experts)
    groups = grouped_products.group(chosen, own)
    inner = grouped_products.multiply_gathered(rows, gate_up, None, groups, batch_invariant=False)
    inner = KERNELS.silu_mul(inner)
    values = grouped_products.multiply_scattered(inner, down, None, groups, batch_invariant=False)
    return grouped_products.add_weighed(values, shares, chosen, own)


def stock(
    rows: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """As a user of torch would write it."""
    values, order = chosen.flatten().sort()
    ends = torch.searchsorted(values, torch.arange(gate_up.shape[0], device=CUDA), right=True, out_int32=True)
    inner = grouped_mm(rows[order // chosen.shape[1]], gate_up.transpose(1, 2), offs=ends)
    results = grouped_mm(KERNELS.silu_mul(inner), down.transpose(1, 2), offs=ends)
    scattered = torch.empty_like(results)
    scattered[order] = results
    return torch.einsum("tch,tc->th", scattered.view(*chosen.shape, -1), shares.to(results.dtype))


def errors() -> Iterator[tuple[str, float]]:
    for (tokens, experts, choices, hidden), inner in (
        ((1, 8, 2, 512), 300), ((70, 5, 2, 1000), 128), ((300, 64, 6, 256), 96), ((3000, 8, 2, 512), 768),
    ):  # fmt: skip
        rows, (shares, chosen) = random_rows(tokens, hidden), routed(tokens, experts, choices)
        weights, bias = random_rows(experts, 2 * inner, hidden), random_rows(experts, 2 * inner)
        for is_invariant in (False, True):
            groups = grouped_products.group(chosen, range(experts))
            products = grouped_products.multiply_gathered(rows, weights, bias, groups, batch_invariant=is_invariant)
            pairs = groups.order
            expert = chosen.flatten()[pairs]
            exact = torch.stack([
                weights[e].double() @ row + bias[e].double()
                for e, row in zip(expert.tolist()[:200], rows[pairs[:200] // choices].double(), strict=True)
            ])  # fmt: skip
            yield "products of experts", error(products[:200], exact)
        own = range(1, experts - 1)
        part = grouped_products.group(chosen, own)
        down = random_rows(len(own), hidden, 2 * inner)
        values = grouped_products.multiply_scattered(products, down, None, part, batch_invariant=False)
        total = grouped_products.add_weighed(values, shares, chosen, own)
        is_own = (chosen >= own.start) & (chosen < own.stop)
        kept = torch.where(is_own.flatten()[:, None], values, torch.zeros_like(values)).double().view(*chosen.shape, -1)
        exact = (kept * shares.double()[:, :, None]).sum(1)
        has_own = is_own.any(1)
        yield "sums of experts", error(total[has_own], exact[has_own]) if has_own.any() else 0.0
        yield "sums without experts", float(total[~has_own].abs().sum())
    for name, tokens in itertools.product(CODED, (1, 70, 3000)):
        yield f"products of experts, {name}", coded_error(name, tokens)


def coded_error(name: str, tokens: int, experts: int = 8, choices: int = 2) -> float:
    outputs, inputs = 192, 512
    matrix = coded.matrix_of(name, experts * outputs, inputs)
    exact = matrix.dequantised().double().view(experts, outputs, inputs)
    rows, (_, chosen) = random_rows(tokens, inputs), routed(tokens, experts, choices)
    groups = grouped_products.group(chosen, range(experts))
    products = grouped_products.multiply_gathered(rows, words_of(matrix), None, groups, batch_invariant=False)
    first = groups.order[:500]
    expected = torch.einsum("poi,pi->po", exact[chosen.flatten()[first]], rows[first // choices].double())
    return coded.relative_error(products[:500], expected)


def words_of(matrix: QuantisedMatrix) -> Words:
    """The codes of all experts' outputs, one after the other."""
    linear = matrix.linear(None)
    assert isinstance(linear, CodedLinear)
    return linear.weight


def times() -> Iterator[tuple[str, float, float]]:
    """Microseconds of each, and the share of the floor: weights of the chosen experts once, or the arithmetic."""
    for name, (experts, choices, hidden, width) in SHAPES.items():
        copies = [(random_rows(experts, 2 * width, hidden), random_rows(experts, hidden, width)) for _ in range(3)]
        shapes = (experts * 2 * width, hidden), (experts * hidden, width)
        coded_copies = [tuple(words_of(coded.matrix_of("int4", *shape)) for shape in shapes) for _ in range(3)]
        for tokens in TOKENS:
            rows, (shares, chosen) = random_rows(tokens, hidden), routed(tokens, experts, choices)
            matrix_bytes = 2 * 3 * width * hidden
            read_us = chosen.unique().numel() * matrix_bytes / PEAK_GBS / 1e3
            computed_us = tokens * choices * matrix_bytes / PEAK_TFLOPS / 1e6
            stacked = functools.partial(ours, experts=experts)
            sides: dict[str, tuple[Callable[..., torch.Tensor], Sequence[Any], float]] = {
                "ours": (stacked, copies, 1.0), "torch": (stock, copies, 1.0),
                "ours, int4": (stacked, coded_copies, INT4_SHARE),
            }  # fmt: skip
            for side, (run, weights_of_calls, share) in sides.items():
                us = graph_us([functools.partial(run, rows, shares, chosen, *weights) for weights in weights_of_calls])
                yield f"{name}, {tokens} tokens, {side}", us, max(share * read_us, computed_us) / us
        del copies, coded_copies
        torch.cuda.empty_cache()
