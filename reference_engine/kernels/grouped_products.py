"""Products of rows with the matrices of the experts that a router chose for them, as Triton kernels.

Rows are sorted by expert on the device and cut into tiles that belong to one expert each, without padding in memory
(MegaBlocks, arXiv 2211.15841). The grid covers as many tiles as there can be, so that the host never waits for a
router's choice and a CUDA graph holds every step. Codes of 4 or 8 bits are unpacked in each tile. Import this module
only where `has_triton` holds, or under Triton's interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN202, N803, N806, PLR0917, RET505
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from bakeoff.reference_engine.kernels.code_words import Words
from bakeoff.reference_engine.kernels.coded_products import coded_tile, form_of, pointers_of, tile_of
from bakeoff.reference_engine.kernels.invariant_products import product_tile
from bakeoff.reference_engine.kernels.operands import require_packed

_GROUP = 8  # tiles of rows whose programs are neighbours, so that they find tiles of a matrix in the L2 cache
_SUM_TILE = 1024


class Tile(NamedTuple):
    """Shape of a program's tile, and how it is pipelined."""

    rows: int
    outputs: int
    inputs: int
    stages: int
    warps: int


_INVARIANT = Tile(64, 64, 128, 4, 4)
_TILES = (Tile(16, 64, 128, 5, 4), Tile(64, 128, 64, 4, 4), Tile(128, 128, 64, 4, 8))
_WIDE_INPUTS, _WIDE_STAGES = 32, 3
"""For float32, each element of which takes three products and twice the shared memory."""


class Groups(NamedTuple):
    """Which rows meet which expert.

    Attributes:
        order: int64 [pairs], pairs of a token and an expert, sorted by expert; token · choices + choice.
        starts: int32 [experts + 1], the first place in `order` of each expert, and the end of the last.
        choices: experts of each token.
    """

    order: torch.Tensor
    starts: torch.Tensor
    choices: int


def group(chosen: torch.Tensor, own: range) -> Groups:
    """Sorts pairs by expert, without the host.

    Args:
        chosen: int64 [tokens, choices], experts of each token.
        own: the experts of this process; pairs with others come last.
    """
    experts = chosen.flatten() - own.start
    is_own = (experts >= 0) & (experts < len(own))
    values, order = torch.where(is_own, experts, len(own)).sort(stable=True)
    numbers = torch.arange(len(own) + 1, device=chosen.device)
    return Groups(order, torch.searchsorted(values, numbers, out_int32=True), chosen.shape[1])


def multiply_gathered(
    rows: torch.Tensor, weights: torch.Tensor | Words, bias: torch.Tensor | None, groups: Groups, *,
    batch_invariant: bool,
) -> torch.Tensor:  # fmt: skip
    """The rows of each pair's token, times its expert's matrix.

    Args:
        rows: [tokens, in_features].
        weights: [experts, out_features, in_features], contiguous, in the dtype of the rows; or codes of all experts'
            outputs one after the other, of which `suits_coded_products` is true.
        bias: [experts, out_features], contiguous, in the dtype of the rows.
        groups: of the tokens.
        batch_invariant: whether a row's bits must not depend on the number of rows; not with codes.

    Returns:
        [pairs, out_features], in the order of `groups`; not written for pairs with other experts.
    """
    return _product(rows, weights, bias, groups, is_gathered=True, batch_invariant=batch_invariant)


def multiply_scattered(
    rows: torch.Tensor, weights: torch.Tensor | Words, bias: torch.Tensor | None, groups: Groups, *,
    batch_invariant: bool,
) -> torch.Tensor:  # fmt: skip
    """As `multiply_gathered`, from rows [pairs, in_features] in the order of `groups` to results in that of pairs."""
    return _product(rows, weights, bias, groups, is_gathered=False, batch_invariant=batch_invariant)


def add_weighed(values: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor, own: range) -> torch.Tensor:
    """The sum of each token's experts times their shares, in float32; experts of other processes count as 0.

    Args:
        values: [tokens · choices, dim], contiguous.
        shares: float32 [tokens, choices], contiguous.
        chosen: int64 [tokens, choices], contiguous.
        own: the experts of this process.

    Returns:
        [tokens, dim], in the dtype of the values.
    """
    require_packed(None, values, chosen)
    require_packed(torch.float32, shares)
    (tokens, choices), dim = shares.shape, values.shape[1]
    out = torch.empty(tokens, dim, dtype=values.dtype, device=values.device)
    if tokens:
        _add[(tokens, triton.cdiv(dim, _SUM_TILE))](
            out, values, shares, chosen, FIRST=own.start, END=own.stop, CHOICES=choices, DIM=dim, TILE=_SUM_TILE
        )
    return out


def _tile(pairs: int, experts: int, *, batch_invariant: bool, is_wide: bool) -> Tile:
    tile = next((tile for tile in _TILES if pairs <= tile.rows * experts), _TILES[-1])
    if batch_invariant:
        tile = _INVARIANT
    return tile._replace(inputs=_WIDE_INPUTS, stages=_WIDE_STAGES) if is_wide else tile


def _product(
    rows: torch.Tensor, weights: torch.Tensor | Words, bias: torch.Tensor | None, groups: Groups, *,
    is_gathered: bool, batch_invariant: bool,
) -> torch.Tensor:  # fmt: skip
    require_packed(None, bias)
    if isinstance(weights, Words):
        assert not batch_invariant
        return _coded_product(rows, weights, bias, groups, is_gathered=is_gathered)
    require_packed(rows.dtype, weights)
    pairs, (experts, outputs, inputs) = groups.order.shape[0], weights.shape
    out = torch.empty(pairs, outputs, dtype=rows.dtype, device=rows.device)
    tile = _tile(pairs, experts, batch_invariant=batch_invariant, is_wide=rows.dtype.itemsize > 2)
    if blocks := _most_blocks(pairs, tile.rows, experts):
        _multiply[(blocks * triton.cdiv(outputs, tile.outputs),)](
            out, rows.contiguous(), weights, weights if bias is None else bias, groups.order, groups.starts, blocks,
            OUTPUTS=outputs, INPUTS=inputs, EXPERTS=experts, EXPERT_TILE=triton.next_power_of_2(experts),
            CHOICES=groups.choices, IS_GATHERED=is_gathered, TILE_ROWS=tile.rows, TILE_OUTPUTS=tile.outputs,
            TILE_INPUTS=tile.inputs, GROUP=_GROUP, HAS_BIAS=bias is not None,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out


def _most_blocks(pairs: int, tile_rows: int, experts: int) -> int:
    """Tiles of rows at most: each expert with rows has at most one tile that is not full."""
    return min(pairs, pairs // tile_rows + experts)


def _coded_product(
    rows: torch.Tensor, weights: Words, bias: torch.Tensor | None, groups: Groups, *, is_gathered: bool
) -> torch.Tensor:
    pairs, experts = groups.order.shape[0], groups.starts.shape[0] - 1
    outputs = weights.words.shape[0] // experts
    out = torch.empty(pairs, outputs, dtype=rows.dtype, device=rows.device)
    tile_rows, tile_outputs, warps, stages = tile_of(weights, outputs, -(-pairs // experts), rows.dtype)
    if blocks := _most_blocks(pairs, tile_rows, experts):
        _multiply_coded[(blocks * (outputs // tile_outputs),)](
            out, rows.contiguous(), *pointers_of(weights), out if bias is None else bias, groups.order, groups.starts,
            blocks, EXPERT_OUTPUTS=outputs, EXPERTS=experts, EXPERT_TILE=triton.next_power_of_2(experts),
            CHOICES=groups.choices, IS_GATHERED=is_gathered, TILE_ROWS=tile_rows, TILE_OUTPUTS=tile_outputs,
            GROUP_BLOCKS=_GROUP, HAS_BIAS=bias is not None, num_warps=warps, num_stages=stages,
            **form_of(weights, rows.dtype, tile_rows),
        )  # fmt: skip
    return out


@triton.jit
def _place_of(number, blocks, TILES: tl.constexpr, GROUP: tl.constexpr):
    """The block of rows and the tile of outputs of a program; programs of some blocks are neighbours."""
    group_programs: tl.constexpr = GROUP * TILES
    first_block = number // group_programs * GROUP
    group_blocks = tl.minimum(blocks - first_block, GROUP)
    place = number % group_programs
    return first_block + place % group_blocks, place // group_blocks


@triton.jit
def _rows_of(
    order, starts, block,
    EXPERTS: tl.constexpr, EXPERT_TILE: tl.constexpr, TILE_ROWS: tl.constexpr, CHOICES: tl.constexpr,
    IS_GATHERED: tl.constexpr,
):  # fmt: skip
    """The expert of a block of rows, EXPERTS or more if it has none; which rows there are, from where and to where."""
    numbers = tl.arange(0, EXPERT_TILE)
    begins = tl.load(starts + numbers, mask=numbers < EXPERTS, other=0)
    ends = tl.load(starts + numbers + 1, mask=numbers < EXPERTS, other=0)
    blocks_until = tl.cumsum((ends - begins + TILE_ROWS - 1) // TILE_ROWS, 0)
    is_before = blocks_until <= block
    expert = tl.sum(is_before.to(tl.int32), 0)
    is_expert = expert < EXPERTS
    first = tl.load(starts + expert, mask=is_expert, other=0)
    first += (block - tl.max(tl.where(is_before, blocks_until, 0), 0)) * TILE_ROWS
    place = first.to(tl.int64) + tl.arange(0, TILE_ROWS)
    is_row = place < tl.load(starts + expert + 1, mask=is_expert, other=0)
    pair = tl.load(order + place, mask=is_row, other=0)
    if IS_GATHERED:
        return expert, is_row, pair // CHOICES, place
    else:
        return expert, is_row, place, pair


@triton.jit(do_not_specialize=["blocks"])
def _multiply(
    out, rows, weights, bias, order, starts, blocks,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, EXPERTS: tl.constexpr, EXPERT_TILE: tl.constexpr,
    CHOICES: tl.constexpr, IS_GATHERED: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr, GROUP: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    TILES: tl.constexpr = (OUTPUTS + TILE_OUTPUTS - 1) // TILE_OUTPUTS
    block, tile = _place_of(tl.program_id(0), blocks, TILES, GROUP)
    expert, is_row, source, target = _rows_of(
        order, starts, block, EXPERTS, EXPERT_TILE, TILE_ROWS, CHOICES, IS_GATHERED
    )
    output = tile * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    if expert < EXPERTS:
        is_output = output < OUTPUTS
        # Past the last output, that one is loaded again and not stored.
        loaded = expert.to(tl.int64) * OUTPUTS + tl.minimum(output, OUTPUTS - 1)
        total = product_tile(
            weights + loaded * INPUTS, rows + source * INPUTS, is_row, bias + loaded,
            INPUTS, TILE_INPUTS, HAS_BIAS,
        )  # fmt: skip
        stored = is_output[:, None] & is_row[None, :]
        tl.store(out + target[None, :] * OUTPUTS + output[:, None], total.to(out.dtype.element_ty), mask=stored)


@triton.jit(do_not_specialize=["blocks"])
def _multiply_coded(
    out, rows, words, scales, zeros, table, bias, order, starts, blocks,
    EXPERT_OUTPUTS: tl.constexpr, EXPERTS: tl.constexpr, EXPERT_TILE: tl.constexpr, CHOICES: tl.constexpr,
    IS_GATHERED: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, GROUP_BLOCKS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BLOCKS: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
    SCALES: tl.constexpr, WORDS: tl.constexpr, HAS_TABLE: tl.constexpr, LOOK_UP: tl.constexpr, ZEROS: tl.constexpr,
    IN_PAIRS: tl.constexpr, IMPLIED: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    block, tile = _place_of(tl.program_id(0), blocks, EXPERT_OUTPUTS // TILE_OUTPUTS, GROUP_BLOCKS)
    expert, is_row, source, target = _rows_of(
        order, starts, block, EXPERTS, EXPERT_TILE, TILE_ROWS, CHOICES, IS_GATHERED
    )
    output = tile * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    if expert < EXPERTS:
        weight_output = expert * EXPERT_OUTPUTS + output
        total = coded_tile(
            words, scales, zeros, table, weight_output, rows + source * INPUTS, is_row, 0, BLOCKS,
            OUTPUTS, INPUTS, BLOCKS, GROUP, BITS, SCALES, WORDS, HAS_TABLE, LOOK_UP, ZEROS, IN_PAIRS, IMPLIED, AFTER,
        )  # fmt: skip
        if HAS_BIAS:
            total += tl.load(bias + weight_output).to(tl.float32)[:, None]
        places = out + target[None, :] * EXPERT_OUTPUTS + output[:, None]
        tl.store(places, total.to(out.dtype.element_ty), mask=is_row[None, :])


@triton.jit
def _add(
    out, values, shares, chosen,
    FIRST: tl.constexpr, END: tl.constexpr, CHOICES: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE,), tl.float32)
    for choice in range(CHOICES):
        pair = token * CHOICES + choice
        expert = tl.load(chosen + pair)
        is_own = (expert >= FIRST) & (expert < END)
        value = tl.load(values + pair * DIM + column, mask=(column < DIM) & is_own, other=0.0)
        total += value.to(tl.float32) * tl.load(shares + pair)
    tl.store(out + token * DIM + column, total.to(out.dtype.element_ty), mask=column < DIM)
