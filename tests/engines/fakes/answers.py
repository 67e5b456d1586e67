"""Shared by the fakes of TGI, OpenAI and Anthropic: scripted answers, and token counts of prompts."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bakeoff.workloads import Tokenizer
from tests.engines.fakes.stage import Fake, Script, Token

Prompt = str | list[dict]
"""A text, or the messages of a chat."""
Count = Callable[[Prompt], int]


class ScriptedAnswer(Script, frozen=True, kw_only=True):
    """A scripted answer.

    Attributes:
        answer: its tokens; a special last token ends the answer, otherwise it is truncated there.
        thinking: number of leading tokens that are visible reasoning.
        hidden: reasoning tokens that are counted but not sent.
        fails_after: tokens after which the engine fails; None for never.
    """

    answer: tuple[Token, ...] = ()
    thinking: int = 0
    hidden: int = 0
    fails_after: int | None = None

    def tokens(self, wanted: int, *, forced: bool = False) -> list[Token]:
        return list(self.answer[:wanted])


class Answering(Fake):
    """Base of these fakes.

    Args:
        script: what they generate for prompts that are not in ``answers``.
        faults: each fake lists the faults that it knows.
        answers: by the prompt, or the last message of a chat.
        count: counts the tokens of a prompt.
        refusals: statuses with which the next requests are refused, one each.
        key: the key that requests must carry; None for no key.

    Attributes:
        counts_words: whether prompts are counted by words, since no ``count`` was given.
    """

    def __init__(
        self,
        script: Script = Script(),  # noqa: B008
        faults: Sequence[str] = (),
        *,
        answers: Mapping[str, Script] | None = None,
        count: Count | None = None,
        refusals: Sequence[int] = (),
        key: str | None = None,
    ) -> None:
        super().__init__(script, faults)
        self.answers = answers or {}
        self.count = count or by_words
        self.counts_words = count is None
        self.refusals = list(refusals)
        self.key = key

    def script_for(self, prompt: Prompt) -> Script:
        """The script of the answer to ``prompt``."""
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        return self.answers.get(text, self.script)


def part(script: Script, name: str) -> int:
    """``thinking`` or ``hidden`` of an answer; 0 for plain scripts."""
    return getattr(script, name, 0)


def fails_after(script: Script) -> int | None:
    """The number of tokens after which an answer fails, or None."""
    return getattr(script, "fails_after", None)


def ended(tokens: Sequence[Token]) -> bool:
    """Whether the model ended by itself."""
    return bool(tokens) and tokens[-1].special


def shown(tokens: Sequence[Token]) -> str:
    """The visible text of tokens."""
    return "".join(token.text for token in tokens if not token.special)


def by_words(prompt: Prompt) -> int:
    """One token for each word, if no tokenizer is given."""
    texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
    return sum(len(text.split()) for text in texts)


def by_tokenizer(folder: Path) -> Count:
    """Counts with the tokenizer of the model in ``folder``."""
    tokenizer = Tokenizer(folder)

    def count(prompt: Prompt) -> int:
        if isinstance(prompt, str):
            return len(tokenizer.encode_prompt(prompt))
        return tokenizer.count(tokenizer.render_chat(prompt))

    return count
