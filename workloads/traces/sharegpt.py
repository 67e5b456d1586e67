"""``sharegpt``: conversations with real text in one JSON array of any size, or in JSON lines, parsed as a stream."""

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from bakeoff.workloads.errors import BadTrace
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.checks import quoted
from bakeoff.workloads.traces.json_array import BYTE_ORDER_MARK, ArrayItems, BadArray
from bakeoff.workloads.traces.reading import bad, decoded, lines, opened
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.types import Message

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "assistant": "assistant",
    "system": "system",
}


class _Part(msgspec.Struct, frozen=True):
    """A part of a conversation, also with the names that OpenAI gives to its fields."""

    speaker: str | None = msgspec.field(name="from", default=None)
    value: str | None = None
    role: str | None = None
    content: str | None = None


class _Conversation(msgspec.Struct, frozen=True):
    conversations: list[_Part] | None = None
    conversation: msgspec.Raw = msgspec.Raw(b"null")
    id: str | int | None = None
    image: Any = None
    images: Any = None


_HEAD_BYTES = 1024
_MAX_LEFT_OUT = 0.5
"""A file of which more conversations cannot be read is probably of another format."""
_CONVERSATIONS = msgspec.json.Decoder(_Conversation)


class ShareGpt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``{"id", "conversations": [{"from": "human" or "gpt", "value": text}]}`` in an array, or one a line.

    Also ``conversation`` of ``role`` and ``content``, as in LMSYS-Chat-1M and WildChat. Parts without a speaker
    alternate.
    """

    path: str
    """The JSON file, plain or gzip."""

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        has_rows, total, left_out, first = False, 0, 0, None
        for rows in self._conversations():
            total += 1
            if isinstance(rows, BadTrace):
                left_out, first = left_out + 1, first or rows
                continue
            has_rows = has_rows or bool(rows)
            yield from rows
        if first is not None and (left_out > _MAX_LEFT_OUT * total or not has_rows):
            raise first
        if not has_rows:
            raise bad(
                self.path,
                None,
                "has no question with an answer; it must hold conversations, in a JSON array or one a line",
            )

    def notes(self) -> list[str]:
        """What is left out."""
        return [
            "sharegpt: recorded questions, each with the recorded chat before it; times are not used",
            "sharegpt: questions without an answer, and answers before the first question, are left out",
            *self._without_images(),
            *self._left_out(),
        ]

    def _conversations(self) -> Iterator[list[TraceRow] | BadTrace]:
        """One row per question that has an answer, of each conversation in turn; or why it cannot be read."""
        for number, item in self._items():
            place = f"conversation {number}"
            try:
                yield list(_turns(decoded(self.path, place, item, _CONVERSATIONS), number))
            except _BadPart as cause:
                yield bad(self.path, place, str(cause))
            except BadTrace as problem:
                yield problem

    def _without_images(self) -> Iterator[str]:
        """How many conversations have images, which are not sent."""
        with contextlib.suppress(BadTrace):  # reading the rows reports it
            items = (decoded(self.path, number, item, _CONVERSATIONS) for number, item in self._items())
            count = sum(bool(item.image or item.images) for item in items)
            if count:
                yield f"sharegpt: the images of {count} conversations are left out; <image> stays in their text"

    def _left_out(self) -> Iterator[str]:
        """How many conversations cannot be read, and why the first cannot."""
        try:
            problems = [problem for problem in self._conversations() if isinstance(problem, BadTrace)]
        except BadTrace:
            return  # reading the rows reports it
        if problems:
            yield f"sharegpt: {len(problems)} conversations that cannot be read are left out; the first: {problems[0]}"

    def _items(self) -> Iterator[tuple[int, bytes]]:
        """The items of the array, or the lines, numbered from 1."""
        with opened(self.path) as file:
            head = file.read(_HEAD_BYTES).removeprefix(BYTE_ORDER_MARK).lstrip()
        if head.startswith(b"{"):
            yield from lines(self.path)
            return
        with opened(self.path) as file:
            items = ArrayItems(file)
            try:
                for item in items:
                    yield items.count, item
            except BadArray as cause:
                raise bad(self.path, f"conversation {max(1, items.count)}", str(cause)) from None


class _BadPart(Exception):
    pass


def _turns(conversation: _Conversation, number: int) -> Iterator[TraceRow]:
    """One row per question that has an answer."""
    name = f"{number}" if conversation.id is None else f"{number}:{conversation.id}"
    chat: list[Message] = []
    parts = conversation.conversations
    if parts is None:
        parts = _conversation(conversation.conversation)
    if parts is None:
        raise _BadPart("has neither 'conversations' nor 'conversation'")
    if all(part.speaker is None and part.role is None for part in parts):
        parts = [msgspec.structs.replace(part, role=("user", "assistant")[i % 2]) for i, part in enumerate(parts)]
    messages = [message for part in parts if (message := _message(part)) is not None]
    for i, message in enumerate(messages):
        if message.role == "assistant" and not any(before.role == "user" for before in chat):
            continue
        chat.append(message)
        answer = messages[i + 1] if i + 1 < len(messages) else None
        if message.role == "user" and answer is not None and answer.role == "assistant":
            yield TraceRow(None, None, None, name, messages=tuple(chat), answer=answer.content)


def _conversation(raw: msgspec.Raw) -> list[_Part] | None:
    try:
        return msgspec.json.decode(raw, type=list[_Part] | None)
    except msgspec.MsgspecError as error:
        raise _BadPart(f"has a 'conversation' that is no list of messages ({error})") from None


def _message(part: _Part) -> Message | None:
    """The message of a part; None if it is empty."""
    speaker, value = part.speaker or part.role or "", part.content if part.value is None else part.value
    if value is None:
        raise _BadPart("has a part without the text in 'value' or 'content'")
    if not value.strip():
        return None
    role = _ROLES.get(speaker.strip().lower())
    if role is None:
        raise _BadPart(f"has a part from {quoted(speaker)}; known: {', '.join(_ROLES)}")
    return Message(role, value)
