"""Passages with an exact number of tokens, which can be concatenated.

A passage begins with a space and two words of its own. So two passages differ at their first token, even if a template
strips the space (at their second, if thousands of passages follow the same text). Tokens are counted per unit from a
table of costs instead of encoding the passage: 10,000 tokens take five milliseconds. A prompt made of passages is
counted once as a whole (:mod:`bakeoff.workloads.prompts`) and trimmed at its end if the tokenizer merged across units.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Literal

from bakeoff.workloads.errors import WorkloadError
from bakeoff.workloads.rng import Rng, Seed
from bakeoff.workloads.text.code import code_units
from bakeoff.workloads.text.prose import prose_units
from bakeoff.workloads.tokenizer import Tokenizer

Style = Literal["prose", "code"]
MIN_PASSAGE_TOKENS = 2
"""Shorter passages are not distinct."""

MARKS = 1 << 40
"""Marks count up from a random number below this, so that the texts of two plans differ early."""

_UNITS: dict[Style, Callable[[Rng], Iterator[str]]] = {"prose": prose_units, "code": code_units}
_CONTEXT_CHARS = 6
"""How far back a line break can merge; in some vocabularies ``):`` and a line break are one token."""
_FILLER: dict[Style, str] = {"prose": "", "code": "\n    #"}
"""Text before the single words that fill up the last tokens."""
_BEFORE = "a"
_SPACE_MARKS = "Ġ▁"
"""The space before a word in byte-level vocabularies and in SentencePiece."""


class Writer:
    """Writes passages for one tokenizer; :func:`writer` caches writers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._costs: dict[tuple[str, str], int] = {}
        self.words: tuple[str, ...] = _single_token_words(tokenizer)
        self._openers = _openers(tokenizer, self.words)

    def passage(self, tokens: int, rng: Rng, mark: int = 0, style: Style = "prose") -> str:
        """Write a passage of ``tokens`` tokens, to follow other text.

        Args:
            tokens: at least 1.
            rng: for the words.
            mark: unique among the passages of a plan that may follow the same text; ``rng`` must be derived from the
                plan's seed and the mark.
            style: prose or code.
        """
        parts = self.head(mark, rng)[:tokens]
        left = tokens - len(parts)
        if left > 0:
            tail = parts[-1][-_CONTEXT_CHARS:]
            for unit in _UNITS[style](rng):
                cost = self._cost(tail, unit)
                if cost > left:
                    break
                parts.append(unit)
                left -= cost
                tail = "".join(parts[-2:])[-_CONTEXT_CHARS:]
            filler = _FILLER[style]
            if filler and left > (cost := self._cost(tail, filler)):
                parts.append(filler)
                left -= cost
        return "".join([*parts, *(rng.choice(self.words) for _ in range(left))])

    def head(self, mark: int, rng: Rng) -> list[str]:
        """Two words that encode the mark, and one that depends on the seed only."""
        opener = self._openers[mark % len(self._openers)]
        second = self.words[(mark // len(self._openers) + mark * 7) % len(self.words)]
        return [opener, second, rng.choice(self.words)]

    def more(self, text: str, tokens: int, rng: Rng) -> str:
        """Lengthen ``text`` by ``tokens`` tokens at its end, or shorten it if ``tokens`` is negative.

        Shortening removes whole words and then fills up with single-token words.
        """
        if tokens < 0:
            shorter = text
            while tokens < 0 and " " in shorter.strip():
                cut = shorter.rstrip().rindex(" ")
                tokens += self._cost(shorter[max(0, cut - _CONTEXT_CHARS) : cut], shorter[cut:])
                shorter = shorter[:cut]
            text = shorter
        return text + "".join(rng.choice(self.words) for _ in range(tokens))

    def _cost(self, tail: str, unit: str) -> int:
        """Tokens that ``unit`` adds to a text ending in ``tail``."""
        key = (tail, unit)
        cost = self._costs.get(key)
        if cost is None:
            before = _BEFORE + tail
            cost = self._costs[key] = self._tokenizer.count(before + unit) - self._tokenizer.count(before)
        return cost


def first_mark(seed: Seed) -> int:
    """The first mark of a plan."""
    return seed.wording("marks").below(MARKS)


@functools.lru_cache(maxsize=4)
def writer(tokenizer: Tokenizer) -> Writer:
    """The cached writer of a tokenizer, with its table of costs."""
    return Writer(tokenizer)


def _single_token_words(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Lower-case words that are one token with a space before them, in the order of the vocabulary."""
    words = (token.lstrip(_SPACE_MARKS) for token, _ in sorted(tokenizer.vocabulary.items(), key=lambda item: item[1]))
    candidates = dict.fromkeys(f" {word}" for word in words if _is_word(word))
    base = tokenizer.count(_BEFORE)
    exact = tuple(word for word in candidates if tokenizer.count(_BEFORE + word) - base == 1)
    if not exact:
        raise WorkloadError("this tokenizer has no single-token words, so prompts of exact length cannot be written")
    return exact


def _openers(tokenizer: Tokenizer, words: tuple[str, ...]) -> tuple[str, ...]:
    """Words that are one token without their space, too, at the beginning of a text and of a line."""
    line = tokenizer.count("\n")
    bare = (word for word in words if tokenizer.count(word[1:]) == 1)
    return tuple(word for word in bare if tokenizer.count(f"\n{word[1:]}") == line + 1) or words


def _is_word(word: str) -> bool:
    return len(word) > 3 and word.isascii() and word.isalpha() and word.islower()
