"""Splits the reasoning of an answer from what follows it, for models whose chat template has thinking tags.

The tags are ``<think>`` and ``</think>``, as of DeepSeek-R1, Qwen3 and their successors. Some templates end the prompt
with the first tag, so that the answer begins inside. The field's name is that of DeepSeek's API,
https://api-docs.deepseek.com/guides/reasoning_model.
"""

from enum import Enum, auto

from bakeoff.reference_engine.engine.detokenizer import overlap

_START, _END = "<think>", "</think>"


class _State(Enum):
    BEFORE = auto()
    """Only white space so far: reasoning may still begin."""
    INSIDE = auto()
    AFTER = auto()


def has_thinking_tags(template: str | None) -> bool:
    """Whether a chat template knows reasoning."""
    return template is not None and _END in template


class ReasoningSplitter:
    """Splits the text of one answer, piece by piece.

    Args:
        prompt_end: last text of the prompt, which may open the reasoning.
    """

    __slots__ = ("_held", "_state", "num_tokens")

    def __init__(self, prompt_end: str) -> None:
        self._state = _State.INSIDE if prompt_end.rstrip().endswith(_START) else _State.BEFORE
        self._held = ""
        self.num_tokens: int = 0  # of reasoning so far, tags included

    def push(self, text: str, *, is_last: bool) -> tuple[str, str]:
        """The reasoning and the other text that a token adds; the beginning of a possible tag is held back."""
        was_inside = self._state is _State.INSIDE
        self._held += text
        reasoning, content = self._split(is_last=is_last)
        self.num_tokens += was_inside or self._state is _State.INSIDE or bool(reasoning)
        return reasoning, content

    def _split(self, *, is_last: bool) -> tuple[str, str]:
        reasoning = ""
        if self._state is _State.BEFORE:
            words = self._held.lstrip()
            if words.startswith(_START):
                self._state, self._held = _State.INSIDE, words.removeprefix(_START)
            elif _START.startswith(words) and not is_last:
                return "", ""
            else:
                self._state = _State.AFTER
        if self._state is _State.INSIDE:
            reasoning, end, rest = self._held.partition(_END)
            if end:
                self._state, self._held = _State.AFTER, rest
            else:
                kept = 0 if is_last else overlap(reasoning, _END)
                self._held = reasoning[len(reasoning) - kept :]
                return reasoning[: len(reasoning) - kept], ""
        content, self._held = self._held, ""
        return reasoning, content
