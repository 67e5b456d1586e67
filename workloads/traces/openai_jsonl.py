"""``openai-jsonl``: request bodies of the OpenAI API, one per line, bare or in Batch API envelopes."""

from collections.abc import Iterator

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.checks import Clock, RequestedTokens, check_output_tokens, epoch_s
from bakeoff.workloads.traces.reading import bad, records
from bakeoff.workloads.traces.recorded_chat import ChatBody, Part, RecordedMessage, messages_of, tools_text
from bakeoff.workloads.traces.row import TraceRow


class _Body(ChatBody, frozen=True):
    at_s: float | None = None
    timestamp: float | str | None = None
    session: str | int | None = None
    system: str | list[Part] | None = None
    max_output_tokens: RequestedTokens | None = None
    max_new_tokens: RequestedTokens | None = None
    output_tokens: RequestedTokens | None = None
    output_len: RequestedTokens | None = None
    output_length: RequestedTokens | None = None
    expected_output_len: RequestedTokens | None = None

    @property
    def length(self) -> int | None:
        """The requested length of the answer, under any of its names."""
        names = (
            self.max_completion_tokens, self.max_tokens, self.max_output_tokens, self.max_new_tokens,
            self.output_tokens, self.output_len, self.output_length, self.expected_output_len,
        )  # fmt: skip
        return next(filter(None, names), None)


class _Line(_Body, frozen=True):
    body: _Body | None = None


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
                request = self._row(line, line.body or line, arrivals)
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
        if body.system and messages:  # as in Anthropic's bodies
            messages = messages_of([RecordedMessage("system", body.system)]) + messages
        length, answer = body.length or self.output_tokens, None
        if body.length is None and messages[1:] and messages[-1].role == "assistant" and messages[-1].content:
            *earlier, last = messages  # as sets for fine-tuning have it
            messages, length, answer = tuple(earlier), None, last.content
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
