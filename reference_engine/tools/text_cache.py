"""Teacher forcing: a model reads a given text in steps, over a KV cache of its own."""

from collections.abc import Iterator, Sequence

import torch

from reference_engine.attention.base import AttentionBackend, Span
from reference_engine.kv_cache.block_pool import BlockPool
from reference_engine.kv_cache.block_table import BlockTable
from reference_engine.kv_cache.layout import CacheLayout
from reference_engine.models.decoder import Model


class TextCache:
    """The KV cache of one text.

    Args:
        attention: over a storage of its own.
        layout: of the storage.
        num_blocks: of each group of layers.
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
        """One for each group of layers."""
        return [table.blocks for table in self._tables]

    @property
    def used_tokens(self) -> list[int]:
        """Places for tokens in the blocks of each group that are in use."""
        return [pool.num_used * pool.block_size for pool in self._pools]

    def logits(
        self, model: Model, tokens: torch.Tensor, step_tokens: int, first: int = 0
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """What the model expects after each token.

        Args:
            model: that the attention is for.
            tokens: int64 [length], on the model's device.
            step_tokens: computed at once.
            first: the first token whose successor is wanted.

        Yields:
            For each step with such tokens, the index of its first one, and logits [rows, vocab_size].
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
