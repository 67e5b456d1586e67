"""Divides a number of bytes into blocks for each group of layers."""

import dataclasses
from collections.abc import Sequence

from bakeoff.reference_engine.kv_cache.block_table import Visible
from bakeoff.reference_engine.kv_cache.layout import CacheLayout


@dataclasses.dataclass(frozen=True, slots=True)
class Demand:
    """The most that sequences can need.

    Attributes:
        layout: of the model.
        block_size: tokens per block.
        max_model_len: tokens of one sequence.
        max_num_seqs: sequences that run at the same time.
        max_num_batched_tokens: tokens of one sequence that are computed at once.
        token_bytes: of one token in all layers of each group.
    """

    layout: CacheLayout
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    token_bytes: Sequence[int]

    def of_one(self, visible: Visible) -> int:
        """Blocks that one sequence holds at most."""
        whole = -(-self.max_model_len // self.block_size)
        if visible.window is None:
            return whole
        tokens = visible.window + visible.sinks + self.max_num_batched_tokens
        return min(whole, -(-tokens // self.block_size) + 2)  # the window begins and ends inside a block

    @property
    def useful(self) -> int:
        """Blocks of a group beyond which more serve the prefix cache only."""
        return self.max_num_seqs * max(map(self.of_one, self.layout.groups))

    def sizes(self, num_blocks: int) -> Sequence[int]:
        """Blocks of each group if the largest has `num_blocks`; a group with a window needs fewer."""
        return [
            num_blocks if visible.window is None else min(num_blocks, self.max_num_seqs * self.of_one(visible))
            for visible in self.layout.groups
        ]

    def bytes(self, num_blocks: int) -> int:
        """Bytes of all groups if the largest has `num_blocks`."""
        return self.block_size * sum(a * b for a, b in zip(self.sizes(num_blocks), self.token_bytes, strict=True))

    def fitting(self, budget_bytes: int, most: int | None = None) -> int:
        """The largest `num_blocks` whose groups fit into a number of bytes; 0 if not even one block does.

        Args:
            budget_bytes: of all groups.
            most: upper limit of blocks; None for `useful`.
        """
        low, high = 0, self.useful if most is None else most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.bytes(middle) <= budget_bytes else (low, middle - 1)
        return low

    def filling(self, budget_bytes: int) -> int:
        """The same, but blocks that sequences cannot use go to the prefix cache."""
        if all(visible.window is not None for visible in self.layout.groups):
            return self.fitting(budget_bytes)
        return self.fitting(budget_bytes, budget_bytes // (self.block_size * min(self.token_bytes)))
