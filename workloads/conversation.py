"""A growing prompt of an exact number of tokens.

Prompts are planned by adding up passages and what the template puts around them, counted whole once
(:mod:`workloads.prompts`), and corrected at the end of their last message where the sum was wrong.
"""

import functools
from collections.abc import Sequence
from typing import Literal

from workloads.prompts import prompt_reader
from workloads.rng import Rng
from workloads.text import MIN_PASSAGE_TOKENS, Style, writer
from workloads.tokenizer import Tokenizer
from workloads.types import Message, Turn

Api = Literal["chat", "completions"]
_MAX_CORRECTIONS = 4


@functools.lru_cache(maxsize=8)
def _around(tokenizer: Tokenizer, api: Api) -> tuple[int, int]:
    """Tokens before and behind a first question."""
    if api == "completions":
        return len(tokenizer.encode_prompt("")), 0
    mark = writer(tokenizer).words[0].lstrip()
    text = tokenizer.render_chat([{"role": "user", "content": mark}])
    head = tokenizer.count(text[: text.rindex(mark)])
    return head, tokenizer.count(text) - head - 1


class Conversation:
    """One session's prompt so far, to which turns are added.

    Args:
        tokenizer: the model's.
        api: a chat through the model's template, or plain text.
        system: text of the system prompt, empty for none; in plain text it stands first.
    """

    def __init__(self, tokenizer: Tokenizer, api: Api, system: str = "") -> None:
        self._tokenizer = tokenizer
        self._api: Api = api
        self._writer = writer(tokenizer)
        self._reader = prompt_reader(tokenizer)
        self._messages = [Message("system", system.lstrip())] if system and api == "chat" else []
        self._text = system if api == "completions" else ""
        self.tokens = 0
        """Of the conversation so far, as planned: the last prompt and its answer."""

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
    ) -> Turn:
        """Add a question so that the whole prompt has ``tokens`` tokens, and return the request.

        Args:
            tokens: wanted; a prompt that is longer already gets the shortest question there is, and its true length.
            output_tokens: wanted of the answer.
            rng: draws the question's words.
            mark: of the question's passage, see :meth:`~workloads.text.writer.Writer.passage`.
            before: passages that stand before the question.
            style: of the question.
            think_s: before the request.
            json_schema: that the answer must follow.
        """
        fixed = "".join(before)
        floor = self._count(fixed + "".join(self._writer.head(mark, rng)[:MIN_PASSAGE_TOKENS]))
        wanted = max(tokens, floor)
        question = self._writer.passage(wanted - floor + MIN_PASSAGE_TOKENS, rng, mark, style)
        return self.say(fixed + question, wanted, output_tokens, rng, think_s=think_s, json_schema=json_schema)

    def say(
        self,
        text: str,
        tokens: int,
        output_tokens: int,
        rng: Rng,
        *,
        think_s: float = 0.0,
        json_schema: str | None = None,
    ) -> Turn:
        """Add a question that is written already, corrected at its end so that the prompt has ``tokens`` tokens."""
        for _ in range(_MAX_CORRECTIONS):
            missing = tokens - self._count(text)
            if not missing:
                break
            text = self._writer.more(text, missing, rng)
        turn = self._turn(text, tokens, output_tokens, think_s, json_schema)
        self._messages, self._text = list(turn.messages or ()), turn.prompt or ""
        self.tokens = tokens
        return turn

    def answer(self, tokens: int, rng: Rng, style: Style = "prose") -> None:
        """Add an answer, so that the next question follows it."""
        text = self._writer.passage(tokens, rng, style=style)
        if self._api == "chat":
            self._messages.append(Message("assistant", text.lstrip()))
        else:
            self._text += text
        self.tokens += tokens

    @property
    def head_tokens(self) -> int:
        """Tokens that stand before the first question of a conversation."""
        return _around(self._tokenizer, self._api)[0]

    @property
    def overhead_tokens(self) -> int:
        """Tokens that stand around the first question of a conversation."""
        return sum(_around(self._tokenizer, self._api))

    def _count(self, question: str) -> int:
        return self._reader.count(self._turn(question, 0, 0))

    def _turn(
        self, question: str, tokens: int, output_tokens: int, think_s: float = 0.0, json_schema: str | None = None
    ) -> Turn:
        if self._api == "chat":
            messages = (*self._messages, Message("user", question.lstrip()))
            return Turn(tokens, output_tokens, messages=messages, think_s=think_s, json_schema=json_schema)
        prompt = (self._text + question).lstrip()
        return Turn(tokens, output_tokens, prompt=prompt, think_s=think_s, json_schema=json_schema)
