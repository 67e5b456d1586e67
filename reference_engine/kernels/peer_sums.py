"""Sums over the GPUs of one host in one exchange: each rank writes its rows to all others and adds what arrives.

A decode step sums a few kilobytes twice in each layer, and waits for NCCL each time. Here a program writes a block into
the memory of the other GPUs, sets a flag behind it, and waits for theirs (the one-shot all-reduce of TensorRT-LLM and
of vLLM); docs/decisions/reference-engine-gpu.md has measurements. All ranks add in the same order and in float32, so
their results are bit-identical. Import this module only where `has_triton` holds, or under Triton's interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN202, N803, PLR0917
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportIndexIssue=false, reportGeneralTypeIssues=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from bakeoff.reference_engine.kernels.operands import require_packed

MAX_BYTES = 1 << 20
"""Of the rows of a call."""
_BLOCK = 1024  # elements of a program
_MAX_BLOCKS = MAX_BYTES // 2 // _BLOCK  # of the narrowest elements
_BLOCK_BYTES = 4 * _BLOCK  # of the widest: a block has the same place for all, since its inboxes take turns


class Exchange(NamedTuple):
    """What a rank needs for sums.

    Attributes:
        rank: of this process.
        ranks: number of them.
        memories: int64 [ranks], the addresses of all ranks' memory, of `memory_bytes` each and initially 0.
        epochs: int32 [`epochs_needed`], initially 0: calls so far of each program.
        stop: int32 [1], initially 0; another number ends all waiting, with undefined sums.
    """

    rank: int
    ranks: int
    memories: torch.Tensor
    epochs: torch.Tensor
    stop: torch.Tensor


def memory_bytes(ranks: int) -> int:
    """A rank's memory: two inboxes for each rank, which calls use in turns, then flags."""
    return 2 * ranks * _MAX_BLOCKS * _BLOCK_BYTES + 4 * ranks * _MAX_BLOCKS


def epochs_needed() -> int:
    """Length of `Exchange.epochs`."""
    return _MAX_BLOCKS


def sum_over_ranks(rows: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """Sums in place. All ranks must make the same calls in the same order.

    Args:
        rows: contiguous, at most `MAX_BYTES`.
        exchange: of this rank.
    """
    require_packed(None, rows)
    count = rows.numel()
    if count:
        _sum_over_ranks[(triton.cdiv(count, _BLOCK),)](
            rows, count, exchange.memories, exchange.epochs, exchange.stop, RANK=exchange.rank, RANKS=exchange.ranks,
            PLACE=_BLOCK_BYTES // rows.element_size(), MAX_BLOCKS=_MAX_BLOCKS, BLOCK=_BLOCK,
            FLAGS_AT=2 * exchange.ranks * _MAX_BLOCKS * _BLOCK_BYTES // 4,
        )  # fmt: skip
    return rows


@triton.jit
def _sum_over_ranks(
    rows, count, memories, epochs, stop,
    RANK: tl.constexpr, RANKS: tl.constexpr, PLACE: tl.constexpr, MAX_BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
    FLAGS_AT: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    # A rank that is in its next call but one has seen every other one's next call begin, and so this call end: two
    # inboxes are enough. The number overflows within days, so only differences and parity are used.
    epoch = tl.load(epochs + block) + 1
    inbox = (epoch & 1) * RANKS
    at = block * BLOCK + tl.arange(0, BLOCK)
    place = block * PLACE + tl.arange(0, BLOCK)
    mask = at < count
    own = tl.load(rows + at, mask=mask, other=0.0)
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            theirs = tl.load(memories + peer).to(tl.pointer_type(rows.dtype.element_ty))
            tl.store(theirs + (inbox + RANK) * MAX_BLOCKS * PLACE + place, own, mask=mask)
    tl.debug_barrier()  # the flag is set by one thread, after the stores of all
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            flags = tl.load(memories + peer).to(tl.pointer_type(tl.int32)) + FLAGS_AT
            tl.atomic_xchg(flags + RANK * MAX_BLOCKS + block, epoch, sem="release", scope="sys")
    arrived = tl.load(memories + RANK).to(tl.pointer_type(tl.int32)) + FLAGS_AT + block
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            behind = epoch - tl.atomic_add(arrived + peer * MAX_BLOCKS, 0, sem="acquire", scope="sys")
            while behind > 0:
                behind = epoch - tl.atomic_add(arrived + peer * MAX_BLOCKS, 0, sem="acquire", scope="sys")
                behind = tl.where(tl.load(stop, volatile=True) != 0, 0, behind)
    tl.debug_barrier()
    received = tl.load(memories + RANK).to(tl.pointer_type(rows.dtype.element_ty)) + inbox * MAX_BLOCKS * PLACE
    total = tl.zeros((BLOCK,), tl.float32)
    for peer in tl.static_range(RANKS):
        if peer == RANK:
            total += own.to(tl.float32)
        else:
            total += tl.load(received + peer * MAX_BLOCKS * PLACE + place, mask=mask, other=0.0, volatile=True).to(
                tl.float32
            )
    tl.store(rows + at, total.to(rows.dtype.element_ty), mask=mask)
    tl.store(epochs + block, epoch)
