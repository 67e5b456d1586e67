"""Draws the same tokens as `Sampler` on the device of the logits, without waiting for that device.

The arithmetic is that of `drawing.py` and `truncation.py`, in the same order and the same dtypes, except for the
float32 weights of `nucleus.py`. Everything that depends on the requests alone (such as uniform numbers) is computed on
the host and copied to the device at once. The host also knows how rows are truncated, so no index has to come back from
the device.
"""

import dataclasses
import enum
import math
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import torch

from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.kernels.native import has_triton
from bakeoff.reference_engine.sampling.blocks import BLOCK
from bakeoff.reference_engine.sampling.places import Place
from bakeoff.reference_engine.sampling.sampler import argmax, choose_on_host
from bakeoff.reference_engine.sampling.uniform import uniforms

_FEW, _MANY = 64, 1024  # tokens of a top-k
_MOST_RANKED = 1 << 22  # scores ranked in one call, which takes up to 80 bytes for each
_BELOW_ONE = math.nextafter(1.0, 0.0)
_LOW = 0xFFFFFFFF
_SIGN_BIT, _OTHER_BITS = 31, 0x7FFFFFFF

Ranking = tuple[torch.Tensor, torch.Tensor]
"""Scores of tokens, best first, and the tokens' ids: float32 and int64 [num_rows, width]."""


class _Kind(enum.IntEnum):
    """How a row is drawn. Rows of one kind are computed together."""

    WHOLE = enum.auto()
    FEW = enum.auto()  # of at most `_FEW` tokens
    MANY = enum.auto()  # of at most `_MANY` tokens
    SORTED = enum.auto()
    MIN_P = enum.auto()  # without top-k, with or without top-p
    NUCLEUS = enum.auto()  # top-p alone, which is a share of the whole distribution

    @classmethod
    def of(cls, sampling: SamplingParams) -> "_Kind":
        if not sampling.is_truncated:
            return cls.WHOLE
        if 0 < sampling.top_k <= _MANY:
            return cls.FEW if sampling.top_k <= _FEW else cls.MANY
        if sampling.top_k:
            return cls.SORTED
        return cls.MIN_P if sampling.min_p > 0.0 else cls.NUCLEUS


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    """Rows to draw from, and their parameters, on the device.

    Attributes:
        table: float64 [6, num_rows]: row numbers, uniform numbers, temperatures, top-k (0 for all), top-p, min-p.
        index: int64 [num_rows], the row numbers.
    """

    table: torch.Tensor
    index: torch.Tensor

    @classmethod
    def upload(cls, rows: Sequence[int], requests: Sequence[Place], device: torch.device) -> Self:
        """Computes uniform numbers and copies everything, without waiting for the device."""
        params = [requests[row].sampling for row in rows]
        table = np.empty((6, len(rows)))
        table[0] = rows
        table[1] = uniforms([sampling.seed for sampling in params], [requests[row].num_sampled for row in rows])
        table[2:] = [
            [sampling.temperature for sampling in params],
            [sampling.top_k for sampling in params],
            [sampling.top_p for sampling in params],
            [sampling.min_p for sampling in params],
        ]
        host = torch.from_numpy(table)
        # Torch's allocator reuses pinned memory only after the copy from it has ended.
        on_device = host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)
        return cls(on_device, on_device[0].long())

    def __len__(self) -> int:
        return self.table.shape[1]

    def part(self, start: int, end: int) -> Self:
        """The rows [start, end) of these."""
        return type(self)(self.table[:, start:end], self.index[start:end])

    def parts(self, size: int) -> Iterator[Self]:
        """These rows, at most `size` at a time."""
        return (self.part(start, start + size) for start in range(0, len(self), size))

    def column(self, place: int) -> torch.Tensor:
        """A parameter as [num_rows, 1]."""
        return self.table[place, :, None]

    @property
    def uniforms(self) -> torch.Tensor:
        """[num_rows, 1] in [0, 1)."""
        return self.column(1)

    @property
    def temperatures(self) -> torch.Tensor:
        """[num_rows, 1]."""
        return self.column(2)


class _Blocks:
    """Scores of all rows, cut into blocks; see `BlockedScores`.

    Args:
        scores: float32 [num_rows, vocab_size], contiguous; not changed.

    Attributes:
        vocab_size: tokens in a row.
        scores: [num_rows, num_blocks, BLOCK]; minus infinity after the vocabulary.
        maxima: the largest score of each block: [num_rows, num_blocks].
        top: the largest score of each row: [num_rows, 1].
    """

    def __init__(self, scores: torch.Tensor) -> None:
        missing = -scores.shape[1] % BLOCK
        padded = torch.nn.functional.pad(scores, (0, missing), value=-math.inf) if missing else scores
        self.vocab_size = scores.shape[1]
        self.scores = padded.view(len(scores), -1, BLOCK)
        self.maxima = self.scores.amax(dim=-1)
        self.top = self.maxima.amax(dim=-1, keepdim=True)

    def tops(self, rows: _Rows) -> torch.Tensor:
        """The largest scores of these rows: [num_rows, 1]."""
        return self.top.index_select(0, rows.index)

    def weights(self, rows: _Rows) -> torch.Tensor:
        """Each block's share of the softmax: float64 [num_rows, num_blocks]; see `BlockedScores.weights`."""
        shift, rate = self.tops(rows)[:, :, None], rows.temperatures.reciprocal().float()[:, :, None]
        if len(rows) == len(self.scores):  # in order, since the rows of a kind ascend
            shifted = self.scores - shift
        else:
            shifted = self.scores.index_select(0, rows.index).sub_(shift)
        return shifted.mul_(rate).exp_().sum(dim=-1).double()


def choose(logits: torch.Tensor, places: Sequence[Place]) -> torch.Tensor:
    """`choose_on_device`, or on a CPU the same with NumPy, which is faster than torch; same arguments and result."""
    if all(place.sampling.is_greedy for place in places):
        return argmax(logits)
    if logits.device.type == "cpu":
        return torch.tensor(choose_on_host(logits.float().contiguous(), places))
    return choose_on_device(logits, places)


def choose_on_device(logits: torch.Tensor, requests: Sequence[Place]) -> torch.Tensor:
    """Chooses the same tokens as `Sampler.sample`, if no request has `SamplingParams.needs_host`.

    If a uniform number is within rounding of the border between two tokens, it may choose either.

    Args:
        logits: [num_rows, vocab_size] in any float dtype; not changed.
        requests: one per row.

    Returns:
        int64 [num_rows], on the device of the logits; does not wait for the device.
    """
    scores = logits.float().contiguous()
    kinds = {row: _Kind.of(request.sampling) for row, request in enumerate(requests) if not request.sampling.is_greedy}
    tokens = argmax(scores) if len(kinds) < len(requests) else scores.new_empty(len(requests), dtype=torch.int64)
    if not kinds:
        return tokens
    order = sorted(kinds, key=kinds.__getitem__)
    rows, blocks, start = _Rows.upload(order, requests, scores.device), _Blocks(scores), 0
    drawn: list[torch.Tensor] = []
    for kind in _Kind:
        top_ks = [requests[row].sampling.top_k for row in order if kinds[row] is kind]
        if top_ks:
            drawn += _draw(kind, blocks, rows.part(start, start + len(top_ks)), max(top_ks))
            start += len(top_ks)
    return tokens.index_copy_(0, rows.index, torch.cat(drawn))


def _draw(kind: _Kind, blocks: _Blocks, rows: _Rows, top_k: int) -> Iterator[torch.Tensor]:
    """Tokens of the rows of one kind, in order, in several pieces: int64 [num_rows] in total."""
    if kind is _Kind.WHOLE:
        yield _draw_whole(blocks, rows)
    elif kind in {_Kind.FEW, _Kind.MANY}:
        top_k = min(top_k, blocks.vocab_size)
        width = min(top_k, blocks.maxima.shape[1]) * BLOCK
        for part in rows.parts(max(1, _MOST_RANKED // width)):
            yield _draw_ranked(blocks, part, _best(blocks, part, top_k))
    elif kind is not _Kind.SORTED and has_triton(rows.index.device):
        from bakeoff.reference_engine.kernels.nucleus import draw_nucleus  # noqa: PLC0415 (needs Triton)

        tokens = draw_nucleus(
            blocks.scores.flatten(1), rows.index, blocks.tops(rows)[:, 0], rows.table[1], rows.table[2], *rows.table[4:]
        )
        yield tokens.clamp_(max=blocks.vocab_size - 1)
    else:
        for part in rows.parts(max(1, _MOST_RANKED // blocks.vocab_size)):
            sums = blocks.weights(part).sum(dim=-1, keepdim=True) if kind is _Kind.NUCLEUS else None
            yield _draw_ranked(blocks, part, _sorted(blocks, part), sums)


def _draw_whole(blocks: _Blocks, rows: _Rows) -> torch.Tensor:
    """One token per row, from its whole distribution; see `drawing.draw`."""
    block, rest = _invert(blocks.weights(rows), rows.uniforms)
    scores = blocks.scores[rows.index[:, None], block][:, 0].double()
    place, _ = _invert(((scores - blocks.tops(rows)) / rows.temperatures).exp_(), rest)
    return (block * BLOCK + place)[:, 0].clamp_(max=blocks.vocab_size - 1)


def _invert(weights: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Finds the weights at which uniform numbers fall; the weights need not add up to 1.

    Args:
        weights: float64 [n, m].
        numbers: float64 [n, 1] in [0, 1).

    Returns:
        The indices int64 [n, 1], whose weights are above 0, and how far into its weight each number falls, in [0, 1).
    """
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:]
    targets = total * numbers
    # A product that is rounded up to the whole sum must not fall after the last weight above 0.
    last = (cumulative < total).sum(dim=-1, keepdim=True)
    place = torch.minimum((cumulative <= targets).sum(dim=-1, keepdim=True), last)
    weight = weights.gather(1, place)
    into = (targets - (cumulative.gather(1, place) - weight)) / weight
    return place, into.clamp_(0.0, _BELOW_ONE)


def _best(blocks: _Blocks, rows: _Rows, count: int) -> Ranking:
    """The `count` best tokens of each row, in order.

    They are in the `count` blocks with the largest maxima (the first of equal ones): each of these blocks has a token
    that comes before all tokens of the other blocks.
    """
    num_blocks = blocks.maxima.shape[1]
    numbers = torch.arange(num_blocks, device=rows.index.device)
    if count < num_blocks:
        maxima = blocks.maxima.index_select(0, rows.index)
        chosen = _keys(maxima, numbers).topk(count, sorted=False).indices
    else:
        chosen = numbers.expand(len(rows), num_blocks)
    scores = blocks.scores[rows.index[:, None], chosen].flatten(1)
    tokens = (chosen[:, :, None] * BLOCK + torch.arange(BLOCK, device=chosen.device)).flatten(1)
    best = _keys(scores, tokens).topk(count).indices
    return scores.gather(1, best), tokens.gather(1, best)


def _sorted(blocks: _Blocks, rows: _Rows) -> Ranking:
    """All tokens of each row, in order."""
    scores = blocks.scores.index_select(0, rows.index).flatten(1)
    tokens = _ordered(scores).sort(dim=-1, descending=True, stable=True).indices
    return scores.gather(1, tokens), tokens


def _keys(scores: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Combines scores with their numbers in one int64: the largest is best, and of equal scores the first.

    Args:
        scores: float32.
        numbers: int64 in [0, 2^32), of a shape that broadcasts with that of `scores`.
    """
    return _ordered(scores).long() * (_LOW + 1) + (_LOW - numbers)


def _ordered(scores: torch.Tensor) -> torch.Tensor:
    """The bits of float32 as int32 that compare as the floats do."""
    bits = (scores + 0.0).view(torch.int32)  # minus zero equals zero
    return bits ^ ((bits >> _SIGN_BIT) & _OTHER_BITS)


def _draw_ranked(blocks: _Blocks, rows: _Rows, ranking: Ranking, sums: torch.Tensor | None = None) -> torch.Tensor:
    """One token per row, of those that min-p, top-k and top-p keep; see `truncation.draw_truncated`.

    Args:
        blocks: the scores.
        rows: which rows of them.
        ranking: all tokens that may be kept.
        sums: float64 [num_rows, 1], the mass that top-p is a share of; None for what min-p and top-k keep.

    Returns:
        int64 [num_rows].
    """
    scores, tokens = ranking
    top, top_ks, top_ps, min_ps = blocks.tops(rows), rows.column(3), rows.column(4), rows.column(5)
    weights = ((scores.double() - top) / rows.temperatures).exp_()
    is_behind = (top_ks > 0) & (torch.arange(scores.shape[1], device=scores.device) >= top_ks)
    weights.masked_fill_(is_behind | (weights < min_ps), 0.0)
    cumulative = weights.cumsum(dim=-1)
    sums = cumulative[:, -1:] if sums is None else sums
    is_kept = (cumulative - weights < top_ps * sums) & (weights > 0)
    last = (is_kept.sum(dim=-1, keepdim=True) - 1).clamp_(min=0)  # weights fall, so those kept are the first ones
    targets = cumulative.gather(1, last) * rows.uniforms
    place = torch.minimum((cumulative <= targets).sum(dim=-1, keepdim=True), last)
    # `draw_truncated` ranks nothing in a row that holds NaN or in which all tokens are forbidden.
    is_ranked = (top > -math.inf) & ((top < math.inf) | (min_ps > 0))
    fallback = blocks.vocab_size - 1
    # `torch.where` with a number would copy it to the device and wait.
    return tokens.gather(1, place).masked_fill_(~is_ranked, fallback)[:, 0].clamp_(max=fallback)
