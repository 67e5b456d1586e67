"""Chooses how the answers of a chat are read: by the marks of the model's template and by the request's tools."""

from collections.abc import Sequence
from typing import NamedTuple

from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.loading.tokenizer import Tokenizer
from bakeoff.reference_engine.serving.openai_api.answer_parts import AnswerReader, TaggedReader
from bakeoff.reference_engine.serving.openai_api.call_reader import CallReader
from bakeoff.reference_engine.serving.openai_api.harmony import HarmonyReader, is_harmony
from bakeoff.reference_engine.serving.openai_api.reasoning import ReasoningSplitter, has_thinking_tags
from bakeoff.reference_engine.serving.openai_api.tool_formats import ToolFormat
from bakeoff.reference_engine.serving.openai_api.tools import Tools

_TAG_TOKENS = 16  # more than any tokenizer needs for a tag and the line ends behind it


class Reading(NamedTuple):
    """How the answers of one chat are read.

    Attributes:
        tools: that the answers may call; None for none.
        calls: how calls stand in answers; None if there can be none, or if `is_harmony`.
        prompt_end: last text of the prompt, which may open the reasoning; None for models that do not reason.
        is_harmony: whether the template is gpt-oss'.
        has_special_marks: whether marks are special tokens, which must then have a text.
    """

    tools: Tools | None
    calls: ToolFormat | None
    prompt_end: str | None
    is_harmony: bool
    has_special_marks: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer, tools: Tools | None, prompt: Sequence[int]) -> "Reading":
        """The reading for a template, the tools of a request, and the prompt that was made of them.

        Raises:
            RequestError: the template describes functions, but the format of its calls is not known.
        """
        template = tokenizer.chat_template
        is_forced = tools is not None and tools.forced is not None  # then the answer is nothing but calls
        if is_harmony(template) and not is_forced:
            return cls(tools, None, None, is_harmony=True, has_special_marks=True)
        calls = None if tools is None else tools.format_of(template)
        if tools is not None and calls is None:
            raise RequestError(
                "the format in which this model calls functions is not known; leave out tools, or set tool_choice to "
                'a function or to "required"',
                param="tools",
            )
        prompt_end: str | None = None
        if has_thinking_tags(template) and not is_forced:
            prompt_end = tokenizer.decode(prompt[-_TAG_TOKENS:], skip_special_tokens=False)
        is_special = calls is not None and bool(calls.begin) and tokenizer.is_special(calls.begin)
        return cls(tools, calls, prompt_end, is_harmony=False, has_special_marks=is_special)

    def reader(self) -> AnswerReader | None:
        """Reads one answer; None if an answer has no parts."""
        schemas, most = ({}, None) if self.tools is None else (self.tools.schemas, self.tools.most)
        if self.is_harmony:
            return HarmonyReader(schemas, most)
        splitter = None if self.prompt_end is None else ReasoningSplitter(self.prompt_end)
        calls = None if self.calls is None else CallReader(self.calls, schemas, most)
        return None if splitter is None and calls is None else TaggedReader(splitter, calls)
