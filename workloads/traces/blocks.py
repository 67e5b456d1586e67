"""Globally unique block hashes for traces whose hashes are unique within one session only."""

from collections.abc import Iterable
from hashlib import blake2b

_LIMIT = 2**63
"""Hashes are non-negative and below this."""


class BlockHashes:
    """Block hashes of one session, distinct from those of other sessions.

    They count up from a 64-bit hash (BLAKE2b) of the session's name. With a thousand sessions of a hundred thousand
    blocks, the probability that two ranges overlap is one in a hundred million.
    """

    def __init__(self, *session: str) -> None:
        digest = blake2b("\0".join(session).encode(errors="surrogatepass"), digest_size=8).digest()
        self._base = int.from_bytes(digest, "big")

    def __getitem__(self, number: int) -> int:
        """Hash of the session's block ``number``."""
        return (self._base + number) % _LIMIT

    def of(self, numbers: Iterable[int]) -> list[int]:
        """Hashes of several blocks."""
        base = self._base  # a session of a coding agent has a hundred thousand: a call for each would take too long
        return [(base + number) % _LIMIT for number in numbers]


def blocks_of(input_tokens: int, block_tokens: int) -> int:
    """Number of blocks of a prompt; the last one may be partial."""
    return -(-input_tokens // block_tokens)
