"""``questions``: prompt sets, one question per line, without times or lengths.

Detected by the field that holds the text: ``turns`` (MT-Bench, Spec-Bench), ``prompt`` (Arena-Hard, HumanEval),
``question`` (GSM8K), ``instruction`` (Alpaca). A line may state the length of its answers.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from bakeoff.workloads.options import nearest
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.checks import check_output_tokens, tokens
from bakeoff.workloads.traces.reading import each, left_out, peeked, records
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.types import Check, Expected, Message

_LENGTH_FIELDS = (
    "output_tokens", "output_length", "output_len", "expected_output_len", "max_tokens", "max_completion_tokens",
    "max_output_tokens", "max_new_tokens", "output_tokens_count",
)  # fmt: skip
"""Fields of a line that state the length of its answers, in order of preference."""
_DEFAULT_TOKENS = 256
TEXT_FIELDS = ("turns", "prompt", "question", "instruction", "text")
"""Default fields for the text; the first one that a line has is used."""
_LINES = msgspec.json.Decoder(dict[str, Any])
_ASKING = "Think step by step. End with the final answer, as a number behind ####."
_NUMBER = re.compile(r"-?(\d+(\.\d+)?|\.\d+)")
_SYSTEM_FIELDS = ("system_prompt", "system")
_MATERIAL_FIELDS = ("input", "context")
"""Fields of what an instruction or question is about, as in Alpaca, Dolly and SQuAD."""
_UNUSED_FIELDS = (
    "timestamp", "at_s", "arrival_time", "delay", "session_id", "session", "conversation_id", "prompt_tokens",
    "input_tokens", "input_length", "prompt_tokens_count", "images", "image", "tools",
)  # fmt: skip
"""Fields that would change the load, and are not used."""
_MESSAGE_FIELDS = ("role", "parent_id")
_CODE_FIELDS = ("entry_point", "canonical_solution")
"""Fields of code to be completed instead of a question to be answered."""


class Questions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """JSON lines with a text, or a list of successive texts, in one field."""

    path: str
    """The file of JSON lines, plain or gzip."""
    field: str | None = None
    """Name of the field that holds the text; detected by default."""
    output_tokens: int | None = None
    """Requested length of every answer; by default what the line states, else 256."""
    skip_bad: bool = False
    """Whether to leave out lines that cannot be read, and to count them, instead of refusing the file."""
    form: Literal["auto", "chat", "completion"] = "auto"
    """API for the texts; ``auto`` completes code, which HumanEval marks with ``entry_point``, and chats otherwise."""
    score: bool = False
    """Score answers by the number behind ``####`` in the line's ``answer``, as in GSM8K. The chat then asks for that
    form, and the model ends its answers."""

    def __post_init__(self) -> None:
        if self.output_tokens is not None:
            check_output_tokens(self.output_tokens)
        if self.score and self.form == "completion":
            raise ValueError("score needs chats; leave out form")

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        for rows in each(self.path, _LINES, self._rows, is_lenient=self.skip_bad):
            yield from rows

    def _rows(self, row: int, line: dict[str, Any]) -> list[TraceRow]:
        self._refuse_messages(line)
        texts, length = self._texts(line), self._tokens(line)
        if self.score:
            messages = (Message("user", f"{texts[-1]}\n\n{_ASKING}"),)
            return [TraceRow(None, None, length, messages=messages, expected=_number(line))]
        if self.form == "completion" or (self.form == "auto" and any(name in line for name in _CODE_FIELDS)):
            return [TraceRow(None, None, length, prompt=text) for text in texts]
        return list(_chat(row, texts, length, _system(line)))

    def notes(self) -> list[str]:
        """How answers are handled, which the file does not have."""
        lengths = self.output_tokens or f"the length that each line states, else {_DEFAULT_TOKENS}"
        if self.score:
            return [
                f"questions: recorded questions, answers of at most {lengths} tokens, which the model ends",
                "questions: an answer is right if its last number is that of the recorded answer",
            ]
        return [
            *(left_out("questions", self.path, _LINES, self._rows) if self.skip_bad else ()),
            f"questions: recorded questions, answers of {lengths} tokens",
            "questions: recorded answers are not used, so the assistant's messages between turns are empty",
            *self._unused(),
        ]

    def _unused(self) -> Iterator[str]:
        """The fields of the first line that would change the load, and are not used."""
        head, _ = peeked(records(self.path, _LINES), 1)
        if named := [name for _, line in head for name in _UNUSED_FIELDS if line.get(name) not in (None, "", [])]:
            yield f"questions: not used, though the file has them: {', '.join(named)}"

    def _refuse_messages(self, line: Mapping[str, Any]) -> None:
        """Refuse single messages of conversations: answers of the assistant would be asked as questions."""
        if (named := [name for name in _MESSAGE_FIELDS if name in line]) and self.field is None:
            raise ValueError(
                f"is one message of a conversation (it has {' and '.join(named)}); write each conversation as one "
                'line {"messages": […]}, or give field to ask every text by itself'
            )

    def _tokens(self, line: Mapping[str, Any]) -> int:
        if self.output_tokens is not None:
            return self.output_tokens
        name = next((name for name in _LENGTH_FIELDS if line.get(name) is not None), None)
        if name is None:
            return _DEFAULT_TOKENS
        return tokens(str(line[name]), f"field {name!r}", 1)

    def _texts(self, line: Mapping[str, Any]) -> list[str]:
        name = self.field or next((name for name in TEXT_FIELDS if name in line), None)
        if name is None:
            raise ValueError(f"has none of the fields {', '.join(TEXT_FIELDS)}; set field to one of {', '.join(line)}")
        if name not in line:
            raise ValueError(f"has no field {name!r}; {nearest(name, line)}")
        texts = line[name] if isinstance(line[name], list) else [line[name]]
        material = next((line[field] for field in _MATERIAL_FIELDS if line.get(field)), None)
        if name in {"instruction", "question"} and isinstance(material, str):
            texts = [f"{text}\n\n{material}" for text in texts]
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise ValueError(f"field {name!r} must be a text or a list of texts, none of them empty")
        return texts


def _number(line: Mapping[str, Any]) -> Expected:
    """The number that a right answer ends with."""
    _, mark, number = str(line.get("answer", "")).rpartition("####")
    plain = number.strip().replace(",", "").replace("$", "").rstrip(".")
    if not mark or not _NUMBER.fullmatch(plain):
        raise ValueError("has no answer with a number alone behind ####, by which it could be scored; leave out score")
    return Expected(Check.NUMBER, plain)


def _system(line: Mapping[str, Any]) -> list[Message]:
    """The line's system prompt, if it has one."""
    text = next((line[name] for name in _SYSTEM_FIELDS if line.get(name)), None)
    return [Message("system", text)] if isinstance(text, str) else []


def _chat(row: int, texts: list[str], length: int, chat: list[Message]) -> Iterator[TraceRow]:
    session = str(row) if len(texts) > 1 else None
    for number, text in enumerate(texts):
        # Chat templates need alternating roles, so an empty message takes the place of the missing answer.
        chat += [Message("assistant", "")] if number else []
        chat.append(Message("user", text))
        yield TraceRow(None, None, length, session, messages=tuple(chat))
