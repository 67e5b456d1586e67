"""Bodies of a session's requests, of which each mostly holds the prompt of the previous one of its conversation.

The prompts of a coding agent's session have a hundred thousand tokens each and grow by a few hundred from call to call:
whole bodies of one session are a hundred megabytes. A plan holds what each body adds to an earlier one, and a worker
builds it shortly before it is sent.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from bakeoff.workloads.prefixes import common_length

_MIN_SHARED = 4096
"""Fewer shared bytes are kept as they are: short bodies are prepared in advance."""
_FIELDS = 1024
"""The fields before the prompt, such as the length of the answer, fit into this many bytes."""
_PROBE = 64


class Body(msgspec.Struct, frozen=True, array_like=True):
    """A body, or what it adds to an earlier one.

    Attributes:
        rest: its bytes behind the shared ones; all, if nothing is shared.
        head: its bytes before the shared ones.
        first: where the shared bytes begin in ``base``.
        shared: how many they are.
        base: position of an earlier body of the session; None if nothing is shared.
    """

    rest: bytes
    head: bytes = b""
    first: int = 0
    shared: int = 0
    base: int | None = None

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.shared + self.own_size

    @property
    def own_size(self) -> int:
        """Number of bytes that are not shared."""
        return len(self.head) + len(self.rest)


def shared_bodies(bodies: Sequence[bytes], conversations: Sequence[str]) -> list[Body]:
    """Each body as what it adds to the last one of its conversation.

    Args:
        bodies: of a session's requests.
        conversations: name of the conversation of each.
    """
    last: dict[str, int] = {}
    result: list[Body] = []
    for number, (body, conversation) in enumerate(zip(bodies, conversations, strict=True)):
        base = last.get(conversation)
        result.append(Body(body) if base is None else _shared(body, bodies[base], base))
        last[conversation] = number
    return result


def _shared(body: bytes, base: bytes, number: int) -> Body:
    """A body as what it adds to ``base``, which is the session's body ``number``.

    The fields before the prompt may differ in length, so the prompt is found by a few bytes behind them.
    """
    at = body.find(base[_FIELDS : _FIELDS + _PROBE], 0, 2 * _FIELDS + _PROBE)
    if at < 0 or len(base) < _FIELDS + _MIN_SHARED:
        return Body(body)
    shared = common_length(base, body, _FIELDS, at)
    return Body(body[at + shared :], body[:at], _FIELDS, shared, number) if shared >= _MIN_SHARED else Body(body)


class BodyBuilder:
    """Builds the bodies of one session, each once, and keeps those that others begin with.

    Args:
        bodies: as :func:`shared_bodies` returns them.
    """

    def __init__(self, bodies: Sequence[Body]) -> None:
        self._bodies = bodies
        self._needed = Counter(range(len(bodies)))  # for its own request, and for each body that begins with it
        self._needed.update(body.base for body in bodies if body.base is not None)
        self._built: dict[int, bytes] = {}

    def build(self, number: int) -> bytes:
        """The whole body at a position; call it once for each. Bodies that it begins with are built before it."""
        missing: list[int] = []
        position: int | None = number
        while position is not None and position not in self._built:
            missing.append(position)
            position = self._bodies[position].base
        for position in reversed(missing):
            body = self._bodies[position]
            if body.base is None:
                self._built[position] = body.rest
            else:
                held = self._built[body.base][body.first : body.first + body.shared]
                self._built[position] = b"".join((body.head, held, body.rest))
                self._release(body.base)
        whole = self._built[number]
        self._release(number)
        return whole

    def _release(self, number: int) -> None:
        self._needed[number] -= 1
        if not self._needed[number]:
            del self._built[number]
