"""Bodies of a session's requests, of which each mostly begins like the previous one of its conversation.

The prompts of a coding agent's session have a hundred thousand tokens each and grow by a few hundred from call to call:
whole bodies of one session are a hundred megabytes. A plan holds what each body adds to an earlier one, and a worker
builds it shortly before it is sent.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

_MIN_SHARED = 4096
"""Fewer shared bytes are sent as they are: short bodies are prepared in advance."""


class Body(msgspec.Struct, frozen=True, array_like=True):
    """A body, or what it adds to an earlier one.

    Attributes:
        rest: its bytes after the shared ones.
        shared: bytes at its beginning that are those of ``base``.
        base: position of an earlier body of the session; None if nothing is shared.
    """

    rest: bytes
    shared: int = 0
    base: int | None = None

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.shared + len(self.rest)


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
        shared = 0 if base is None else _common_bytes(bodies[base], body)
        result.append(Body(body[shared:], shared, base) if shared >= _MIN_SHARED else Body(body))
        last[conversation] = number
    return result


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
                self._built[position] = self._built[body.base][: body.shared] + body.rest
                self._release(body.base)
        whole = self._built[number]
        self._release(number)
        return whole

    def _release(self, number: int) -> None:
        self._needed[number] -= 1
        if not self._needed[number]:
            del self._built[number]


def _common_bytes(a: bytes, b: bytes) -> int:
    """Length of the common beginning, by bisection: comparing slices is much faster than comparing bytes."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
