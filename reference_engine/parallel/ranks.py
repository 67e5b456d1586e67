"""Who computes which part of a layer (tensor parallelism, Megatron-LM, arXiv:1909.08053).

Each rank has some of the attention heads and of the columns between the two matrices of a feed-forward network: the
first matrices of a pair are cut by outputs, the second by inputs, and what the ranks get behind them adds up to the
layer's result, in one all-reduce. Experts are cut in the same way, each of them, so that all ranks have the same work
whatever the router says. The embedding is whole on every rank: looking up costs nothing, and a cut one would cost one
more all-reduce in every step. The output matrix is cut by the vocabulary, and only the first rank, which samples, gets
all logits.
"""

from typing import Protocol

import torch


class Ranks(Protocol):
    """The processes that share a model, seen from one of them."""

    @property
    def rank(self) -> int:
        """This one's number."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        """The sum of what all ranks give; `rows` may become it. The same bits on every rank."""
        ...

    def least(self, value: torch.Tensor) -> torch.Tensor:
        """The smallest of the numbers that the ranks give, on every rank; `value` may become it."""
        ...

    def gather(self, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """Each rank's columns side by side.

        Args:
            logits: [num_rows, as many columns on each rank].
            vocab_size: columns beyond are padding.

        Returns:
            [num_rows, vocab_size], contiguous, on rank 0; on the others what they gave.
        """
        ...


class Alone:
    """One rank, which has everything."""

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
    """A rank's piece of a tensor along a dimension, as a view.

    Args:
        whole: the tensor.
        dim: along which it is cut.
        ranks: for whom.
        width: of a piece; None for an equal part. Where there are fewer pieces than ranks, neighbours get the same
            one, as key/value heads that there are too few of.
    """
    total = whole.shape[dim]
    width = total // ranks.size if width is None else width
    return whole.narrow(dim, ranks.rank * total // (ranks.size * width) * width, width)


def vocabulary_share(matrix: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """A rank's rows of a matrix [vocab_size, hidden_size]; all have as many, the last ones with zeros at the end."""
    width = -(-matrix.shape[0] // ranks.size)
    mine = matrix[ranks.rank * width : (ranks.rank + 1) * width]
    if mine.shape[0] == width:
        return mine
    return torch.cat((mine, mine.new_zeros(width - mine.shape[0], mine.shape[1])))
