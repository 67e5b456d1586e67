"""What would be sent, without the words: enough for every figure about traffic, at a thousandth of the cost.

A prompt is a row of segments; two prompts share a prefix exactly as far as their segments are the same. Nothing here
needs a tokenizer.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

import msgspec

from workloads.errors import NoTokenizer
from workloads.prefixes import BLOCK_TOKENS, block_names
from workloads.prompts import PromptReader, prompt_reader
from workloads.rng import Seed
from workloads.tokenizer import Tokenizer
from workloads.types import Turn, Workload

Segment = tuple[str, int]
"""A name, and how many tokens: equal names stand for equal text."""
_DIGEST_BYTES = 12


class TurnOutline(msgspec.Struct, frozen=True):
    """One request."""

    input_tokens: int
    output_tokens: int
    think_s: float
    segments: tuple[Segment, ...]
    """The whole prompt, in order."""


class SessionOutline(msgspec.Struct, frozen=True):
    """Turns that follow one another."""

    id: str
    start_s: float | None
    turns: tuple[TurnOutline, ...]


@runtime_checkable
class SupportsOutlines(Protocol):
    """A workload that can say what its sessions are like without writing them."""

    def outlines(self, seed: Seed) -> Iterator[SessionOutline]:
        """Yield the outlines of its sessions.

        Raises:
            NoTokenizer: its prompts are given as words, whose length is not known.
        """
        ...


@runtime_checkable
class SupportsWords(Protocol):
    """A workload whose prompts may be given as words."""

    @property
    def has_words(self) -> bool:
        """Whether they are: then a tokenizer says more of them than an outline."""
        ...


def segment_blocks(segments: Iterable[Segment], block_tokens: int) -> Iterator[bytes]:
    """The names of a prompt's full blocks, each by everything up to its end.

    As :func:`~workloads.prefixes.block_names` gives them for token ids.
    """
    running = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    filled = 0
    for name, tokens in segments:
        running.update(f"|{name}:".encode())
        at = block_tokens - filled  # of this segment's tokens, those that complete the block that is under way
        while at <= tokens:
            running.update(at.to_bytes(8, "little"))
            yield running.digest()
            at += block_tokens
        filled = (filled + tokens) % block_tokens


def outlines(workload: Workload, seed: Seed, tokenizer: Tokenizer | None = None) -> Iterator[SessionOutline]:
    """The outlines of a workload's sessions; of one that cannot outline, those of the prompts that it writes.

    Raises:
        NoTokenizer: prompts must be written and there is no tokenizer.
    """
    is_written = tokenizer is not None and isinstance(workload, SupportsWords) and workload.has_words
    if isinstance(workload, SupportsOutlines) and not is_written:
        yield from workload.outlines(seed)
        return
    if tokenizer is None:
        raise NoTokenizer("this workload's prompts must be written to be looked at; give the folder of a tokenizer")
    reader = prompt_reader(tokenizer)
    for session in workload.sessions(tokenizer, seed):
        yield SessionOutline(session.id, session.start_s, tuple(_written(turn, reader) for turn in session.turns))


def _written(turn: Turn, reader: PromptReader) -> TurnOutline:
    """A prompt's blocks as segments; what is left behind the last whole one is its own."""
    ids = reader.ids(turn)
    blocks = [(name.hex(), BLOCK_TOKENS) for name in block_names(ids)]
    rest = len(ids) - BLOCK_TOKENS * len(blocks)
    segments = (*blocks, (f"rest {ids[-rest:]}", rest)) if rest else tuple(blocks)
    return TurnOutline(len(ids), turn.output_tokens, turn.think_s, segments)
