"""Sharding of layers over ranks (tensor parallelism, Megatron-LM, arXiv:1909.08053).

Each rank has some attention heads and some columns of each feed-forward network: the first matrices of a pair are split
by outputs, the second by inputs, and one all-reduce adds the ranks' partial results. Each expert is split in the same
way, so that ranks have equal work whatever the router chooses. The embedding is replicated: a lookup is cheap, and
splitting it would cost another all-reduce per step. The output matrix is split by vocabulary, and only rank 0, which
samples, gathers all logits. On GPUs the others receive its tokens in front of the next step.
"""

from typing import Protocol

import torch


class Ranks(Protocol):
    """The ranks that share a model, and the collectives between them."""

    @property
    def rank(self) -> int:
        """Number of this rank."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        """All-reduce by sum, bit-identical on every rank; may overwrite `rows`."""
        ...

    def least(self, value: torch.Tensor) -> torch.Tensor:
        """The minimum over the ranks, on every rank; may overwrite `value`."""
        ...

    def gather(self, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """Gathers the columns of all ranks on rank 0.

        Args:
            logits: [num_rows, vocab_size / ranks, rounded up].
            vocab_size: later columns are padding.

        Returns:
            [num_rows, vocab_size], contiguous, on rank 0; `logits` on the others.
        """
        ...


class Alone:
    """A single rank, with the whole model."""

    rank = 0
    size = 1

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Ranks.sum`."""
        return rows

    def least(self, value: torch.Tensor) -> torch.Tensor:
        """See `Ranks.least`."""
        return value

    def gather(self, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:  # noqa: ARG002 (nothing is padding)
        """See `Ranks.gather`."""
        return logits


ALONE = Alone()


def share(whole: torch.Tensor, dim: int, ranks: Ranks, width: int | None = None) -> torch.Tensor:
    """A rank's shard of a tensor along a dimension, as a view.

    Args:
        whole: the tensor.
        dim: the dimension to split.
        ranks: this rank and the number of ranks.
        width: of a shard; None for equal shards. If there are fewer shards than ranks, neighbouring ranks share one,
            as with few key/value heads.
    """
    own = span(whole.shape[dim], ranks, width)
    return whole.narrow(dim, own.start, own.stop - own.start)


def span(total: int, ranks: Ranks, width: int | None = None) -> slice:
    """The rows or columns that `share` selects out of `total`."""
    width = total // ranks.size if width is None else width
    first = ranks.rank * total // (ranks.size * width) * width
    return slice(first, first + width)


def vocabulary_share(matrix: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """A rank's rows of a matrix [vocab_size, hidden_size]; the same number on each, padded with zeros on the last."""
    width = -(-matrix.shape[0] // ranks.size)
    own_rows = matrix[ranks.rank * width : (ranks.rank + 1) * width]
    if own_rows.shape[0] == width:
        return own_rows
    return torch.cat((own_rows, own_rows.new_zeros(width - own_rows.shape[0], own_rows.shape[1])))
