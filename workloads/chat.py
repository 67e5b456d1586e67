"""``chat``: single questions with the lengths of a real conversation service."""

from collections.abc import Iterator

import msgspec

from workloads.lengths import AZURE_CONVERSATION_INPUT, AZURE_CONVERSATION_OUTPUT
from workloads.rng import Rng
from workloads.text import exact_text
from workloads.tokenizer import Tokenizer
from workloads.types import Message, Session, Turn

_MIN_CONTENT_TOKENS = 12
"""Room for the number that each prompt begins with: without it short prompts repeat and a cache answers them."""
_MAX_CORRECTIONS = 4


class Chat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Single-turn chat.

    Input and output lengths are drawn independently (their rank correlation in the trace is 0.07) from the Azure
    conversation trace of 2023: input p50 about 1,015, p99 about 4,120 tokens; output bimodal at 100 and 400. Each
    prompt begins with a number of its own, so no two share more than the template and a few tokens; inputs
    shorter than the template and 12 tokens are drawn out to that.
    """

    scale: float = 1.0
    """Every length is multiplied by this before rounding; below 1 for machines that cannot bear the real ones."""
    max_input_tokens: int = 8192
    """Longer inputs are clipped to this, in tokens."""

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 16:
            raise ValueError(f"scale must be above 0 and at most 16, not {self.scale}")
        if self.max_input_tokens < 1:
            raise ValueError(f"max_input_tokens must be at least 1, not {self.max_input_tokens}")

    def sessions(self, tokenizer: Tokenizer, seed: str) -> Iterator[Session]:
        """Sessions of one turn each, the chat template counted in the input length."""
        lengths = Rng(seed, "chat", "lengths")
        overhead = tokenizer.count(tokenizer.render_chat([{"role": "user", "content": "a"}])) - 1
        number = 0
        while True:
            wanted = round(AZURE_CONVERSATION_INPUT.sample(lengths) * self.scale)
            content_tokens = max(_MIN_CONTENT_TOKENS, min(wanted, self.max_input_tokens) - overhead)
            output = max(2, round(AZURE_CONVERSATION_OUTPUT.sample(lengths) * self.scale))
            text, input_tokens = _exact_content(tokenizer, overhead + content_tokens, overhead, (seed, str(number)))
            yield Session(f"chat-{number}", (Turn(input_tokens, output, messages=(Message("user", text),)),))
            number += 1

    def notes(self) -> list[str]:
        """Source, scale and what is synthetic."""
        source = "chat: input and output lengths of the Azure conversation trace 2023, text synthetic and token-exact"
        if self.scale == 1.0:
            return [source]
        return [f"{source}; every length × {self.scale:g} so that this machine can bear it"]


def _exact_content(tokenizer: Tokenizer, tokens: int, overhead: int, path: tuple[str, str]) -> tuple[str, int]:
    """Text whose rendered prompt has ``tokens`` tokens, and its true count.

    Where the template has no special token around the content, tokens merge across the edge and ``overhead`` is off:
    the prompt is counted whole and corrected. The count that is returned is the prompt's, whatever it came to.
    """
    text, found = "", 0
    for _ in range(_MAX_CORRECTIONS):
        rng = Rng(path[0], "chat", "text", path[1])
        opening = f"Q{path[1]}-{rng.below(1000):03d}: "  # unique within a plan, different between seeds
        text = exact_text(tokenizer, max(1, tokens - overhead), rng, opening)
        found = tokenizer.count(tokenizer.render_chat([{"role": "user", "content": text}]))
        if found == tokens:
            break
        overhead += found - tokens
    return text, found
