"""Sessions as graphs: which calls a call waits for, when each is due, and what is left of a session.

Calls are turns in an order in which every call follows all that it waits for. A session of one conversation is a chain:
each call waits for the previous one.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TypeVar

import msgspec

Parents = tuple[int, ...]
"""Positions in the session of the calls that a call waits for."""


class Linked(Protocol):
    """A call of any kind: written, drawn or outlined."""

    @property
    def parents(self) -> Parents | None:
        """Positions of the turns that a turn waits for."""
        ...

    @property
    def lags_s(self) -> tuple[float, ...]: ...

    @property
    def think_s(self) -> float: ...


L = TypeVar("L", bound=msgspec.Struct)


def previous(number: int) -> Parents:
    """The parents of a call in a chain."""
    return (number - 1,) if number else ()


def parents_of(turns: Sequence[Linked]) -> tuple[Parents, ...]:
    """The parents of each call, with those of chains filled in."""
    return tuple(turn.parents if turn.parents is not None else previous(number) for number, turn in enumerate(turns))


def is_chain(turns: Sequence[Linked]) -> bool:
    """Whether each call waits for the previous one alone."""
    return all(turn.parents is None for turn in turns)


def problem_of(turns: Sequence[Linked]) -> str | None:
    """What is wrong with the links of a session from outside; None if nothing is."""
    for number, turn in enumerate(turns):
        parents = turn.parents or ()
        if any(not 0 <= parent < number for parent in parents) or len(set(parents)) < len(parents):
            return f"turn {number} waits for turns {list(parents)}; parents must be different earlier turns, from 0"
        if turn.lags_s and len(turn.lags_s) != len(parents):
            return f"turn {number} has {len(turn.lags_s)} lags for {len(parents)} parents; give one for each, or none"
    return None


class Links(msgspec.Struct, frozen=True):
    """What the calls of one session wait for.

    Attributes:
        parents: of each call.
        lags_s: seconds that each parent's end is put off for the call, one for each parent; empty for none.
        pauses_s: seconds between the last of these ends, or the session's start, and the call.
    """

    parents: tuple[Parents, ...]
    lags_s: tuple[tuple[float, ...], ...]
    pauses_s: tuple[float, ...]

    @classmethod
    def of(cls, turns: Sequence[Linked]) -> "Links":
        """The links of a session; the first call of a chain has no pause."""
        return cls(
            parents_of(turns),
            tuple(turn.lags_s for turn in turns),
            tuple(turn.think_s if number or turn.parents is not None else 0.0 for number, turn in enumerate(turns)),
        )

    def times_s(self, answers_s: Sequence[float]) -> tuple[list[float], list[float]]:
        """Start and end of each call in seconds since the session's start, if its answer takes ``answers_s``."""
        starts_s: list[float] = []
        ends_s: list[float] = []
        for parents, lags_s, pause_s, answer_s in zip(self.parents, self.lags_s, self.pauses_s, answers_s, strict=True):
            lags = lags_s or (0.0,) * len(parents)
            ready_s = max((ends_s[parent] + lag_s for parent, lag_s in zip(parents, lags, strict=True)), default=0.0)
            starts_s.append(ready_s + pause_s)
            ends_s.append(ready_s + pause_s + answer_s)
        return starts_s, ends_s

    def first_within(
        self, reach_s: float, *, ended: Collection[int] = (), due_s: Mapping[int, float] = MappingProxyType({})
    ) -> int:
        """Number of the first calls that hold all that have ended or whose parents' pauses alone end in ``reach_s``.

        Args:
            reach_s: seconds from the session's start, or from the moment that ``ended`` and ``due_s`` describe.
            ended: calls that have ended by then.
            due_s: calls whose parents have ended by then, with the seconds until they are due.
        """
        passed_s: list[float] = []
        within = 0
        for number, (parents, pause_s) in enumerate(zip(self.parents, self.pauses_s, strict=True)):
            left_s = [passed_s[parent] for parent in parents if parent not in ended]
            ready_s = max(left_s, default=0.0)
            passed_s.append(due_s[number] if number in due_s else ready_s + pause_s)
            if number in ended or ready_s <= reach_s:
                within = number + 1
        return within


def kept(turns: Sequence[L], positions: Collection[int]) -> tuple[L, ...]:
    """The calls at ``positions``; a call whose parent is left out waits for that parent's parents instead.

    The pause of a call that is left out, and its lag, are left out as well.
    """
    if is_chain(turns):  # type: ignore[arg-type]
        return tuple(turn for number, turn in enumerate(turns) if number in positions)
    places: dict[int, int] = {}
    heirs: dict[int, dict[int, float]] = {}
    result: list[L] = []
    for number, (turn, parents) in enumerate(zip(turns, parents_of(turns), strict=True)):  # type: ignore[arg-type]
        lags = turn.lags_s or (0.0,) * len(parents)  # type: ignore[attr-defined]
        ready: dict[int, float] = {}
        for parent, lag_s in zip(parents, lags, strict=True):
            for place, earlier_s in heirs[parent].items() if parent in heirs else ((places[parent], 0.0),):
                ready[place] = max(ready.get(place, 0.0), lag_s, earlier_s)
        if number in positions:
            places[number] = len(result)
            lags_s = tuple(ready.values()) if any(ready.values()) else ()
            result.append(msgspec.structs.replace(turn, parents=tuple(ready), lags_s=lags_s))
        else:
            heirs[number] = ready
    return tuple(result)


def first_alone(turn: L) -> L:
    """The turn as the only one of a session, at its start."""
    return msgspec.structs.replace(turn, parents=None, lags_s=(), think_s=0.0)
