"""Renders chats for engines that take only text, with the model's own template, as an engine's chat route does."""

from collections.abc import Callable

import msgspec

from bakeoff.engines.dialects import Dialect, HttpRequest
from bakeoff.engines.errors import BadOption
from bakeoff.workloads import Tokenizer, Turn
from bakeoff.workloads.prompts import rendered

Ask = Callable[..., HttpRequest]
"""Signature of :meth:`bakeoff.engines.dialects.Dialect.request`."""


def asking(dialect: Dialect, tokenizer: Tokenizer | None) -> Ask:
    """The function that encodes turns as requests in this dialect.

    Args:
        dialect: of the engine.
        tokenizer: the model's; without it turns are not rendered.
    """
    if dialect.takes_messages or tokenizer is None:
        return dialect.request

    def ask(turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        return dialect.request(written_out(turn, tokenizer), model, logprobs=logprobs)

    return ask


def written_out(turn: Turn, tokenizer: Tokenizer) -> Turn:
    """The turn as a completion; a turn that is no chat is returned unchanged.

    Raises:
        BadOption: it has images, which no text can hold.
    """
    if turn.messages is None:
        return turn
    if turn.has_images:
        raise BadOption("this engine takes only text, and the workload sends images; choose another workload or engine")
    text = rendered(turn, tokenizer)
    ids = tokenizer.encode_prompt(text)
    first = tokenizer.decode(ids[:1])
    # Engines prepend a BOS token to every text: drop the one that the template has written.
    if len(ids) > turn.input_tokens and ids[:1] == ids[1:2] and first in tokenizer.special_tokens:
        text = text.removeprefix(first)
    return msgspec.structs.replace(turn, messages=None, prompt=text, tools=None)
