"""Encodes the server-sent events of one streamed answer, and writes them directly to the client."""

import asyncio
import uuid
from collections.abc import Sequence

from aiohttp import web

from bakeoff.reference_engine.core.outputs import TokenOutput
from bakeoff.reference_engine.serving.front_end_log import HttpTrace
from bakeoff.reference_engine.serving.openai_api.answers import encode, sse
from bakeoff.reference_engine.serving.openai_api.choices import OpenChoices, TokenEvent
from bakeoff.reference_engine.serving.openai_api.fields import StreamOptions
from bakeoff.reference_engine.serving.openai_api.formats import AnswerFormat, usage_of

# Placeholders of a text and a token id; random, so that they occur nowhere else in a chunk.
_ANY_TEXT = uuid.uuid4().hex
_ANY_TOKEN_ID = uuid.uuid4().int >> 65  # an integer of 63 bits, as JSON libraries take it


class ChunkEncoder:
    """Encodes the events of all choices.

    Chunks in the middle of an answer differ only in their text and token id. The bytes around these are taken from one
    chunk that was encoded in full, so that both methods give the same bytes.

    Args:
        open_choices: turn tokens into events.
        form: creates chunks.
        prompts: token ids.
        options: of the stream.
    """

    __slots__ = ("_around", "_choices", "_form", "_has_usage", "_prompts", "_push")

    def __init__(
        self,
        open_choices: OpenChoices,
        form: AnswerFormat,
        prompts: Sequence[Sequence[int]],
        options: StreamOptions,
    ) -> None:
        self._choices = open_choices.choices
        self._push = open_choices.push
        self._form = form
        self._prompts = prompts
        self._has_usage = options.continuous_usage_stats
        self._around: dict[int, tuple[bytes, bytes, bytes | None]] = {}  # by index of the choice

    def encode(self, outputs: Sequence[TokenOutput]) -> bytes:
        """The events of tokens, in their order; may be empty if a stop string has ended a choice."""
        parts: list[bytes] = []
        for output in outputs:
            event = self._push(output)
            if event is not None:
                parts.append(self._event(event))
        return b"".join(parts)

    def _event(self, event: TokenEvent) -> bytes:
        if event.finish_reason is not None or event.logprob is not None or self._has_usage:
            return self._event_in_full(event)
        if self._choices[event.index].reader is not None:  # the field of the text changes
            return self._event_in_full(event)
        around = self._around.get(event.index)
        if around is None:
            if self._choices[event.index].num_output == 1:  # it opens the choice, so it differs from all others
                return self._event_in_full(event)
            around = self._around[event.index] = self._bytes_around(event.index)
        head, middle, tail = around
        if tail is None:
            return head + encode(event.text) + middle
        return head + encode(event.text) + middle + encode(event.token_id) + tail

    def _event_in_full(self, event: TokenEvent) -> bytes:
        """The event, preceded by the opening of its choice."""
        choice = self._choices[event.index]
        chunk = self._form.chunk(event, choice)
        if self._has_usage:
            chunk.usage = usage_of(self._choices, self._prompts)
        opening = self._form.opening(choice) if choice.num_output == 1 else []
        return b"".join(sse(part) for part in (*opening, chunk))

    def _bytes_around(self, index: int) -> tuple[bytes, bytes, bytes | None]:
        """The bytes before the text, those between text and token id, and those after the token id if there is one."""
        event = self._event_in_full(TokenEvent(index, _ANY_TOKEN_ID, _ANY_TEXT))
        head, _, rest = event.partition(encode(_ANY_TEXT))
        middle, is_there, tail = rest.partition(encode(_ANY_TOKEN_ID))
        return head, middle, tail if is_there else None


class DirectWriter:
    """Writes chunks as `web.StreamResponse.write` does, without its coroutines; see `Sink`.

    It leaves tokens to their task, which can wait, as soon as the client reads so slowly that the socket is full.

    Args:
        http: an HTTP/1.1 request whose answer has begun, in chunked encoding.
        encoder: of its answer.
        trace: of the request; None if no log is being written.
    """

    __slots__ = ("_data", "_encoder", "_http", "_num_tokens", "_trace", "_transport")

    def __init__(self, http: web.Request, encoder: ChunkEncoder, trace: HttpTrace | None = None) -> None:
        self._http = http
        self._encoder = encoder
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._trace = trace
        self._num_tokens = 0

    def encode(self, outputs: Sequence[TokenOutput]) -> bool:
        self._transport = transport = self._http.transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size():
            return False
        self._data = self._encoder.encode(outputs)
        self._num_tokens = len(outputs)
        return True

    def write(self) -> None:
        data = self._data
        if self._trace is not None:
            self._trace.writes(self._num_tokens)
        if data and self._transport is not None:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
