"""The interfaces between models and attention backends, and the description of a step that a backend gets.

A step is one flat batch of tokens, sequence after sequence, without padding. Everything that is the same in all layers
of a group (slots, gather indices, masks) is computed once by `begin_step`; `attend` then runs once per layer.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch

from bakeoff.reference_engine.kernels.scoring import PLAIN, Scoring
from bakeoff.reference_engine.kv_cache.block_table import Visible

LONG_CHUNK = 1024
"""Tokens of a chunk from which cuDNN's kernel is faster on a GPU, although it must be called once for each length."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """Consecutive new tokens of one sequence in this step.

    Attributes:
        tables: for each group of layers the blocks that hold the sequence, enough for `start + length` tokens.
        start: tokens of the sequence whose keys and values are cached already; the first new token's position.
        length: new tokens, at least 1.
    """

    tables: Sequence[Sequence[int]]
    start: int
    length: int

    @property
    def end(self) -> int:
        """Tokens in the cache after this step."""
        return self.start + self.length


class AttentionStep(Protocol):
    """Attention for the tokens of one step."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        scoring: Scoring = PLAIN,
        *,
        towards_sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Stores the new keys and values, then lets each new token attend to the tokens of its sequence that it sees.

        Args:
            layer: place of the layer among those of this process.
            query: [num_tokens, num_heads, key_dim], rotated.
            key: [num_tokens, num_kv_heads, key_dim], rotated; None where the layer uses another layer's.
            value: [num_tokens, num_kv_heads, value_dim]; None likewise, and where it is a part of the key.
            scoring: from products of queries and keys to weights.
            towards_sinks: the queries that are multiplied by the keys of `Visible.sinks`, contiguous; None for `query`.

        Returns:
            [num_tokens, num_heads * value_dim].
        """
        ...


class AttentionBackend(Protocol):
    """Owns the cache tensors and prepares steps."""

    def begin_step(self, spans: Sequence[Span]) -> AttentionStep:
        """Prepares a step whose flat token batch is the spans in order."""
        ...


def slot_mapping(spans: Sequence[Span], block_size: int, group: int = 0) -> list[int]:
    """For each new token, its row in the cache viewed as [num_blocks * block_size, ...]."""
    slots: list[int] = []
    for span in spans:
        blocks = span.tables[group]
        if span.length == 1:
            slots.append(blocks[span.start // block_size] * block_size + span.start % block_size)
            continue
        slots.extend(
            blocks[position // block_size] * block_size + position % block_size
            for position in range(span.start, span.end)
        )
    return slots


def seen_blocks(span: Span, visible: Visible, block_size: int) -> list[int]:
    """The places in the table of a span of the blocks that its tokens see; the first token decides."""
    hidden = visible.out_of_window_blocks(span.start, block_size)
    return [i for i in range(-(-span.end // block_size)) if i not in hidden]
