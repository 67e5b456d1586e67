"""Reads answers in the harmony format of gpt-oss: messages with headers, in channels.

A message is ``<|channel|>NAME<|message|>TEXT`` and one of the marks that end it; the channel ``analysis`` is reasoning,
and a header that names a recipient ``functions.NAME`` makes the text the arguments of that function.
https://cookbook.openai.com/articles/openai-harmony
"""

import re
from collections.abc import Mapping
from typing import Any

from bakeoff.reference_engine.engine.detokenizer import overlap
from bakeoff.reference_engine.serving.openai_api.answer_parts import Parts
from bakeoff.reference_engine.serving.openai_api.tool_formats import Calls

_MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
_MARK = re.compile("|".join(map(re.escape, _MARKS)))
_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")
_REASONING = "analysis"


def is_harmony(template: str | None) -> bool:
    """Whether a chat template is of this format."""
    return template is not None and "<|channel|>" in template and "<|message|>" in template


class HarmonyReader:
    """An `AnswerReader` of channels; the text includes special tokens.

    Args:
        schemas: see `Calls`; none if no function may be called.
        most: see `Calls`.
    """

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]], most: int | None = None) -> None:
        self.num_reasoning_tokens: int = 0
        self._calls = Calls(schemas, most)
        self._held = ""
        self._header: list[str] = []
        self._has_messages = self._is_text = self._is_reasoning = self._is_call = False

    @property
    def has_calls(self) -> bool:
        return self._calls.count > 0

    def push(self, text: str, *, is_last: bool) -> Parts:
        reasoning: list[str] = []
        content: list[str] = []
        self._held += text
        was_reasoning = self._is_text and self._is_reasoning
        while (mark := _MARK.search(self._held)) is not None:
            self._add(self._held[: mark.start()], reasoning, content)
            self._held = self._held[mark.end() :]
            self._pass_mark(mark[0])
        free = len(self._held) - (0 if is_last else max(overlap(self._held, mark) for mark in _MARKS))
        self._add(self._held[:free], reasoning, content)
        self._held = self._held[free:]
        if is_last and not self._has_messages:  # not in this format at all
            content += self._header
        self.num_reasoning_tokens += was_reasoning or bool(reasoning)
        return Parts("".join(reasoning), "".join(content), self._calls.take())

    def _add(self, text: str, reasoning: list[str], content: list[str]) -> None:
        if not self._is_text:
            self._header.append(text)
        elif self._is_call:
            self._calls.add(text)
        elif text:
            (reasoning if self._is_reasoning else content).append(text)

    def _pass_mark(self, mark: str) -> None:
        if mark == "<|message|>":
            header = "".join(self._header)
            function = _RECIPIENT.search(header)
            self._has_messages = self._is_text = True
            self._is_call = function is not None
            self._is_reasoning = function is None and _REASONING in header.split()
            if function is not None:
                self._calls.begin(function[1])
        elif mark in ("<|start|>", "<|end|>", "<|return|>", "<|call|>"):
            self._is_text, self._header = False, []
        else:
            self._header.append(" ")
