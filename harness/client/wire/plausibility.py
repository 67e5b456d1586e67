"""Bounds on the numbers of tokens that a server claims: a count that the answer cannot have is not believed.

Servers count wrongly, or count what they did not stream, such as hidden reasoning. A token adds a byte of text at
least, unless it is special (an end of text that was ignored) or hidden; of those there may be as many as were
requested. And a token has no more text than the longest words of a vocabulary: few vocabularies have tokens of several
words, which then save a third (Liu et al., SuperBPE, COLM 2025).
"""

import re

from bakeoff.engines.dialects import TokenDelta, Usage

MAX_TOKENS = 10_000_000
"""Of one request: ten times the longest context."""
_LEAST_PER_WORD = 0.75
"""Tokens of a word between spaces, on average."""
_MOST_BYTES, _MOST_BYTES_OF_CHAR = 16, 4
"""Bytes of a token on average, where no character is repeated; bytes of a character in UTF-8."""
_FRAME_TOKENS = 2
_RUNS = re.compile(r"(.)\1{3,}", re.DOTALL)
"""Repeated characters, of which one token may have a hundred."""


def is_count(tokens: int | None) -> bool:
    """Whether a server's number can be a count of tokens at all; None is no number."""
    return tokens is None or 0 <= tokens <= MAX_TOKENS


def impossible_count(event: Usage | TokenDelta) -> str | None:
    """Why an event's counts are no counts; None if they may be."""
    counts = (
        (event.prompt_tokens, event.output_tokens, event.cached_tokens, event.reasoning_tokens, event.image_tokens)
        if isinstance(event, Usage)
        else (event.tokens,)
    )
    wrong = next((count for count in counts if not is_count(count)), None)
    return None if wrong is None else f"the server counts {wrong} tokens"


def is_borne(tokens: int, text_bytes: int, chunks: int, requested_tokens: int | None) -> bool:
    """Whether an answer can have this many tokens.

    Args:
        tokens: as claimed.
        text_bytes: of the text, in UTF-8.
        chunks: with tokens.
        requested_tokens: as requested; None if unknown, which bounds nothing.
    """
    if requested_tokens is None:
        return True
    if tokens > max(text_bytes, chunks) + requested_tokens:
        return False
    # An answer that ignores the requested length has text: two bytes a token even where tokens are digits in pairs, but
    # for those that begin and end it.
    return tokens <= max(2 * requested_tokens, chunks) or 2 * (tokens - _FRAME_TOKENS) <= text_bytes


def is_too_few(tokens: int, text: str) -> bool:
    """Whether a text has more words or characters than so many tokens can have."""
    if tokens < _LEAST_PER_WORD * len(text.split()):
        return True
    most_bytes = _MOST_BYTES * tokens
    return len(text) > most_bytes / _MOST_BYTES_OF_CHAR and len(_RUNS.sub(r"\1", text).encode()) > most_bytes
