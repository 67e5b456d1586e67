"""What a model asks of attention, and what the engine tells a backend about one step.

A step is one flat batch of tokens, sequence after sequence, without padding. Everything that is the same in all
layers (slots, gather indices, masks) is worked out once by `begin_step`; `attend` then runs once per layer.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Consecutive new tokens of one sequence in this step.

    Attributes:
        blocks: ids of the blocks that hold the sequence, enough for `start + length` tokens.
        start: tokens of the sequence whose keys and values are cached already; the first new token's position.
        length: new tokens, at least 1.
    """

    blocks: Sequence[int]
    start: int
    length: int

    @property
    def end(self) -> int:
        """Tokens in the cache after this step."""
        return self.start + self.length


class AttentionStep(Protocol):
    """Attention for the tokens of one step."""

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Stores the new keys and values, then lets each new token attend to its sequence up to itself.

        Args:
            layer: index of the decoder layer.
            query: [num_tokens, num_heads, head_dim], rotated.
            key: [num_tokens, num_kv_heads, head_dim], rotated.
            value: [num_tokens, num_kv_heads, head_dim].

        Returns:
            [num_tokens, num_heads * head_dim].
        """
        ...


class AttentionBackend(Protocol):
    """Owns the cache tensors and prepares steps."""

    def begin_step(self, spans: Sequence[Span]) -> AttentionStep:
        """Prepares a step whose flat token batch is the spans one after the other."""
        ...


def slot_mapping(spans: Sequence[Span], block_size: int) -> list[int]:
    """For each new token its row in the cache seen as [num_blocks * block_size, ...]."""
    slots: list[int] = []
    for span in spans:
        blocks = span.blocks
        slots.extend(
            blocks[position // block_size] * block_size + position % block_size
            for position in range(span.start, span.end)
        )
    return slots
