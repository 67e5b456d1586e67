"""A KV cache for one text, for teacher forcing in steps."""

from collections.abc import Iterator, Sequence

import torch

from bakeoff.reference_engine.attention.base import AttentionBackend, Span
from bakeoff.reference_engine.kv_cache.block_pool import BlockPool
from bakeoff.reference_engine.kv_cache.block_table import BlockTable
from bakeoff.reference_engine.kv_cache.layout import CacheLayout
from bakeoff.reference_engine.models.decoder import Model


class TextCache:
    """The KV cache of one text.

    Args:
        attention: over a storage that nothing else uses.
        layout: of that storage.
        num_blocks: blocks per group of layers.
        block_size: tokens per block.
    """

    def __init__(
        self, attention: AttentionBackend, layout: CacheLayout, num_blocks: Sequence[int], block_size: int
    ) -> None:
        self.attention = attention
        self._pools = [BlockPool(size, block_size) for size in num_blocks]
        self._tables = [BlockTable(pool, visible) for pool, visible in zip(self._pools, layout.groups, strict=True)]

    @property
    def block_tables(self) -> list[Sequence[int]]:
        """One block table per group of layers."""
        return [table.blocks for table in self._tables]

    @property
    def used_tokens(self) -> list[int]:
        """Capacity in tokens of the blocks in use, per group."""
        return [pool.num_used * pool.block_size for pool in self._pools]

    def logits(
        self, model: Model, tokens: torch.Tensor, step_tokens: int, first: int = 0
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Compute logits for the successor of each token.

        Args:
            model: matching the attention.
            tokens: int64 [length], on the model's device.
            step_tokens: tokens per step.
            first: index of the first token to yield logits for.

        Yields:
            For each step with such tokens: the index of the first, and logits [rows, vocab_size].
        """
        for start in range(0, len(tokens), step_tokens):
            end = min(start + step_tokens, len(tokens))
            for table in self._tables:
                table.make_writable(start, end)
            begin = min(max(start, first), end)
            logits = model.forward(
                tokens[start:end],
                torch.arange(start, end, device=tokens.device),
                self.attention.begin_step([Span(self.block_tables, start, end - start)]),
                None if begin == start else torch.arange(begin - start, end - start, device=tokens.device),
            )
            if begin < end:
                yield begin, logits
            for table in self._tables:
                table.free_out_of_window(end)
