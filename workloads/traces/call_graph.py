"""What each recorded call of a session waited for, found from times and contents.

A call depends on those whose answers its messages hold. A call that holds none, or whose messages are not recorded,
waits for all calls that had ended when it started, which includes the latest of every agent, as inference-perf's and
AIPerf's replays do.
"""

import heapq
from collections.abc import Iterator, Sequence

import msgspec

from bakeoff.workloads.types import Message, ToolCall

EQUAL_S = 0.002
"""Times that differ by less are the same instant: recordings round to milliseconds, and clocks differ."""
_TELLING_CHARS = 32
"""Shorter texts, such as a label, are in many messages without being anybody's answer."""
_Key = tuple[str, tuple[str, ...]]

Scope = tuple[tuple[str, float], ...]
"""The agents and tools around a call, from the outermost: id and end in seconds."""


class RecordedCall(msgspec.Struct, frozen=True):
    """A call.

    Attributes:
        start_s: when it was sent.
        end_s: when its answer ended.
        messages: its prompt; empty if it is not recorded.
        answers: its answer; empty if it is not recorded.
        scope: what it was sent from.
    """

    start_s: float
    end_s: float
    messages: tuple[Message, ...] = ()
    answers: tuple[Message, ...] = ()
    scope: Scope = ()


def parents_of(calls: Sequence[RecordedCall]) -> list[tuple[int, ...]]:
    """Positions of the calls that each call waits for, without those that another of them waits for.

    Args:
        calls: of one session, sorted by their start.
    """
    answers = _Answers(calls)
    parents: list[tuple[int, ...]] = []
    ancestors: list[int] = []  # sets of positions as bits
    ends: list[tuple[float, int]] = []
    ended = 0
    for position, call in enumerate(calls):
        while ends and ends[0][0] <= call.start_s + EQUAL_S:
            ended |= 1 << heapq.heappop(ends)[1]
        wanted = answers.held_by(position, ended)
        if wanted:
            wanted |= _ended_inside(calls, position, ended)
        parents.append(_reduced(wanted or ended, ancestors))
        ancestors.append(0)
        for parent in parents[-1]:
            ancestors[-1] |= ancestors[parent] | 1 << parent
        answers.add(position)
        heapq.heappush(ends, (call.end_s, position))
    return parents


def _reduced(wanted: int, ancestors: list[int]) -> tuple[int, ...]:
    """The wanted positions that are no ancestors of others."""
    kept: list[int] = []
    while wanted:
        last = wanted.bit_length() - 1  # a later call is no ancestor of an earlier one
        kept.append(last)
        wanted &= ~(ancestors[last] | 1 << last)
    return tuple(reversed(kept))


def _ended_inside(calls: Sequence[RecordedCall], position: int, ended: int) -> int:
    """The ended calls of agents and tools that its own agent had started and that had ended."""
    call = calls[position]
    depth = len(call.scope)
    inside = 0
    for other in range(position):
        scope = calls[other].scope
        if (
            len(scope) > depth
            and scope[:depth] == call.scope
            and scope[depth][1] <= call.start_s + EQUAL_S
            and ended >> other & 1
        ):
            inside |= 1 << other
    return inside


class _Answers:
    """Finds the calls whose answers are in other calls' messages."""

    def __init__(self, calls: Sequence[RecordedCall]) -> None:
        self._calls = calls
        self._continuations: dict[tuple[int, _Key], list[int]] = {}
        """Calls by a hash of their prompt and by their answer."""
        self._callers: dict[tuple[str, str, str], list[int]] = {}
        """Calls by the tool that they called: id, name and arguments."""
        self._writers: dict[str, list[int]] = {}
        """Calls by the text of their answer, if it is telling."""
        self._texts: list[tuple[str, ...]] = []
        """The keys of ``_writers`` as they may be inside other texts."""
        self._holders: dict[str, tuple[int, list[str]]] = {}
        """For each message's text, how many of ``_texts`` were looked for in it, and those that it holds."""

    def held_by(self, position: int, ended: int) -> int:
        """The earlier calls whose answers a call's messages hold, as bits.

        Args:
            position: of the call.
            ended: the calls that had ended when it started, as bits.
        """
        held = 0
        prefix = 0
        for message in self._calls[position].messages:
            key = _key(message)
            # A conversation that goes on behind an answer proves that the answer was there.
            found = self._continuations.get((prefix, key), []) if message.role == "assistant" else []
            if found:
                latest = _latest(self._calls, found, ended)
                held |= 1 << (found[-1] if latest is None else latest)
            else:
                for candidates in self._candidates(message):
                    latest = _latest(self._calls, candidates, ended)
                    held |= 0 if latest is None else 1 << latest
            prefix = hash((prefix, message.role, key))
        return held

    def add(self, position: int) -> None:
        """Make a call's answer known."""
        call = self._calls[position]
        prefix = 0
        for message in call.messages:
            prefix = hash((prefix, message.role, _key(message)))
        for answer in call.answers:
            text = answer.content.strip()
            if call.messages and (text or answer.tool_calls):
                self._continuations.setdefault((prefix, _key(answer)), []).append(position)
            for tool_call in answer.tool_calls:
                if tool_call.id:
                    self._callers.setdefault(_tool_key(tool_call), []).append(position)
            # An answer that quotes its own prompt may be in other messages for the same reason.
            if len(text) >= _TELLING_CHARS and not any(text in message.content for message in call.messages):
                if text not in self._writers:
                    escaped = msgspec.json.encode(text).decode()[1:-1]
                    self._texts.append((text,) if escaped == text else (text, escaped))
                self._writers.setdefault(text, []).append(position)

    def _candidates(self, message: Message) -> Iterator[list[int]]:
        """For each answer that a message may hold, the calls that gave it."""
        for tool_call in message.tool_calls:
            if tool_call.id:
                yield self._callers.get(_tool_key(tool_call), [])
        if message.role == "system" or len(message.content) < _TELLING_CHARS:
            return
        known, texts = self._holders.get(message.content, (0, []))
        texts += [forms[0] for forms in self._texts[known:] if any(form in message.content for form in forms)]
        self._holders[message.content] = len(self._texts), texts
        for text in texts:
            yield self._writers[text]


def _key(message: Message) -> _Key:
    """What of a message stays the same where it is repeated in a later prompt."""
    return message.content.strip(), tuple(call.id or f"{call.name} {call.arguments}" for call in message.tool_calls)


def _tool_key(call: ToolCall) -> tuple[str, str, str]:
    """The call with its arguments in one spelling: clients write them anew."""
    try:
        arguments = msgspec.json.encode(msgspec.json.decode(call.arguments), order="sorted").decode()
    except (msgspec.DecodeError, RecursionError):
        arguments = call.arguments
    return call.id, call.name, arguments


def _latest(calls: Sequence[RecordedCall], positions: Sequence[int], ended: int) -> int | None:
    """The one of these calls that ended last among those that had ended; None if none had."""
    done = [position for position in positions if ended >> position & 1]
    return max(done, key=lambda position: (calls[position].end_s, position), default=None)
