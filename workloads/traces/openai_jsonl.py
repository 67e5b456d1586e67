"""``openai-jsonl``: request bodies of the OpenAI API, one per line, bare or in Batch API envelopes."""

from collections.abc import Iterator
from typing import Any

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.checks import Clock, check_output_tokens, epoch_s, tokens
from bakeoff.workloads.traces.reading import bad, records
from bakeoff.workloads.traces.recorded_chat import ChatBody, tools_text
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.types import Message


class _Body(ChatBody, frozen=True):
    at_s: float | None = None
    timestamp: float | str | None = None
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
    body: _Body | None = None
    params: Any = None
    """The body, in a batch of Anthropic's."""

    @property
    def request(self) -> _Body:
        """The body of the request: in one of the envelopes, or the line itself.

        Raises:
            ValueError: the body has a field of another type.
        """
        if self.body is not None or self.messages is not None or self.prompt is not None:
            return self.body or self
        try:
            return msgspec.convert(self.params, _Body, strict=False) if isinstance(self.params, dict) else self
        except msgspec.ValidationError as error:
            raise ValueError(f"its params are no body of a request ({error})") from None


class OpenAiJsonl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lines of ``{"messages": […], "max_tokens": …}`` or ``{"prompt": …}``, optionally as the ``body`` of an envelope.

    The body or its envelope may have ``at_s`` or ``timestamp`` (seconds, or a time stamp) and ``session``.
    """

    path: str
    """The file of JSON lines, plain or gzip."""
    output_tokens: int = 256
    """Requested length of the answer if a body states none, as ``max_completion_tokens`` or ``max_tokens``."""

    def __post_init__(self) -> None:
        check_output_tokens(self.output_tokens)

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        arrivals = _Arrivals()
        for row, line in records(self.path, msgspec.json.Decoder(_Line, strict=False)):
            try:
                request = self._row(line, line.request, arrivals)
            except ValueError as cause:
                raise bad(self.path, row, str(cause)) from None
            yield request

    def notes(self) -> list[str]:
        """What is not replayed."""
        return [
            "openai-jsonl: messages, tools and prompts as recorded; no other fields, such as sampling, are sent",
            "openai-jsonl: a last message of the assistant is the recorded answer, unless the body states a length",
            "openai-jsonl: at_s and timestamp count seconds, unless they are times since 1970 in smaller units",
            "openai-jsonl: the model ends an answer for which tools are recorded; other answers have the stated length",
            f"openai-jsonl: a body without a length, such as max_tokens, requests {self.output_tokens} tokens",
        ]

    def _row(self, line: _Line, body: _Body, arrivals: "_Arrivals") -> TraceRow:
        messages, prompt = body.checked_prompt()
        messages = body.with_system(messages)
        length, answer = body.length or self.output_tokens, None
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


class _Arrivals:
    """Times of the rows; either all rows have one or none has."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._timed: bool | None = None

    def next_s(self, *places: _Body) -> float | None:
        """Offset of the next row, from the first of ``places`` that has a time."""
        times = (time for place in places for time in (place.at_s, place.timestamp))
        time = next((time for time in times if time is not None), None)
        self._timed = time is not None if self._timed is None else self._timed
        if self._timed != (time is not None):
            raise ValueError(
                "has no time, but earlier rows do" if self._timed else "has a time, but earlier rows do not"
            )
        if time is None:
            return None
        return self._clock.stamp_offset_s(time) if isinstance(time, str) else self._clock.offset_s(epoch_s(time))
