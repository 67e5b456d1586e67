"""Names of prompt blocks in traces whose own names hold within one session only."""

from hashlib import blake2b

_NAMES = 2**63
"""Names stay non-negative and below this."""


class BlockNames:
    """Names for the blocks of one session that no other session has.

    A session's names begin at a 64-bit hash (BLAKE2b) of its own name and count on from there. With a thousand
    sessions of a hundred thousand blocks, the odds that any two ranges touch are one in a hundred million.
    """

    def __init__(self, *session: str) -> None:
        digest = blake2b("\0".join(session).encode(errors="surrogatepass"), digest_size=8).digest()
        self._base = int.from_bytes(digest, "big")

    def __getitem__(self, number: int) -> int:
        """The name of the session's block ``number``."""
        return (self._base + number) % _NAMES


def blocks_of(input_tokens: int, block_tokens: int) -> int:
    """How many blocks a prompt has, the last one perhaps partial."""
    return -(-input_tokens // block_tokens)
