"""TGI's two dialects: its OpenAI routes, and its native ``/generate_stream``.

Their quirks, from https://huggingface.github.io/text-generation-inference and the router's source:

- The length of an answer cannot be forced: TGI always stops at the end of sequence.
- Each event is one token, including the end of sequence; the text of special tokens is not part of the answer.
- Requests are refused, even for overload, with HTTP 200 and an error event.
- ``/generate_stream`` refuses temperature 0, always sends log-probabilities, and takes no chats.
"""

from typing import Any

import msgspec

from bakeoff.engines.dialects import failures
from bakeoff.engines.dialects.base import EmptyChunk, Event, Finish, HttpRequest, TokenDelta, Usage
from bakeoff.engines.dialects.fields import OFFICIAL, Carriers, at, same
from bakeoff.engines.dialects.openai import STREAM_HEADERS, OpenAiDialect
from bakeoff.engines.dialects.values import count, number
from bakeoff.workloads.types import Turn

_UNKNOWN = "unknown"
"""Finish reason of an answer without ``details``, although the request asks for them."""


class TgiDialect(OpenAiDialect):
    """The OpenAI routes."""

    name = "tgi"

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Greedy decoding of at most ``output_tokens`` tokens; completions always send usage."""
        fields = super().sampling(turn)
        if turn.messages is None:
            del fields["stream_options"]
        return fields

    def carriers(self, turn: Turn) -> Carriers:
        """OpenAI's own settings; reasoning is up to the template."""
        of_chat = {} if turn.messages is None else same("tools", "tool_choice")
        return {**OFFICIAL, **of_chat}

    def prompt(self, turn: Turn) -> list[str | None]:
        """A list, as in its published schema; the server also accepts a string."""
        return [turn.prompt]

    def asking_logprobs(self, turn: Turn) -> dict[str, Any]:
        """Chats have log-probabilities; completions have none."""
        return {"logprobs": True} if turn.messages is not None else {}

    def answer_format(self, turn: Turn) -> dict[str, Any]:
        """A grammar in TGI's own format for chats; completions take none."""
        grammar = _grammar(turn) if turn.messages is not None else None
        return {"response_format": grammar} if grammar else {}

    def events(self, data: bytes) -> list[Event]:
        """Decode one payload. A chunk without text is also a token."""
        return [_one_token(event) for event in super().events(data)]


def _one_token(event: Event) -> Event:
    return TokenDelta("") if isinstance(event, EmptyChunk) else event


def _temperature(body: dict[str, Any], value: float) -> None:
    """The native route refuses temperature 0, which ``do_sample`` stands for."""
    body["parameters"] |= {"do_sample": True, "temperature": value} if value else {"do_sample": False}


def _grammar(turn: Turn) -> dict[str, Any] | None:
    return {"type": "json", "value": msgspec.Raw(turn.json_schema.encode())} if turn.json_schema is not None else None


class _Token(msgspec.Struct):
    id: int
    text: str
    logprob: Any = None
    special: Any = False


class _Details(msgspec.Struct):
    finish_reason: str
    generated_tokens: Any = None
    input_length: Any = None


class _Generated(msgspec.Struct):
    """One event of ``/generate_stream``; the last one has the whole text in ``generated_text``."""

    token: _Token
    generated_text: str | None = None
    details: _Details | None = None


class TgiNativeDialect(TgiDialect):
    """``/generate_stream`` with the id of every token; chats use the OpenAI route."""

    name = "tgi-native"

    def __init__(self) -> None:
        super().__init__()
        self._generated = msgspec.json.Decoder(_Generated, strict=False)

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """A streamed request, greedy by ``do_sample``; log-probabilities need no field."""
        if turn.messages is not None:
            return super().request(turn, model, logprobs=logprobs)
        parameters: dict[str, Any] = {"max_new_tokens": turn.output_tokens, "do_sample": False, "details": True}
        if grammar := _grammar(turn):
            parameters["grammar"] = grammar
        body = {"inputs": turn.prompt, "parameters": parameters}
        return HttpRequest("/generate_stream", STREAM_HEADERS, msgspec.json.encode(body))

    def carriers(self, turn: Turn) -> Carriers:
        """The native route has all settings in one object, and a switch for sampling."""
        if turn.messages is not None:
            return super().carriers(turn)
        names = ("top_p", "top_k", "repetition_penalty", "frequency_penalty", "seed", "stop")
        return {"temperature": _temperature, **{name: at(f"parameters.{name}") for name in names}}

    def events(self, data: bytes) -> list[Event]:
        """Decode one payload; other payloads than tokens are chunks of chats or errors."""
        try:
            event = self._generated.decode(data)
        except failures.UNREADABLE:
            return super().events(data)
        token, details = event.token, event.details
        logprob = number(token.logprob)
        logprobs = None if logprob is None else (logprob,)
        events: list[Event] = [TokenDelta("" if token.special else token.text, (token.id,), logprobs)]
        if event.generated_text is not None:
            events.append(Finish(details.finish_reason if details else _UNKNOWN))
        if details is not None:
            events.append(Usage(count(details.input_length), count(details.generated_tokens), in_choice=True))
        return events
