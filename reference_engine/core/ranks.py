"""How processes share a model: the layers among stages, and each stage's layers among its ranks.

Ranks of a stage (tensor parallelism, Megatron-LM, arXiv:1909.08053):

Each rank has some attention heads and some columns of each feed-forward network: the first matrices of a pair are split
by outputs, the second by inputs, and one all-reduce adds the ranks' partial results. Each expert is split in the same
way, so that ranks have equal work whatever the router chooses. The embedding is replicated: a lookup is cheap, and
splitting it would cost another all-reduce per step. The output matrix is split by vocabulary, and only rank 0, which
samples, gathers all logits. On GPUs the others receive its tokens in front of the next step. Experts may instead be
whole, some on each rank (expert parallelism, GShard, arXiv:2006.16668): the same all-reduce adds their results.

Contexts (context parallelism): each has the whole model, and computes some of the tokens of a long step.

Stages (pipeline parallelism, GPipe, arXiv:1811.06965): each has consecutive layers, and passes the residual stream on.
Rank 0 is in the last one, where tokens are sampled; the first one embeds them.
"""

import dataclasses
from typing import Protocol

import torch


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """A part of a pipeline.

    Attributes:
        number: in the order of the layers.
        count: of stages.
    """

    number: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether it embeds the tokens."""
        return self.number == 0

    @property
    def is_last(self) -> bool:
        """Whether it has norm and head."""
        return self.number == self.count - 1

    def layers(self, total: int, head: float = 0.0) -> range:
        """The layers of this stage.

        Args:
            total: of the model.
            head: how many layers the head costs as much as; the last stage has fewer for it.
        """
        ends = [round((total + head) * number / self.count) for number in range(self.count)]
        # Every stage has a layer.
        starts = [min(max(end, number), total - self.count + number) for number, end in enumerate(ends)]
        return range(starts[self.number], total if self.is_last else starts[self.number + 1])


class Ranks(Protocol):
    """The ranks that share the layers of a stage, the collectives between them, and the neighbours of the stage."""

    @property
    def process(self) -> int:
        """Number of this process among all that share the model."""
        ...

    @property
    def stage(self) -> Stage:
        """Which layers these ranks share."""
        ...

    @property
    def rank(self) -> int:
        """Number of this rank in its stage."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def contexts(self) -> int:
        """Processes among which the tokens of long steps are shared out."""
        ...

    @property
    def context(self) -> int:
        """Number of this one of them."""
        ...

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of all contexts, those of the first one first; equally many of each."""
        ...

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        """All-reduce by sum, bit-identical on every rank; may overwrite `rows`."""
        ...

    def least(self, value: int) -> int:
        """The minimum over the ranks of all stages, on every rank."""
        ...

    def receive(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows that the stage before sent, in place."""
        ...

    def send(self, rows: torch.Tensor) -> None:
        """Sends rows to the next stage; they must not change until these have arrived."""
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

    process = 0
    stage: Stage = Stage()
    rank = 0
    size = 1
    contexts = 1
    context = 0

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def least(self, value: int) -> int:
        return value

    def receive(self, rows: torch.Tensor) -> torch.Tensor:
        """There is no stage before."""
        return rows

    def send(self, rows: torch.Tensor) -> None:
        """There is no next stage."""

    def gather(self, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:  # noqa: ARG002 (nothing is padding)
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


def experts_share(count: int, ranks: Ranks) -> range:
    """The experts of a rank that has whole ones; ranks have equally many, or one more."""
    return range(ranks.rank * count // ranks.size, (ranks.rank + 1) * count // ranks.size)


def vocabulary_share(matrix: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """A rank's rows of a matrix [vocab_size, hidden_size]; the same number on each, padded with zeros on the last."""
    width = -(-matrix.shape[0] // ranks.size)
    own_rows = matrix[ranks.rank * width : (ranks.rank + 1) * width]
    if own_rows.shape[0] == width:
        return own_rows
    return torch.cat((own_rows, own_rows.new_zeros(width - own_rows.shape[0], own_rows.shape[1])))
