"""Which answers are compared: a seeded choice that is the same for every engine."""

import hashlib
from collections.abc import Callable, Iterable

from results.records import RequestRecord

_STRETCHES = 4
"""A trial of no more than 15 requests has so many stretches."""


def ranked(seed: str, requests: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Requests in the order in which they are chosen: at random, by seed, session and turn alone."""
    return sorted(requests, key=lambda request: _draw(f"{seed}/{request.session}/{request.turn}"))


def asks_logprobs(seed: str, samples: int) -> Callable[[int], bool]:
    """Whether the request at a position of a plan asks for log-probabilities.

    A closed loop's plan is longer than what it sends, so nobody knows beforehand how far it will get. The plan is cut
    into stretches of 1, 2, 4, 8… requests, and as many are asked in each as give ``samples`` over the first four.
    """
    each = -(-samples // _STRETCHES)

    def asks(position: int) -> bool:
        size = 1 << (position + 1).bit_length() - 1
        offset = position + 1 - size
        return each > 0 and any(_draw(f"{seed}/{size}/{number}") % size == offset for number in range(each))

    return asks


def _draw(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
