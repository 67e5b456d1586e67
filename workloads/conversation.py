"""Growing prompts with an exact number of tokens.

A prompt is planned as the sum of its passages and the template's tokens, then counted once as a whole
(:mod:`bakeoff.workloads.prompts`), and corrected at the end of its last message if the sum was wrong.
"""

import functools
from collections.abc import Sequence
from typing import Literal

import msgspec

from bakeoff.workloads.prompts import prompt_reader
from bakeoff.workloads.rng import Rng
from bakeoff.workloads.text import MIN_PASSAGE_TOKENS, Style, writer
from bakeoff.workloads.tokenizer import Tokenizer
from bakeoff.workloads.types import Check, Expected, Image, Message, Turn

Api = Literal["chat", "completions"]
_MAX_CORRECTIONS = 4


@functools.lru_cache(maxsize=8)
def _template_tokens(tokenizer: Tokenizer, api: Api) -> tuple[int, int]:
    """Tokens before and after a first question."""
    if api == "completions":
        return len(tokenizer.encode_prompt("")), 0
    mark = writer(tokenizer).words[0].lstrip()
    text = tokenizer.render_chat([{"role": "user", "content": mark}])
    head = tokenizer.count(text[: text.rindex(mark)])
    return head, tokenizer.count(text) - head - 1


class Conversation:
    """One session's conversation, to which turns are added.

    Args:
        tokenizer: of the model.
        api: a chat through the model's template, or plain text.
        system: text of the system prompt, or empty; plain text begins with it.
    """

    def __init__(self, tokenizer: Tokenizer, api: Api, system: str = "") -> None:
        self._tokenizer = tokenizer
        self._api: Api = api
        self._writer = writer(tokenizer)
        self._reader = prompt_reader(tokenizer)
        self._messages = [Message("system", system.lstrip())] if system and api == "chat" else []
        self._text = system if api == "completions" else ""
        self.tokens: int = 0
        """Planned tokens of the conversation so far: the previous prompt and its answer."""

    def ask(
        self,
        tokens: int,
        output_tokens: int,
        rng: Rng,
        *,
        mark: int,
        before: Sequence[str] = (),
        style: Style = "prose",
        think_s: float = 0.0,
        json_schema: str | None = None,
        images: tuple[Image, ...] = (),
    ) -> Turn:
        """Add a question so that the whole prompt has ``tokens`` tokens, and return the request.

        Args:
            tokens: intended length of the prompt. A conversation that is already longer gets the shortest possible
                question, and the request its true length.
            output_tokens: requested length of the answer.
            rng: for the question's words.
            mark: of the question's passage, see :meth:`~bakeoff.workloads.text.writer.Writer.passage`.
            before: passages before the question.
            style: of the question.
            think_s: pause before the request, in seconds.
            json_schema: schema of the answer.
            images: pictures beside the question of a chat, whose tokens do not count.
        """
        fixed = "".join(before)
        floor = self._count(fixed + "".join(self._writer.head(mark, rng)[:MIN_PASSAGE_TOKENS]))
        target = max(tokens, floor)
        question = self._writer.passage(target - floor + MIN_PASSAGE_TOKENS, rng, mark, style)
        return self.say(
            fixed + question, target, output_tokens, rng, think_s=think_s, json_schema=json_schema, images=images
        )

    def say(
        self,
        text: str,
        tokens: int,
        output_tokens: int,
        rng: Rng,
        *,
        think_s: float = 0.0,
        json_schema: str | None = None,
        images: tuple[Image, ...] = (),
    ) -> Turn:
        """Add the question ``text``, adjusted at its end so that the prompt has ``tokens`` tokens."""
        for _ in range(_MAX_CORRECTIONS):
            missing = tokens - self._count(text)
            if not missing:
                break
            text = self._writer.more(text, missing, rng)
        turn = self._turn(text, tokens, output_tokens, think_s=think_s, json_schema=json_schema, images=images)
        self._messages, self._text = list(turn.messages or ()), turn.prompt or ""
        self.tokens = tokens
        return turn

    def answer(self, tokens: int, rng: Rng, style: Style = "prose") -> None:
        """Add an answer of ``tokens`` tokens."""
        text = self._writer.passage(tokens, rng, style=style)
        if self._api == "chat":
            self._messages.append(Message("assistant", text.lstrip()))
        else:
            self._text += text
        self.tokens += tokens

    @property
    def head_tokens(self) -> int:
        """Tokens before the first question of a conversation."""
        return _template_tokens(self._tokenizer, self._api)[0]

    @property
    def overhead_tokens(self) -> int:
        """Tokens before and after the first question of a conversation."""
        return sum(_template_tokens(self._tokenizer, self._api))

    def _count(self, question: str) -> int:
        return self._reader.count(self._turn(question, 0, 0))

    def _turn(
        self,
        question: str,
        tokens: int,
        output_tokens: int,
        *,
        think_s: float = 0.0,
        json_schema: str | None = None,
        images: tuple[Image, ...] = (),
    ) -> Turn:
        expected = None if json_schema is None else Expected(Check.SCHEMA, json_schema)
        turn = Turn(tokens, output_tokens, think_s=think_s, json_schema=json_schema, expected=expected)
        if self._api == "chat":
            messages = (*self._messages, Message("user", question.lstrip(), images=images))
            return msgspec.structs.replace(turn, messages=messages)
        return msgspec.structs.replace(turn, prompt=(self._text + question).lstrip())
