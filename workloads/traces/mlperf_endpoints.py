"""``mlperf-endpoints``: conversations of MLPerf Endpoints with tools, one message a row.

The form of ``agentic_inference_dataset.py`` in mlcommons/endpoints (Apache-2.0).
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.checks import RequestedTokens, Seconds, check_output_tokens, quoted
from bakeoff.workloads.traces.reading import bad, decoded, lines
from bakeoff.workloads.traces.recorded_chat import Call, Tools, calls_of, tools_text
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.types import Message

_METADATA = "dataset_metadata"
_FOLLOWERS = {
    None: ("user",), "user": ("assistant",), "assistant": ("tool", "user"), "tool": ("assistant", "user")
}  # fmt: skip
"""Roles that may follow a role; None for the beginning of a conversation."""
_NOT_SENT = (
    "model", "temperature", "top_p", "top_k", "seed", "repetition_penalty", "frequency_penalty", "presence_penalty",
    "stop", "n", "logit_bias", "stream", "name", "user", "chat_template",
)  # fmt: skip
"""Fields of a row by which a client may override its own settings."""
_NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]


class _Kind(msgspec.Struct, frozen=True):
    type: str | None = msgspec.field(name="_type", default=None)


class _Result(msgspec.Struct, frozen=True):
    tool_call_id: _NonEmpty
    content: str


class _Row(msgspec.Struct, frozen=True):
    conversation_id: _NonEmpty
    turn: int
    role: Literal["user", "assistant", "tool"]
    content: str | None = None
    system: str | None = None
    tools: Tools | None = None
    tool_calls: list[Call] | None = None
    tool_results: list[_Result] | None = None
    reasoning_content: str | None = None
    delay_seconds: Seconds | None = None
    max_new_tokens: RequestedTokens | None = None
    max_completion_tokens: RequestedTokens | None = None

    @property
    def bound(self) -> int | None:
        """Largest length of the answer."""
        return self.max_new_tokens or self.max_completion_tokens


class MlperfEndpoints(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of user and tool are requests with all rows before them; rows of the assistant are the recorded answers."""

    path: str
    """The file of JSON lines, plain or gzip."""
    output_tokens: int = 256
    """Requested length of an answer that is neither recorded nor bounded."""

    def __post_init__(self) -> None:
        check_output_tokens(self.output_tokens)

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        reading: _Conversation | None = None
        names = set[str]()
        for row, recorded in self._recorded():
            try:
                if reading is None or recorded.conversation_id != reading.name:
                    yield from reading.rest() if reading is not None else ()
                    _check_name(recorded.conversation_id, names)
                    names.add(recorded.conversation_id)
                    reading = _Conversation(recorded, self.output_tokens)
                requests = reading.add(recorded)
            except ValueError as cause:
                raise bad(self.path, row, str(cause)) from None
            yield from requests
        if reading is None:
            raise bad(self.path, None, "has no conversations")
        yield from reading.rest()

    def notes(self) -> list[str]:
        """How lengths and pauses follow from the rows, and what is not sent."""
        name = "mlperf-endpoints"
        return [
            f"{name}: each user and tool row is sent with the recorded rows before it; the file has no times",
            f"{name}: the pause before a row is its delay_seconds, 0 without; none before a conversation's first row",
            f"{name}: the length is that of the recorded answer: reasoning, content and calls as JSON, without marks",
            f"{name}: the model ends an answer for which tools are recorded; other answers have the stated length",
            f"{name}: max_new_tokens or max_completion_tokens is the length with tools, or if no answer is recorded",
            f"{name}: without a recorded answer and without these, {self.output_tokens} tokens are requested",
            f"{name}: tools and bounds of a conversation's first row hold for later rows without their own",
            f"{name}: reasoning_content goes back in chats of the OpenAI format alone, for the chat template to read",
            f"{name}: not sent: {', '.join(_NOT_SENT)}",
        ]

    def _recorded(self) -> Iterator[tuple[int, _Row]]:
        """The rows with their numbers, without that of metadata."""
        kinds, rows = msgspec.json.Decoder(_Kind), msgspec.json.Decoder(_Row)
        is_first = True
        for row, line in lines(self.path):
            if is_first:
                is_first = False
                if decoded(self.path, row, line, kinds).type == _METADATA:
                    continue
            yield row, decoded(self.path, row, line, rows)


class _Conversation:
    """Reads the rows of one conversation, and holds back the last request until its answer is known.

    Args:
        first: the first row.
        output_tokens: length of an answer that is neither recorded nor bounded.
    """

    def __init__(self, first: _Row, output_tokens: int) -> None:
        self.name = first.conversation_id
        self._output_tokens = output_tokens
        self._system = first.system or None
        self._chat = [Message("system", first.system)] if first.system else []
        self._tools = tools_text(first.tools)
        self._bound = first.bound
        self._last: _Row | None = None
        self._asked: TraceRow | None = None
        self._asked_bound: int | None = None

    def add(self, row: _Row) -> list[TraceRow]:
        """The request that this row completes, if any.

        Raises:
            ValueError: the row does not follow those before it.
        """
        self._check_order(row)
        self._last = row
        if row.role == "assistant":
            message = _answer(row)
            requests = self.rest(message)
            self._chat.append(message)
            return requests
        requests = self.rest()
        self._chat += _asked(row)
        self._asked_bound = row.bound or self._bound
        self._asked = TraceRow(
            None,
            None,
            None,
            self.name,
            row.delay_seconds or 0.0,
            messages=tuple(self._chat),
            tools=self._tools if row.tools is None else tools_text(row.tools),
        )
        return requests

    def rest(self, answer: Message | None = None) -> list[TraceRow]:
        """The request that waits for its answer, if any."""
        asked, self._asked = self._asked, None
        if asked is None:
            return []
        if answer is None or (asked.tools is not None and self._asked_bound is not None):
            return [msgspec.structs.replace(asked, output_tokens=self._asked_bound or self._output_tokens)]
        return [msgspec.structs.replace(asked, answer=_written(answer))]

    def _check_order(self, row: _Row) -> None:
        last = self._last
        turn = 0 if last is None else last.turn
        if row.turn != turn + 1:
            where = f"follows {turn}" if turn else "begins a conversation"
            raise ValueError(f"turn {row.turn} {where}; sort a conversation's rows and number them 1, 2, 3, …")
        followers = _FOLLOWERS[None if last is None else last.role]
        if row.role not in followers:
            after = "begins a conversation" if last is None else f"follows one of {last.role}"
            raise ValueError(f"a row of {row.role} {after}; only {' or '.join(followers)} may")
        if row.system and row.system != self._system:
            raise ValueError("has a system prompt other than its conversation's first row; put it there alone")
        if last is None or last.role != "assistant":
            return
        if row.role == "tool" and not last.tool_calls:
            raise ValueError("has results of tools, but the answer before it has no tool_calls")
        if row.role == "user" and last.tool_calls:
            raise ValueError("is a user's, but the answer before it has tool_calls; their results must come first")


def _check_name(name: str, names: set[str]) -> None:
    if not name.isascii() or not name.isprintable():
        raise ValueError(f"conversation_id {quoted(name)} has characters other than printable ASCII; rename it")
    if name in names:
        raise ValueError(f"conversation_id {quoted(name)} is not in adjacent rows; sort by conversation_id and turn")


def _asked(row: _Row) -> list[Message]:
    """Messages of a row that is sent."""
    if row.role == "user":
        if not row.content:
            raise ValueError("has no content, which a row of user needs")
        return [Message("user", row.content)]
    if not row.tool_results:
        raise ValueError("has no tool_results, which a row of tool needs")
    return [Message("tool", result.content, tool_call_id=result.tool_call_id) for result in row.tool_results]


def _answer(row: _Row) -> Message:
    calls = calls_of(row.tool_calls or ())
    if not row.content and not calls:
        raise ValueError("has neither content nor tool_calls, of which a row of assistant needs one")
    return Message("assistant", row.content or "", calls, reasoning=row.reasoning_content or "")


def _written(answer: Message) -> str:
    """An answer as the model writes it, without the marks of a chat template, to count its tokens."""
    calls = [f'{{"name": "{call.name}", "arguments": {call.arguments}}}' for call in answer.tool_calls]
    return "\n".join(filter(None, [answer.reasoning, answer.content, *calls]))
