"""When the truth server answers, and with what."""

import functools

import msgspec


class Schedule(msgspec.Struct, frozen=True):
    """One answer's timetable, counted from the read that completed its request.

    Attributes:
        ttft_s: delay of the first chunk.
        itl_s: gap between two chunks.
        tokens_per_chunk: tokens in each chunk; the last one carries what is left.
    """

    ttft_s: float = 0.05
    itl_s: float = 0.01
    tokens_per_chunk: int = 1

    def due_ns(self, start_ns: int, chunk: int) -> int:
        """When chunk number ``chunk`` (from 0) of an answer whose request arrived at ``start_ns`` is due."""
        return start_ns + round((self.ttft_s + chunk * self.itl_s) * 1e9)

    @functools.cache  # noqa: B019  (frozen and few: what an answer costs the server must not depend on its length)
    def chunks(self, tokens: int) -> tuple[bytes, ...]:
        """The HTTP chunks of an answer of ``tokens`` tokens: token-bearing ones, then usage, finish and the end."""
        pieces: list[bytes] = []
        for first in range(0, tokens, self.tokens_per_chunk):
            ids = list(range(first, min(first + self.tokens_per_chunk, tokens)))
            pieces.append(_event({"choices": [{"index": 0, "text": " a" * len(ids), "token_ids": ids}]}))
        usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
        end = _event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": usage})
        pieces.append(end + _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        return tuple(pieces)


def _event(payload: dict[str, object]) -> bytes:
    return _framed(b"data: " + msgspec.json.encode(payload) + b"\n\n")


def _framed(body: bytes) -> bytes:
    """One chunk of HTTP's chunked transfer coding."""
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"
