"""Shapes of sessions: answer lengths and pauses without prompts, enough to say which sessions are in progress.

Some workloads also write chosen sessions of their sequence alone, which saves the text of all others.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from bakeoff.workloads.graph import Linked, Links, is_chain, previous
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.tokenizer import Tokenizer
from bakeoff.workloads.types import Session, Workload


class TimedTurn(Linked, Protocol):
    """A turn of any kind: written, drawn or outlined."""

    @property
    def output_tokens(self) -> int:
        """Requested length of the answer."""
        ...


class SessionShape(msgspec.Struct, frozen=True):
    """One session without its prompts.

    Attributes:
        output_tokens: requested length of each turn's answer.
        think_s: seconds of pause before each turn; that before the first of a chain counts as 0.
        graph: what each turn waits for; None for a chain.
    """

    output_tokens: tuple[int, ...]
    think_s: tuple[float, ...]
    graph: Links | None = None

    @classmethod
    def of(cls, turns: Sequence[TimedTurn]) -> "SessionShape":
        """The shape of a session with these turns."""
        graph = None if is_chain(turns) else Links.of(turns)
        return cls(tuple(turn.output_tokens for turn in turns), tuple(turn.think_s for turn in turns), graph)

    @property
    def links(self) -> Links:
        """What each turn waits for, of a chain as well."""
        if self.graph is not None:
            return self.graph
        count = len(self.think_s)
        parents = tuple(map(previous, range(count)))
        return Links(parents, ((),) * count, (0.0, *self.think_s[1:]))


@runtime_checkable
class SupportsShapes(Protocol):
    """A workload that can state the shapes of its sessions without writing them."""

    def shapes(self, seed: Seed) -> Iterator[SessionShape] | None:
        """The shapes, in the order of the sessions; None if they can only be counted in written sessions."""
        ...


@runtime_checkable
class SupportsChoice(Protocol):
    """A workload that can write some of its sessions alone."""

    def chosen(self, tokenizer: Tokenizer, seed: Seed, turns: Mapping[int, int]) -> Iterator[Session]:
        """Yield the sessions with these numbers, counted from 0, in the order of their numbers.

        Args:
            tokenizer: as for :meth:`~bakeoff.workloads.types.Workload.sessions`.
            seed: likewise.
            turns: session number → number of its first turns to write.
        """
        ...


def session_shapes(workload: Workload, tokenizer: Tokenizer, seed: Seed) -> Iterator[SessionShape]:
    """The shapes of a workload's sessions, from written sessions if the workload states none."""
    stated = workload.shapes(seed) if isinstance(workload, SupportsShapes) else None
    if stated is not None:
        return stated
    return (SessionShape.of(session.turns) for session in workload.sessions(tokenizer, seed))


def chosen_sessions(
    workload: Workload, tokenizer: Tokenizer, seed: Seed, turns: Mapping[int, int]
) -> Iterator[Session]:
    """The sessions with these numbers, cut to their first turns; see :meth:`SupportsChoice.chosen`."""
    if isinstance(workload, SupportsChoice):
        yield from workload.chosen(tokenizer, seed, turns)
        return
    for number, session in enumerate(itertools.islice(workload.sessions(tokenizer, seed), max(turns, default=-1) + 1)):
        if number in turns:
            yield msgspec.structs.replace(session, turns=session.turns[: turns[number]])
