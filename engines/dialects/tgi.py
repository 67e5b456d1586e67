"""TGI's two dialects: its OpenAI routes, and its own ``/generate_stream``.

Neither can force the length of an answer: TGI always stops at the end that the model puts. Each event is one token,
the end of sequence among them; a special token has no text that belongs to the answer. HTTP 200 says nothing: a request
that was refused, even for overload, is told so in an event of its stream.
"""

from typing import Any

import msgspec

from engines.dialects import failures
from engines.dialects.base import EmptyChunk, Event, Finish, HttpRequest, TokenDelta, Usage
from engines.dialects.openai import STREAM_HEADERS, OpenAiDialect
from workloads.types import Turn

_UNKNOWN = "unknown"
"""Reason of an end that comes without its details, which are asked for."""


class TgiDialect(OpenAiDialect):
    """Its OpenAI routes."""

    name = "tgi"

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Greedy decoding of at most ``output_tokens`` tokens; completions send usage unasked."""
        fields = super().sampling(turn)
        if turn.messages is None:
            del fields["stream_options"]
        return fields

    def prompt(self, turn: Turn) -> list[str | None]:
        """In a list, as its published schema has it; the server takes the bare text too."""
        return [turn.prompt]

    def asking_logprobs(self, turn: Turn) -> dict[str, Any]:
        """Chat has them; completions have none."""
        return {"logprobs": True} if turn.messages is not None else {}

    def answer_format(self, turn: Turn) -> dict[str, Any]:
        """A grammar in its own spelling, which chat takes and completions do not."""
        grammar = _grammar(turn) if turn.messages is not None else None
        return {"response_format": grammar} if grammar else {}

    def events(self, data: bytes) -> list[Event]:
        """Decode one payload. A chunk without text is a token too; an empty finish reason is none."""
        return [_one_token(event) for event in super().events(data) if event != Finish("")]


def _one_token(event: Event) -> Event:
    return TokenDelta("") if isinstance(event, EmptyChunk) else event


def _grammar(turn: Turn) -> dict[str, Any] | None:
    return {"type": "json", "value": msgspec.Raw(turn.json_schema.encode())} if turn.json_schema is not None else None


class _Token(msgspec.Struct):
    id: int
    text: str
    logprob: float | None = None
    special: bool = False


class _Details(msgspec.Struct):
    finish_reason: str
    generated_tokens: int
    input_length: int | None = None


class _Generated(msgspec.Struct):
    """One event of ``/generate_stream``; the last one has the whole text."""

    token: _Token
    generated_text: str | None = None
    details: _Details | None = None


class TgiNativeDialect(TgiDialect):
    """``/generate_stream``, with the id of every token. It takes text only, so chats go by the OpenAI route."""

    name = "tgi-native"

    def __init__(self) -> None:
        super().__init__()
        self._generated = msgspec.json.Decoder(_Generated)

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """A streamed, greedy request: a temperature of 0 would be refused. Log-probabilities always come."""
        if turn.messages is not None:
            return super().request(turn, model, logprobs=logprobs)
        parameters: dict[str, Any] = {"max_new_tokens": turn.output_tokens, "do_sample": False, "details": True}
        if grammar := _grammar(turn):
            parameters["grammar"] = grammar
        body = {"inputs": turn.prompt, "parameters": parameters}
        return HttpRequest("/generate_stream", STREAM_HEADERS, msgspec.json.encode(body))

    def events(self, data: bytes) -> list[Event]:
        """Decode one payload; what is no token is an error, a chunk of chat, or garbage."""
        try:
            said = self._generated.decode(data)
        except failures.UNREADABLE:
            return super().events(data)
        token, details = said.token, said.details
        logprobs = None if token.logprob is None else (token.logprob,)
        events: list[Event] = [TokenDelta("" if token.special else token.text, (token.id,), logprobs)]
        if said.generated_text is not None:
            events.append(Finish(details.finish_reason if details else _UNKNOWN))
        if details is not None:
            events.append(Usage(details.input_length, details.generated_tokens, in_choice=True))
        return events
