"""``openai-jsonl``: request bodies of the OpenAI API, one per line, bare or in the envelopes of batches and logs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.checks import Clock, check_output_tokens, epoch_s, tokens
from bakeoff.workloads.traces.reading import each, left_out
from bakeoff.workloads.traces.recorded_chat import ChatBody, RecordedMessage, tools_text
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.types import Message

ENVELOPES = ("body", "request", "request_body", "params")
"""Fields of a line that may hold the body: of OpenAI's batches, of logs of requests and responses, of Anthropic's."""
_TIMES = ("at_s", "timestamp", "ts", "time", "created_at", "start_time")


class _Body(ChatBody, frozen=True):
    at_s: float | None = None
    timestamp: float | str | None = None
    ts: float | str | None = None
    time: float | str | None = None
    created_at: float | str | None = None
    start_time: float | str | None = None
    session: str | int | None = None
    continue_final_message: bool = False
    system: Any = None
    max_output_tokens: Any = None
    max_new_tokens: Any = None
    output_tokens: Any = None
    output_len: Any = None
    output_length: Any = None
    expected_output_len: Any = None
    completion_tokens: Any = None

    @property
    def length(self) -> int | None:
        """The requested length of the answer, under any of its names, of which only OpenAI's must be numbers."""
        named = (
            self.max_output_tokens, self.max_new_tokens, self.output_tokens, self.output_len, self.output_length,
            self.expected_output_len, self.completion_tokens,
        )  # fmt: skip
        return next(filter(None, (self.max_completion_tokens, self.max_tokens, *map(_length, named))), None)

    def with_system(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages behind the system prompt that Anthropic's bodies have beside them."""
        parts = [self.system] if isinstance(self.system, str) else self.system if isinstance(self.system, list) else []
        texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
        prompt = "\n".join(text for text in texts if isinstance(text, str) and text.strip())
        is_missing = prompt and messages and messages[0].role != "system"
        return (Message("system", prompt), *messages) if is_missing else messages

    def is_answered(self, messages: tuple[Message, ...]) -> bool:
        """Whether the last message is the recorded answer, as in sets for fine-tuning."""
        *earlier, last = messages or (Message("user", ""),)
        is_answer = last.role == "assistant" and bool(last.content) and not last.tool_calls
        is_asked = any(message.role in {"user", "tool"} for message in earlier)
        return is_answer and is_asked and self.length is None and not self.continue_final_message


def _length(value: Any) -> int | None:  # noqa: ANN401  (any JSON value)
    """A length, also as 20.0 or "20"; None for any other value."""
    try:
        return tokens(str(value), "", 1)
    except ValueError:
        return None


class _Line(_Body, frozen=True):
    body: Any = None
    request: Any = None
    request_body: Any = None
    params: Any = None
    response: Any = None
    """The recorded answer, in a log."""

    @property
    def sent(self) -> _Body:
        """The body of the request: in one of the envelopes, or the line itself.

        Raises:
            ValueError: the body has a field of another type.
        """
        if self.messages is not None or self.prompt is not None:
            return self
        inner = ((name, opened_envelope(getattr(self, name))) for name in ENVELOPES)
        return next((_inner(name, value) for name, value in inner if value is not None), self)

    @property
    def answered_tokens(self) -> int | None:
        """Tokens of the recorded answer, if the line has its usage."""
        response = self.response if isinstance(self.response, dict) else {}
        body = response.get("body")
        usage = (body if isinstance(body, dict) else response).get("usage")
        counts = usage if isinstance(usage, dict) else {}
        return next(filter(None, (_length(counts.get(name)) for name in ("completion_tokens", "output_tokens"))), None)


def opened_envelope(value: Any) -> dict[str, Any] | None:  # noqa: ANN401  (any JSON value)
    """The object that an envelope's field holds, also as JSON text; None for another value."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with contextlib.suppress(msgspec.DecodeError):
            value = msgspec.json.decode(value)
    return value if isinstance(value, dict) else None


def _inner(name: str, value: dict[str, Any]) -> _Body:
    """The body in an envelope; a log of HTTP requests has one more around it."""
    if isinstance(value.get("body"), dict):
        value = value["body"]
    try:
        return msgspec.convert(value, _Body, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"its field {name} is no body of a request ({error})") from None


class OpenAiJsonl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lines of ``{"messages": […], "max_tokens": …}`` or ``{"prompt": …}``, or arrays of messages.

    The line may be an envelope, which holds the body as ``body``, ``request``, ``request_body`` or ``params``, and the
    recorded usage in ``response``. Body or envelope may have ``at_s``, ``timestamp`` or ``ts`` (seconds, or a time
    stamp) and ``session``.
    """

    path: str
    """The file of JSON lines, plain or gzip."""
    output_tokens: int = 256
    """Requested length of the answer if a body states none, as ``max_completion_tokens`` or ``max_tokens``."""
    skip_bad: bool = False
    """Whether to leave out lines that cannot be read, and to count them, instead of refusing the file."""

    def __post_init__(self) -> None:
        check_output_tokens(self.output_tokens)

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        arrivals = _Arrivals()
        yield from each(self.path, _LINES, lambda _, line: self._row(line, arrivals), is_lenient=self.skip_bad)

    def notes(self) -> list[str]:
        """What is not replayed."""
        arrivals = _Arrivals()
        return [
            *(
                left_out("openai-jsonl", self.path, _LINES, lambda _, line: self._row(line, arrivals))
                if self.skip_bad
                else ()
            ),
            "openai-jsonl: messages, tools and prompts as recorded; no other fields, such as sampling, are sent",
            "openai-jsonl: a last message of the assistant is the recorded answer, unless the body states a length",
            "openai-jsonl: the length of an answer is that of the recorded response, if the line has its usage",
            "openai-jsonl: at_s and timestamp count seconds, unless they are times since 1970 in smaller units",
            "openai-jsonl: the model ends an answer for which tools are recorded; other answers have the stated length",
            f"openai-jsonl: a body without a length, such as max_tokens, requests {self.output_tokens} tokens",
        ]

    def _row(self, line: _Line | list[RecordedMessage], arrivals: "_Arrivals") -> TraceRow:
        if isinstance(line, list):
            line = _Line(messages=line)
        body = line.sent
        messages, prompt = body.checked_prompt()
        messages = body.with_system(messages)
        length, answer = line.answered_tokens or body.length or self.output_tokens, None
        if body.is_answered(messages):
            messages, length, answer = messages[:-1], None, messages[-1].content
        session = line.session if line.session is not None else body.session
        return TraceRow(
            arrivals.next_s(line, body),
            None,
            length,
            None if session is None else str(session),
            messages=messages,
            prompt=prompt,
            tools=tools_text(body.tools),
            answer=answer,
        )


_LINES = msgspec.json.Decoder(_Line | list[RecordedMessage], strict=False)


class _Arrivals:
    """Times of the rows; either all rows have one or none has."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._timed: bool | None = None

    def next_s(self, *places: _Body) -> float | None:
        """Offset of the next row, from the first of ``places`` that has a time."""
        times = (time for place in places for time in map(place.__getattribute__, _TIMES))
        time = next((time for time in times if time is not None), None)
        self._timed = time is not None if self._timed is None else self._timed
        if self._timed != (time is not None):
            raise ValueError(
                "has no time, but earlier rows do" if self._timed else "has a time, but earlier rows do not"
            )
        if time is None:
            return None
        return self._clock.stamp_offset_s(time) if isinstance(time, str) else self._clock.offset_s(epoch_s(time))
