"""Outlines of sessions: lengths and shared prefixes without text, enough for a profile at a thousandth of the cost.

A prompt is a sequence of segments; two prompts share a prefix exactly as far as their segments are equal. Outlines need
no tokenizer unless the workload can only write prompts.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

import msgspec

from bakeoff.workloads.errors import NoTokenizer
from bakeoff.workloads.prefixes import BLOCK_TOKENS, block_hashes
from bakeoff.workloads.prompts import PromptReader, prompt_reader
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.tokenizer import Tokenizer
from bakeoff.workloads.types import Turn, Workload

Segment = tuple[str, int]
"""Name and number of tokens; equal names stand for equal text."""
_DIGEST_BYTES = 12


class TurnOutline(msgspec.Struct, frozen=True):
    """One request without its text; see :class:`bakeoff.workloads.types.Turn`."""

    input_tokens: int
    output_tokens: int
    think_s: float
    segments: tuple[Segment, ...]
    """The whole prompt, in order."""
    parents: tuple[int, ...] | None = None
    lags_s: tuple[float, ...] = ()
    agent: str = ""


class SessionOutline(msgspec.Struct, frozen=True):
    """A session without its text."""

    id: str
    start_s: float | None
    turns: tuple[TurnOutline, ...]


@runtime_checkable
class SupportsOutlines(Protocol):
    """A workload that can outline its sessions without writing them."""

    def outlines(self, seed: Seed) -> Iterator[SessionOutline]:
        """Yield the outlines of its sessions.

        Raises:
            NoTokenizer: the workload has text whose length in tokens is unknown.
        """
        ...


@runtime_checkable
class SupportsWords(Protocol):
    """A workload that may have real text."""

    @property
    def has_words(self) -> bool:
        """Whether it has; then written prompts are more accurate than outlines."""
        ...


def segment_blocks(segments: Iterable[Segment], block_tokens: int) -> Iterator[bytes]:
    """Hashes of a prompt's full blocks, each over everything up to the block's end.

    The counterpart of :func:`~bakeoff.workloads.prefixes.block_hashes` for segments.
    """
    running = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    filled = 0
    for name, tokens in segments:
        running.update(f"|{name}:".encode())
        at = block_tokens - filled  # tokens of this segment that complete the current block
        while at <= tokens:
            running.update(at.to_bytes(8, "little"))
            yield running.digest()
            at += block_tokens
        filled = (filled + tokens) % block_tokens


def outlines(workload: Workload, seed: Seed, tokenizer: Tokenizer | None = None) -> Iterator[SessionOutline]:
    """Outlines of a workload's sessions, taken from written prompts if the workload cannot outline.

    Raises:
        NoTokenizer: prompts must be written and there is no tokenizer.
    """
    is_written = tokenizer is not None and isinstance(workload, SupportsWords) and workload.has_words
    if isinstance(workload, SupportsOutlines) and not is_written:
        yield from workload.outlines(seed)
        return
    if tokenizer is None:
        raise NoTokenizer("this workload's prompts must be written to count their tokens; give a tokenizer's folder")
    reader = prompt_reader(tokenizer)
    for session in workload.sessions(tokenizer, seed):
        yield SessionOutline(session.id, session.start_s, tuple(_written(turn, reader) for turn in session.turns))


def _written(turn: Turn, reader: PromptReader) -> TurnOutline:
    """Outline of a written prompt: its full blocks, and an unshared rest."""
    ids = reader.ids(turn)
    blocks = [(digest.hex(), BLOCK_TOKENS) for digest in block_hashes(ids)]
    rest = len(ids) - BLOCK_TOKENS * len(blocks)
    segments = (*blocks, (f"rest {ids[-rest:]}", rest)) if rest else tuple(blocks)
    return TurnOutline(len(ids), turn.output_tokens, turn.think_s, segments, turn.parents, turn.lags_s, turn.agent)
