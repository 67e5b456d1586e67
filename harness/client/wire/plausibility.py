"""Bounds on the numbers of tokens that a server claims: a count that the answer cannot bear is not believed.

Servers count wrongly, or count what they did not stream, such as hidden reasoning. A token adds a byte of text at
least, unless it is special (an end of text that was ignored) or hidden; of those there may be as many as were
requested.
"""

from bakeoff.engines.dialects import TokenDelta, Usage
from bakeoff.results.records import RequestRecord

MAX_TOKENS = 10_000_000
"""Of one request: ten times the longest context."""


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
    # An answer that ignores the requested length has text: two bytes a token even where tokens are digits in pairs.
    return tokens <= max(2 * requested_tokens, chunks) or 2 * tokens <= text_bytes


def is_miscounted(request: RequestRecord) -> bool:
    """Whether the server claims more output tokens than the answer can have."""
    tokens, requested = request.output_tokens, request.requested_output_tokens
    if tokens is None:
        return False
    return not is_borne(tokens, len(request.text.encode()), len(request.chunk_ns), requested)
