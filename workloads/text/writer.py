"""Passages of an exact number of tokens that can be set one behind the other.

A passage begins with a space and two words that are its own, so that two passages part at their first token, also
where a template cuts the space off (at their second, where thousands of them follow the same text). Its tokens are
counted unit by unit from a table of costs, not by encoding it: a passage of 10,000 tokens costs five milliseconds. Who
builds a prompt of passages counts it once as a whole (:mod:`workloads.prompts`) and trims its end where a tokenizer
merged after all.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Literal

from workloads.errors import WorkloadError
from workloads.rng import Rng, Seed
from workloads.text.code import code_units
from workloads.text.prose import prose_units
from workloads.tokenizer import Tokenizer

Style = Literal["prose", "code"]
MIN_PASSAGE_TOKENS = 2
"""Below this a passage cannot be told from another."""

MARKS = 1 << 40
"""Marks are counted up from a random one below this, so that two plans part early too."""

_UNITS: dict[Style, Callable[[Rng], Iterator[str]]] = {"prose": prose_units, "code": code_units}
_CONTEXT_CHARS = 6
"""How far back a line break can merge: ``):`` and its line break are one token in some vocabularies."""
_FILLER: dict[Style, str] = {"prose": "", "code": "\n    #"}
"""What stands before the single words that fill up the last tokens."""
_BEFORE = "a"
_SPACE_MARKS = "Ġ▁"
"""How byte-level vocabularies and SentencePiece write the space before a word."""


class Writer:
    """Writes for one tokenizer; :func:`writer` keeps one for each."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._costs: dict[tuple[str, str], int] = {}
        self.words = _single_token_words(tokenizer)
        self._openers = _openers(tokenizer, self.words)

    def passage(self, tokens: int, rng: Rng, mark: int = 0, style: Style = "prose") -> str:
        """Text of ``tokens`` tokens behind other text.

        Args:
            tokens: at least 1.
            rng: draws the words.
            mark: different for every passage that may follow the same text in one plan; rng must be made from the
                plan's seed and the mark.
            style: what the text looks like.
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
        """Two words for a passage's mark, and one more that the seed alone decides."""
        opener = self._openers[mark % len(self._openers)]
        second = self.words[(mark // len(self._openers) + mark * 7) % len(self.words)]
        return [opener, second, rng.choice(self.words)]

    def more(self, text: str, tokens: int, rng: Rng) -> str:
        """``text`` with so many tokens more at its end, or fewer where ``tokens`` is negative.

        What is taken away is whole words; what is then missing is filled up with single-token words.
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
        """Tokens that ``unit`` adds behind a text that ends in ``tail``."""
        key = (tail, unit)
        cost = self._costs.get(key)
        if cost is None:
            before = _BEFORE + tail
            cost = self._costs[key] = self._tokenizer.count(before + unit) - self._tokenizer.count(before)
        return cost


def first_mark(seed: Seed) -> int:
    """Where a plan's marks begin."""
    return seed.wording("marks").below(MARKS)


@functools.lru_cache(maxsize=4)
def writer(tokenizer: Tokenizer) -> Writer:
    """The writer of a tokenizer, with the costs that it has learnt."""
    return Writer(tokenizer)


def _single_token_words(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Lower-case words that are one token behind a space, in the order of the vocabulary, the space included."""
    found = (token.lstrip(_SPACE_MARKS) for token, _ in sorted(tokenizer.vocabulary.items(), key=lambda item: item[1]))
    candidates = dict.fromkeys(f" {word}" for word in found if _is_word(word))
    base = tokenizer.count(_BEFORE)
    exact = tuple(word for word in candidates if tokenizer.count(_BEFORE + word) - base == 1)
    if not exact:
        raise WorkloadError("this tokenizer has no single-token words: no prompt of an exact length can be made")
    return exact


def _openers(tokenizer: Tokenizer, words: tuple[str, ...]) -> tuple[str, ...]:
    """Those that are one token at the beginning of a text and of a line too, where their space is gone."""
    line = tokenizer.count("\n")
    bare = (word for word in words if tokenizer.count(word[1:]) == 1)
    return tuple(word for word in bare if tokenizer.count(f"\n{word[1:]}") == line + 1) or words


def _is_word(word: str) -> bool:
    return len(word) > 3 and word.isascii() and word.isalpha() and word.islower()
