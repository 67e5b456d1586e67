"""The common schema of all traces."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.types import Expected, Message


class TraceRow(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One recorded request.

    Attributes:
        at_s: arrival, in seconds from the trace's first request; None if only the order within sessions is known.
        input_tokens: tokens of the whole prompt; None if only its text is known.
        output_tokens: tokens of the answer; None if only its text is known.
        session: name of the conversation whose turns the rows are, in order; None for a single request.
        think_s: seconds between the end of the answers that it waits for, by default the session's previous one, and
            this request; None if unknown.
        blocks: hashes of the prompt's consecutive blocks of ``block_tokens`` tokens, the last of which may be partial.
            Requests with k equal leading hashes share their first k blocks. Empty if unknown.
        block_tokens: tokens per block; 0 without blocks.
        messages: real text of the prompt as a chat, or empty.
        prompt: real text of the prompt as a completion, or None.
        answer: text of the recorded answer; its length is counted if ``output_tokens`` is None.
        tools: JSON list of the functions that the model may call, as OpenAI's chats have them; None if there are none.
        expected: what a right answer is; None if answers are not scored.
        parents: positions, among the session's rows, of the requests whose answers it waits for, all before its own;
            None for the previous row. A session has them in all of its rows or in none.
        lags_s: seconds that each parent goes on after its answer; empty for none.
        agent: the agent of the session that sent it; empty for its main agent.
        recorded_s: seconds that the recorded answer took; 0 if unknown.
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
    tools: str | None = None
    expected: Expected | None = None
    parents: tuple[int, ...] | None = None
    lags_s: tuple[float, ...] = ()
    agent: str = ""
    recorded_s: float = 0.0


class Trace(Protocol):
    """A trace that can be read repeatedly. Implementations are frozen structs whose fields are the options."""

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """Yield the rows in the order of the file, in bounded memory.

        Args:
            seed: for what the trace leaves open, such as the position of a request within a clock tick.

        Raises:
            BadTrace: a row is invalid; the message names file and row.
        """
        ...

    def notes(self) -> list[str]:
        """Remarks for readers of a result: what was rounded, spread or left out."""
        ...


@runtime_checkable
class SupportsLengths(Protocol):
    """A trace that can read its rows without their blocks, which takes less time."""

    def lengths(self, seed: Seed) -> Iterator[TraceRow]:
        """Yield the rows of :meth:`Trace.rows` without blocks."""
        ...


@runtime_checkable
class SupportsFigures(Protocol):
    """A trace with figures of its own for a profile."""

    def figures(self) -> dict[str, float]:
        """The figures by name, over the whole trace, which is read for this."""
        ...
