"""AIPerf's form of Mooncake's lines: sessions, pauses and real text.

AIPerf 0.13 (ai-dynamo/aiperf, Apache-2.0) sends the lines of one ``session_id`` in turn. ``input_length`` and
``text_input``, or ``text`` in its single turns, are the new text of a turn, which follows the session's earlier text
and answers; ``messages`` and ``payload`` are whole prompts. Its own writer (``aiperf synthesize agentic-code``) puts a
timestamp on the first row of a session and a delay on the others.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec

from bakeoff.workloads.traces.blocks import BlockHashes
from bakeoff.workloads.traces.checks import Clock, InputTokens, OutputTokens, quoted
from bakeoff.workloads.traces.grouping import IDLE_S
from bakeoff.workloads.traces.reading import bad, decoded
from bakeoff.workloads.traces.recorded_chat import (
    ChatBody,
    Lengths,
    RecordedMessage,
    continued,
    messages_of,
    tools_text,
)
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.types import Message

_MARKS = {"session_id", "delay", "text_input", "messages", "payload", "tools", "extra"}
_MODES = ("input_length", "text_input", "messages", "payload")


class SessionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of AIPerf's form."""

    input_length: InputTokens | None = None
    text_input: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    text: Any = None
    """Another name of ``text_input``, where no other prompt is."""
    messages: Annotated[list[RecordedMessage], msgspec.Meta(min_length=1)] | None = None
    payload: ChatBody | None = None
    tools: list[dict[str, Any]] | None = None
    output_length: OutputTokens | None = None
    hash_ids: tuple[int, ...] | None = None
    timestamp: float | None = None
    delay: Annotated[float, msgspec.Meta(ge=0, le=1e14)] | None = None
    session_id: str | int | None = None
    extra: Lengths | None = None

    def checked(self) -> "SessionLine":
        """The line itself.

        Raises:
            ValueError: it has not exactly one kind of prompt, or fields that do not go with it.
        """
        modes = [name for name in _MODES if getattr(self, name) is not None]
        if not modes and isinstance(self.text, str) and self.text:
            modes = ["text"]
        if len(modes) != 1:
            has = f"has {' and '.join(modes)}" if modes else "has no prompt"
            raise ValueError(f"{has}; it must have exactly one of {', '.join(_MODES)}")
        if self.hash_ids and self.input_length is None:
            raise ValueError(f"has hash_ids beside {modes[0]}; they need an input_length")
        if self.tools and self.messages is None:
            raise ValueError(f"has tools beside {modes[0]}; they need messages")
        return self

    def answer_tokens(self, default: int) -> int:
        """Requested length of the answer: of the fields that replace others, of the line, of its body, or a default."""
        body = self.payload or Lengths()
        extra = self.extra or Lengths()
        return (
            extra.max_completion_tokens
            or extra.max_tokens
            or self.output_length
            or body.max_completion_tokens
            or body.max_tokens
            or default
        )


class _Session:
    """What the turns of a session so far leave to the next one.

    Args:
        name: of the session.
        block_tokens: tokens of a block.
    """

    def __init__(self, name: str, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._hashes = BlockHashes(name)
        self._last_blocks = BlockHashes(name, "last blocks")
        self._first_blocks: tuple[int, ...] = ()
        self._first_tokens = 0
        self._turns = 0
        self.last_s: float | None = None
        """Time of its last row."""
        self._tokens = 0
        self._chat: tuple[Message, ...] = ()

    def prompt(self, line: SessionLine, answer_tokens: int) -> TraceRow:
        """The prompt of the next turn, with what came before."""
        self._turns += 1
        if line.input_length is not None:
            tokens = self._tokens + line.input_length
            blocks = self._blocks(line, tokens)
            self._tokens = tokens + answer_tokens
            return TraceRow(
                None, tokens, answer_tokens, blocks=blocks, block_tokens=self._block_tokens if blocks else 0
            )
        if line.payload is not None:
            messages, prompt = line.payload.checked_prompt()
            tools = tools_text(line.payload.tools)
            return TraceRow(None, None, answer_tokens, messages=messages, prompt=prompt, tools=tools)
        if line.messages is not None:
            messages = messages_of(line.messages)
            return TraceRow(None, None, answer_tokens, messages=messages, tools=tools_text(line.tools))
        self._chat = continued(self._chat, (Message("user", line.text_input or line.text or ""),))
        return TraceRow(None, None, answer_tokens, messages=self._chat)

    def _blocks(self, line: SessionLine, tokens: int) -> tuple[int, ...]:
        """Hashes of the prompt's blocks; empty if those of the first turn are not recorded."""
        if self._turns == 1:
            self._first_blocks = line.hash_ids or ()
            self._first_tokens = tokens
            return self._first_blocks
        if not self._first_blocks:
            return ()
        whole, rest = divmod(tokens, self._block_tokens)
        known = self._first_blocks[: self._first_tokens // self._block_tokens]
        own = (self._hashes[number] for number in range(len(known), whole))
        return (*known, *own, *((self._last_blocks[self._turns],) if rest else ()))


def is_session_form(line: bytes) -> bool:
    """Whether a file that begins with this row has AIPerf's form; False if it is no JSON object."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    keys = {name for name, value in fields.items() if bytes(value) != b"null"}
    if "input_length" not in keys and "text" in keys:
        return True
    return bool(_MARKS & keys) or ("input_length" in keys and not {"timestamp", "output_length"} <= keys)


class Sessions:
    """The sessions of a file while it is read.

    Args:
        block_tokens: tokens of a block of ``hash_ids``.
        time_unit_s: seconds per unit of ``timestamp``.
        output_tokens: length of an answer that is not recorded.
    """

    def __init__(self, block_tokens: int, time_unit_s: float, output_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._time_unit_s = time_unit_s
        self._output_tokens = output_tokens
        self._clock = Clock()
        self._has_times: bool | None = None
        self._has_text: bool | None = None
        self._open: dict[str, _Session] = {}
        self._ended: set[str] = set()

    def row(self, line: SessionLine) -> TraceRow:
        """The row of a line; raises ValueError."""
        has_text = line.input_length is None
        if self._has_text not in (None, has_text):
            kinds = ("an input_length", "text") if self._has_text else ("text", "an input_length")
            raise ValueError(f"has {kinds[0]}, but earlier rows have {kinds[1]}; split the file")
        self._has_text = has_text
        name = None if line.session_id is None else str(line.session_id)
        self._check_open(name)
        is_first = name not in self._open
        at_s = self._at_s(line, is_first=is_first)
        session = self._session(name, at_s)
        tokens = line.answer_tokens(self._output_tokens)
        made = session.prompt(line, tokens)
        delay_s = None if line.delay is None else line.delay / 1000
        if delay_s is None and line.timestamp is None:
            delay_s = 0.0
        pause_s = None if is_first else delay_s
        return msgspec.structs.replace(made, at_s=at_s, session=name, think_s=pause_s)

    def _session(self, name: str | None, at_s: float | None) -> _Session:
        """The session of a row, which begins with it if it is not open."""
        for other in self._closed_by(name, at_s):
            del self._open[other]
            self._ended.add(other)
        if name is None:
            return _Session("", self.block_tokens)
        self._check_open(name)
        # A session with a new row moves to the end, so those that have ended are the first.
        session = self._open[name] = self._open.pop(name, None) or _Session(name, self.block_tokens)
        session.last_s = at_s
        return session

    def _check_open(self, name: str | None) -> None:
        """Raise ValueError if a session has ended."""
        if name is not None and name in self._ended:
            problem = f"continues the session {quoted(name)} after other rows, or {IDLE_S:g} s after its last row"
            raise ValueError(f"{problem}; keep the rows of a session together, and leave out timestamps")

    def _closed_by(self, name: str | None, at_s: float | None) -> list[str]:
        """Sessions that have ended before a row of ``name``, as :mod:`bakeoff.workloads.traces.grouping` sees it."""
        if at_s is None:
            return [other for other in self._open if other != name]

        def is_idle(other: str) -> bool:
            last_s = self._open[other].last_s
            return last_s is not None and at_s - last_s > IDLE_S

        return list(itertools.takewhile(is_idle, self._open))

    def _at_s(self, line: SessionLine, *, is_first: bool) -> float | None:
        """Time of a row in seconds; None if it has none, as all rows of a file or those that continue a session."""
        has_time = line.timestamp is not None
        if self._has_times is None:
            self._has_times = has_time
        if has_time and not self._has_times:
            raise ValueError("has a timestamp, but the first row has none")
        if line.timestamp is not None:
            return self._clock.offset_s(line.timestamp * self._time_unit_s)
        if is_first and self._has_times:
            raise ValueError(
                "has no timestamp, but the first row has one; only rows that continue a session may lack it"
            )
        return None


def session_rows(
    path: str,
    lines: Iterator[tuple[int, bytes]],
    reading: Sessions,
    check_blocks: Callable[[int, int, tuple[int, ...], int], None],
) -> Iterator[TraceRow]:
    """Read a file of AIPerf's form.

    Args:
        path: the file, for error messages.
        lines: its rows, not yet decoded.
        reading: of the file, from its beginning.
        check_blocks: of a row, its new tokens, their hashes and tokens per block; raises BadTrace.

    Raises:
        BadTrace: as :meth:`bakeoff.workloads.traces.row.Trace.rows`.
    """
    decoder = msgspec.json.Decoder(SessionLine, strict=False)
    has_rows = False
    for row, text in lines:
        line = decoded(path, row, text, decoder)
        if line.output_length == 0:
            continue
        try:
            if line.hash_ids and line.input_length is not None:
                check_blocks(row, line.input_length, line.hash_ids, reading.block_tokens)
            made = reading.row(line.checked())
        except ValueError as cause:
            raise bad(path, row, str(cause)) from None
        has_rows = True
        yield made
    if not has_rows:
        raise bad(path, None, "has no row with output tokens")
