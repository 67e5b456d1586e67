"""Answers that are easy to misread, by name; a prompt whose last word is the name gets the answer."""

from tests.engines.fakes.answers import ScriptedAnswer
from tests.engines.fakes.stage import EOS_ID, Token

_EOS = Token(EOS_ID, "</s>", special=True)
TEXTS: dict[str, tuple[str, ...]] = {
    "plain": (" Paris", " is", " the", " capital"),
    "one": ("Yes",),
    "umlauts": ("Gr", "üß", "e", " aus", " Köln"),
    "emoji": ("👩", "\u200d", "🚀", " 🇫🇷"),
    "chinese": ("巴", "黎", "是", "首都", "。"),
    "arabic": ("مرحبا", " بالعالم", "\u200f!"),
    "combining": ("e", "\u0301", "a", "\u0308", "\u0323"),
    "newlines": ("a", "\n", "\n\n", "b", "\r\n", "c"),
    "blanks": (" ", "  ", "\t", "\u00a0", " "),
    "separators": ("x", "\u2028", "y", "\u2029", "z", "\u0085"),
    "quotes": ('"', "\\", "'", '\\"', "\\n", "`"),
    "controls": ("\u0001", "\u001f", "\u007f", "end"),
    "json": ('{"error":', ' {"message":', ' "no"', "}}"),
    "events": ("data: ", "[DONE]", "\n\nevent: error\n", "data: {}", ": comment"),
    "markup": ("<script>", "&amp;", "</s>", "<|im_end|>"),
    "held-back": ("", "", "🌍", "", "é"),
    "astral": ("\U0001d518", "\U00010348", "\U0010ffff"),
    "numbers": ("1", ".", "5", "e", "-", "9", "NaN"),
    "long": tuple(f" word{number}" for number in range(400)),
}
"""Each is truncated at its last token."""


def _tokens(texts: tuple[str, ...]) -> tuple[Token, ...]:
    return tuple(Token(100 + number, text) for number, text in enumerate(texts))


THOUGHTS = ("thoughts", "hidden-thoughts")
"""Answers with thoughts, which completions do not have."""


def scripted() -> dict[str, ScriptedAnswer]:
    """Every answer by name; each route requests all of them."""
    plain = _tokens(TEXTS["plain"])
    cut_off = {name: ScriptedAnswer(answer=_tokens(texts)) for name, texts in TEXTS.items()}
    special = Token(1, "<|tool|>", special=True)
    return cut_off | {
        "ended": ScriptedAnswer(answer=(*plain, _EOS)),
        "silent": ScriptedAnswer(answer=(_EOS,)),
        "special-inside": ScriptedAnswer(answer=(plain[0], special, *plain[1:], _EOS)),
        "bursts": ScriptedAnswer(answer=_tokens(tuple(f" b{number}" for number in range(10))), group=3),
        "bursts-cut-characters": ScriptedAnswer(answer=_tokens(TEXTS["held-back"]), group=2),
        "thoughts": ScriptedAnswer(answer=(*plain, *_tokens(("So", ":", " yes")), _EOS), thinking=4),
        "hidden-thoughts": ScriptedAnswer(answer=(*plain, _EOS), hidden=64),
        "fails-at-once": ScriptedAnswer(answer=plain, fails_after=0),
        "fails-late": ScriptedAnswer(answer=plain, fails_after=3),
    }
