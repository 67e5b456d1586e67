"""The one schema that every trace is read into."""

from collections.abc import Iterator
from typing import Protocol

import msgspec

from workloads.rng import Seed
from workloads.types import Message


class TraceRow(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One recorded request.

    Attributes:
        at_s: arrival, in seconds from the trace's first request; None where the trace says only what followed what
            inside a session.
        input_tokens: of the whole prompt; None where only its text is known.
        output_tokens: of the answer; None where only its text is known.
        session: rows of one name are turns of one conversation, in this order; None for a request on its own.
        think_s: seconds between the end of the session's last answer and this request; None where unknown.
        blocks: names of the prompt's consecutive blocks of ``block_tokens`` tokens, the last one perhaps partial: two
            requests whose first k names are equal share their first k blocks. Empty where unknown.
        block_tokens: tokens of a block; 0 where there are no blocks.
        messages: the prompt's real text as a chat, or none.
        prompt: the prompt's real text as a completion, or None.
        answer: the recorded answer's text, from which its length is counted where ``output_tokens`` is None.
    """

    at_s: float | None
    input_tokens: int | None
    output_tokens: int | None
    session: str | None = None
    think_s: float | None = None
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    answer: str | None = None


class Trace(Protocol):
    """A trace that can be read again and again. Implementations are frozen structs whose fields are the options."""

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """Yield the rows in the order of the file, holding no more of it than sessions that are still open.

        Args:
            seed: for what a trace leaves open, such as where inside a clock tick a request came.

        Raises:
            BadTrace: a row cannot be read; the message names file and row.
        """
        ...

    def notes(self) -> list[str]:
        """What a reader of the result must know: what was rounded, spread or left out."""
        ...
