"""Traffic of several classes: each session is of one class, drawn by the classes' weights.

A Poisson process whose arrivals are marked at random is a Poisson process for each mark (Kingman, Poisson Processes,
1993, ch. 2), so classes with a share of one such process have arrivals of their own. Each class draws its sessions from
a seed of its own: those of a class are the same whatever the others are.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Self, TypeVar

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.shapes import SessionShape, SupportsShapes, chosen_sessions
from bakeoff.workloads.tokenizer import Tokenizer
from bakeoff.workloads.types import Session, SupportsPrimers, SupportsReach, Workload

T = TypeVar("T")


class Part(NamedTuple):
    """A class, its share of the sessions relative to the others', and its sessions."""

    name: str
    weight: float
    workload: Workload


class Mix:
    """A workload whose sessions belong to classes.

    Args:
        parts: the classes.
        in_turn: whether they follow each other in turn, whatever their weights.
    """

    def __init__(self, parts: Sequence[Part], *, in_turn: bool = False) -> None:
        self._parts = list(parts)
        self._in_turn = in_turn
        total = sum(part.weight for part in parts)
        self._ends = [end / total for end in itertools.accumulate(part.weight for part in parts)]

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        """Sessions of all classes, until one of them has no more."""
        sources = [self._sessions_of(number, tokenizer, seed) for number in range(len(self._parts))]
        return self._in_order(sources, seed)

    def shapes(self, seed: Seed) -> Iterator[SessionShape] | None:
        """The shapes of all classes; None if a class states none."""
        stated = [
            part.workload.shapes(_seed_of(part, seed)) if isinstance(part.workload, SupportsShapes) else None
            for part in self._parts
        ]
        known = [shapes for shapes in stated if shapes is not None]
        return self._in_order(known, seed) if len(known) == len(self._parts) else None

    def chosen(self, tokenizer: Tokenizer, seed: Seed, turns: Mapping[int, int]) -> Iterator[Session]:
        own: list[dict[int, int]] = [{} for _ in self._parts]
        counts, order = [0] * len(self._parts), list[int]()
        for number, part in enumerate(itertools.islice(self._order(seed), max(turns, default=-1) + 1)):
            if number in turns:
                own[part][counts[part]] = turns[number]
                order.append(part)
            counts[part] += 1
        sources = [
            chosen_sessions(part.workload, tokenizer, _seed_of(part, seed), own[number])
            for number, part in enumerate(self._parts)
        ]
        for number in order:
            if (session := next(sources[number], None)) is None:
                return
            yield self._marked(session, number)

    def within(self, reach_s: float) -> Self:
        parts = [
            part._replace(workload=part.workload.within(reach_s)) if isinstance(part.workload, SupportsReach) else part
            for part in self._parts
        ]
        return type(self)(parts, in_turn=self._in_turn)

    def primers(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        """Primers of the classes whose prompts are shared."""
        for number, part in enumerate(self._parts):
            if isinstance(part.workload, SupportsPrimers):
                for session in part.workload.primers(tokenizer, _seed_of(part, seed)):
                    yield self._marked(session, number)

    def in_turn(self) -> Self:
        """The same classes, which follow each other in turn, whatever their weights."""
        return type(self)(self._parts, in_turn=True)

    def notes(self) -> list[str]:
        """Those of each class, with its name."""
        return [f"class {part.name}: {note}" for part in self._parts for note in part.workload.notes()]

    def _sessions_of(self, number: int, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        part = self._parts[number]
        return (self._marked(session, number) for session in part.workload.sessions(tokenizer, _seed_of(part, seed)))

    def _order(self, seed: Seed) -> Iterator[int]:
        """The class of each session."""
        if self._in_turn:
            yield from itertools.cycle(range(len(self._parts)))
        draws = seed.draws("class")
        while True:
            place = draws.uniform()
            yield next((number for number, end in enumerate(self._ends) if place < end), len(self._ends) - 1)

    def _in_order(self, sources: Sequence[Iterator[T]], seed: Seed) -> Iterator[T]:
        """Items of the classes in the order of the sessions, until one has no more."""
        for number in self._order(seed):
            for item in itertools.islice(sources[number], 1):
                yield item
                break
            else:
                return

    def _marked(self, session: Session, number: int) -> Session:
        name = self._parts[number].name
        return msgspec.structs.replace(session, id=f"{name}:{session.id}", traffic_class=name, start_s=None)


def _seed_of(part: Part, seed: Seed) -> Seed:
    return Seed(f"{seed.traffic}/{part.name}", f"{seed.words}/{part.name}")
